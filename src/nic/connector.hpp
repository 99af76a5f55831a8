// One connect() under way: from an endpoint of ours to the address of another.
//
//   dialing  --TCP-->  greeting  --offered-->  joining  -->  opening  --Accept-->  (done)
//      ^                   |  \--crossing or yield()--> waiting (for the other side's connect)
//      '--- after a pause --'
//
// What ends a try (a reset, a peer that vanished, "busy", "not yet", no answer to the dialing) is
// tried again until the deadline; that nobody listens is an answer. joining and opening happen on a
// Peer, so the host takes those steps and says with enter() and try_again() what came of them. A
// connected endpoint's request has no deadline while it is opening: an application decides. Where
// connects to one port take turns (ConnectingSide), one that is queued has not begun, and its turn
// is over when it waits for anything. Owned by the control thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "nic/control_thread.hpp"
#include "nic/peer.hpp"
#include "nic/sockets.hpp"

namespace aperture::nic {

class Connector;

class ConnectorHost {
 public:
  virtual ~ConnectorHost() = default;
  // The owner of the address offers a ticket (nonce() is the one we sent), and a socket name; or it
  // stays, take_connection(). The host joins the process or uses the peer that it has, and opens
  // the lane.
  virtual void on_offer(Connector& connector, const wire::Answer& offer) noexcept = 0;
  // It waits, be it for the other side's connect or before another try.
  virtual void on_connector_waits(Connector& connector) noexcept = 0;
  // It came to nothing. The connector may be destroyed.
  virtual void on_connector_failed(Connector& connector, Errc why) noexcept = 0;
};

class Connector {
 public:
  enum class Stage : uint8_t { dialing, greeting, waiting, joining, opening };
  enum class Turn : uint8_t { none, queued, taken };

  struct Limits {
    uint64_t timeout_ns = 5'000'000'000;  // all tries together
    uint64_t waiting_ns = 200'000'000;    // for the other side's connect, before we try again
  };

  // request: what a connected endpoint says; nullptr for a datagram endpoint's.
  Connector(ControlThread& control, ConnectorHost& host, const Identity& self, const LocalEnd& end,
            const Address& remote, uint32_t attempt, const Limits& limits,
            const wire::PrivateData* request) noexcept;
  ~Connector();

  // Dials, or begins by waiting because the other side is connecting to us already. May call back.
  void start(bool wait_first) noexcept;
  // Begins with an offer that was made before: that process has the port, and is asked at once. If
  // it has it no longer, this dials. May call back, and be gone then.
  void start_at(const wire::Id128& incarnation) noexcept;

  // The host's: whose turn it is. Nothing of this begins before it has one, if it is queued.
  Turn turn() const noexcept { return turn_; }
  void set_turn(Turn turn) noexcept { turn_ = turn; }

  // Our end; its address is the one that the other side is told.
  const LocalEnd& end() const noexcept { return end_; }
  const Address& remote() const noexcept { return remote_; }
  uint32_t attempt() const noexcept { return attempt_; }
  Stage stage() const noexcept { return stage_; }
  const wire::Id128& nonce() const noexcept { return nonce_; }
  const wire::PrivateData* request() const noexcept { return request_ ? &*request_ : nullptr; }

  // The offer, kept for joining and opening, and the peer it is being used with.
  const wire::Answer& offer() const noexcept { return offer_; }
  Peer* peer() const noexcept { return peer_; }
  void enter(Stage joining_or_opening, Peer* peer) noexcept;
  // The TCP connection over which the offer came; -1: over none.
  int connection() const noexcept { return tcp_.get(); }
  ParentOnlyFd take_connection() noexcept;

  // The other side's connect goes first. Not for ever: who only says that it connects must not keep
  // us from trying.
  void yield() noexcept;
  bool may_yield() const noexcept { return yields_ < kMostYields; }
  // This try has failed in a way that another may not.
  void try_again() noexcept;
  // While waiting: the other side's connect came to nothing.
  void stop_waiting() noexcept;

 private:
  void begin() noexcept;
  void dial() noexcept;
  void on_tcp() noexcept;
  void greet() noexcept;
  void on_answer() noexcept;
  void hang_up() noexcept;
  void wait() noexcept;
  void try_again_within(uint64_t longest_pause_ns) noexcept;
  void explain_stay(const wire::Answer& answer) const noexcept;
  void set_deadline() noexcept;
  void set_pause(uint64_t pause_ns) noexcept;
  void on_not_answered() noexcept;
  void on_deadline() noexcept;
  void fail(Errc why) noexcept;

  static constexpr uint32_t kMostYields = 8;
  static constexpr uint64_t kFirstPauseNs = 1'000'000;
  static constexpr uint64_t kLongestPauseNs = 100'000'000;
  // The other side is about to be there, and somebody waits for it.
  static constexpr uint64_t kLongestNotYetNs = 20'000'000;
  static constexpr uint64_t kLongestAnswerNs = 10'000'000'000;
  // For whoever is met in a directory to say who it is: another may have put its socket there.
  static constexpr uint64_t kLongestMeetingNs = 2'000'000'000;
  // A full queue of connections drops ours without a word, and TCP alone would ask again after 1 s.
  // So many times we do sooner; after that each time after twice as long. On this host whoever
  // finds room is told so within the call; beside a flood that is one dial in ten.
  struct Dials {
    uint64_t again_ns;
    uint32_t soon;
  };
  static constexpr Dials kDialsHere = {1'000'000, 256};
  static constexpr Dials kDialsElsewhere = {10'000'000, 16};

  ControlThread& control_;
  ConnectorHost& host_;
  const Identity& self_;
  LocalEnd end_;
  const bool any_ip_;
  const Address remote_;
  bool elsewhere_ = false;  // no address of this host; known once it has been dialed
  const uint32_t attempt_;
  const Limits limits_;
  const std::optional<wire::PrivateData> request_;

  Stage stage_ = Stage::waiting;
  uint32_t tries_ = 0;  // so many times it was dialed
  uint32_t yields_ = 0;
  Turn turn_ = Turn::none;
  bool is_overdue_ = false;  // the deadline has passed while an answer was due
  bool may_meet_ = true;     // in the directory that both have: nobody has been looked for in vain
  ParentOnlyFd tcp_;
  ControlThread::WatchId watch_ = 0;
  uint64_t deadline_ns_ = 0;
  ControlThread::TimerId deadline_timer_ = 0;
  ControlThread::TimerId pause_timer_ = 0;
  wire::Id128 nonce_{};
  std::array<std::byte, wire::kAnswerBytes> bytes_{};
  size_t got_ = 0;
  wire::Answer offer_;
  Peer* peer_ = nullptr;
};

}  // namespace aperture::nic
