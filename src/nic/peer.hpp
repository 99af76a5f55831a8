// The process at the other end, and the lanes between endpoints of the two processes.
//
// A peer is one incarnation of one process: its channel (peer_channel.hpp) says who it is and
// carries packets, its memory (peer_memory.hpp) is what both map. Here it is decided what the
// packets do to lanes: Open, Accept and Reject; Connect, Connected, Refuse and Withdraw, where an
// application decides; and LaneClose. Whoever opens a lane takes it back when both sides have
// closed it. Which endpoints get which lane is decided by those whom it tells: PeerHost, PeerAsks
// and PeerAnswers. Owned by the control thread.
#pragma once

#include <memory>
#include <unordered_map>

#include "nic/contact.hpp"
#include "nic/control_thread.hpp"
#include "nic/identity.hpp"
#include "nic/peer_channel.hpp"
#include "nic/peer_memory.hpp"
#include "nic/shares.hpp"
#include "nic/sockets.hpp"
#include "wire/hello.hpp"
#include "wire/proof.hpp"

namespace aperture::nic {

class Peer;

// One of our endpoints, as a peer has to know it.
struct LocalEnd {
  ListenerId listener = 0;
  Address address;
  uint32_t domain = 0;
  int doorbell_fd = -1;
  uint64_t engine = 0;                     // our number for the doorbell
  std::shared_ptr<const Secret> auth_key;  // null: none
};

// A lane of a peer, from the moment that Open was sent until both sides have closed it.
struct PeerLane {
  Peer* peer = nullptr;  // null once the peer is down
  PeerMemory::Place place;
  ListenerId listener = 0;
  Address remote;
  link::Lane* lane = nullptr;  // null before it is up, and once closed here
  bool closed_here = false;
  bool closed_there = false;
  bool down = false;  // its endpoint has been told
  // Words of the other side at the last look; kNone: nothing was pending then.
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t last_progress = kNone;
};

// What becomes of a peer and of its lanes.
class PeerHost {
 public:
  virtual ~PeerHost() = default;
  virtual void on_lane_closed(PeerLane& lane) noexcept = 0;
  // A peer of another user may have put something on any of its lanes.
  virtual void on_rung(Peer& peer) noexcept = 0;
  // The process is gone, or talks nonsense. All lanes are in the host's hands now.
  virtual void on_peer_down(Peer& peer, Errc why) noexcept = 0;
  // Of a peer that is down: it reaches none of our memory by itself any more.
  virtual void on_detached() noexcept = 0;
};

// What a peer asks of us. Connect and Withdraw are of connected endpoints.
class PeerAsks {
 public:
  virtual ~PeerAsks() = default;
  virtual void on_open(Peer& peer, const wire::Open& open, Packet& packet) noexcept = 0;
  virtual void on_connect(Peer& peer, const wire::Connect& connect, Packet& packet) noexcept = 0;
  virtual void on_withdraw(Peer& peer, uint32_t attempt) noexcept = 0;
};

// What it answers: to begin(), to Open and to Connect.
class PeerAnswers {
 public:
  virtual ~PeerAnswers() = default;
  virtual void on_peer_joined(Peer& peer) noexcept = 0;
  // data: what the application there said with it; nullptr: it answers Open.
  virtual void on_accept(Peer& peer, const wire::Accept& accept, const wire::PrivateData* data,
                         Packet& packet) noexcept = 0;
  virtual void on_reject(Peer& peer, uint32_t attempt, wire::Why why) noexcept = 0;
  virtual void on_refuse(Peer& peer, const wire::Refuse& refuse) noexcept = 0;
};

// What every peer needs of this process. Outlives them.
struct PeerContext {
  ControlThread& control;
  PeerHost& host;
  PeerAsks& asks;
  PeerAnswers& answers;
  const Identity& self;
  protect::KeyTable& keys;
  const UniqueFd& keys_read_only;  // what peers are handed
  Shares& shares;                  // of other users' processes
};

class Peer final : public std::enable_shared_from_this<Peer>, private PeerChannelHost {
 public:
  using LaneKey = uint64_t;
  using Lanes = std::unordered_map<LaneKey, std::shared_ptr<PeerLane>>;

  // By exception std::bad_alloc.
  Peer(const PeerContext& context, ParentOnlyFd socket, const Credentials& credentials);

  // See PeerChannel. on_peer_joined() follows begin().
  Status begin(const wire::Id128& nonce, const wire::Id128& expected,
               const wire::Id128& incarnation) noexcept;
  Status answer(const wire::Join& join, const wire::Id128& nonce) noexcept;
  const PeerChannel& channel() const noexcept { return channel_; }
  bool may_hold(const Holding& more) { return memory_.may_hold(more); }  // PeerMemory

  const Lanes& lanes() const noexcept { return lanes_; }
  WatchedSegments take_watched_segments() noexcept { return memory_.take_watched(); }

  // Opener: reserves a lane and sends Open, or Connect with what the application says. `nonce` is
  // the one that our hello said. Errors: no_fds, no_memory, no_space, peer_lost.
  Status open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
              const wire::Answer& offer, uint32_t attempt,
              const wire::PrivateData* request = nullptr) noexcept;
  // Opener: what Accept says, made a lane; nullptr record: nobody waits for that answer. Errors as
  // of accept(), and access_denied: the other side has not proved that it holds our key.
  Result<std::unique_ptr<link::Lane>> opened(const wire::Accept& accept, Packet& packet,
                                             std::shared_ptr<PeerLane>& record) noexcept;
  void open_rejected(uint32_t attempt) noexcept;
  // Acceptor: takes what came with Open and sends Accept. `statement` is what the two sides prove;
  // that Open does is admit()'s to see. Errors: protocol, access_denied, no_fds, no_memory.
  Result<std::unique_ptr<link::Lane>> accept(const LocalEnd& end, const wire::Open& open,
                                             const wire::Statement& statement, Packet& packet,
                                             std::shared_ptr<PeerLane>& record) noexcept;
  void reject(uint32_t attempt, wire::Why why) noexcept;
  // The same in two steps, with the application's decision between: hold() takes what came, and
  // admit() makes the lane and sends Connected (or Accept, without data), if `end` has the key that
  // was proved; let_go() forgets it.
  Result<std::shared_ptr<PeerLane>> hold(const LocalEnd& end, const wire::Open& open,
                                         const wire::Statement& statement, Packet& packet) noexcept;
  Result<std::unique_ptr<link::Lane>> admit(const LocalEnd& end, PeerLane& record,
                                            const wire::PrivateData* data) noexcept;
  void let_go(PeerLane& record) noexcept;
  void refuse(uint32_t attempt, const wire::PrivateData& data) noexcept;
  void withdraw(uint32_t attempt) noexcept;
  // Our side of the lane is closed: tells the other.
  void close_here(PeerLane& lane) noexcept;

  // Looks whether a peer that owes us something still lives.
  struct Pending {
    bool any = false;
    bool stirs = false;  // some of it is new, or has moved since the last look
  };
  Pending look_after_pending() noexcept;
  // It goes down unless a lane is asked for within so long.
  void open_within(uint64_t ns) noexcept;
  // Ends it. The lanes' records forget their peer.
  void go_down(Errc why) noexcept;

 private:
  void note_opened() noexcept;

  struct Held {  // what came with Open or Connect, until the lane is made
    PeerMemory::TheirEnd theirs;
    uint32_t attempt = 0;
    wire::Statement statement;
    wire::Proof proof{};
  };
  struct Opening {  // Open or Connect is sent, and not answered
    LaneKey key = 0;
    wire::Statement statement;
    std::shared_ptr<const Secret> auth_key;
  };
  static LaneKey key_of(const PeerMemory::Place& place) noexcept;

  // PeerChannelHost
  std::shared_ptr<void> keep() noexcept override { return shared_from_this(); }
  void on_joined() noexcept override;
  bool on_packet(wire::PeerMessage kind, Packet& packet) noexcept override;
  void on_drained() noexcept override;
  void on_channel_lost(Errc why) noexcept override { go_down(why); }

  bool handle_lane_close(const wire::LaneClose& close) noexcept;
  void say(const wire::PeerPacket& packet) noexcept;
  void finish(PeerLane& lane) noexcept;

  const PeerContext context_;
  PeerChannel channel_;
  PeerMemory memory_;
  ControlThread::TimerId newcomer_timer_ = 0;
  Lanes lanes_;
  std::unordered_map<uint32_t, Opening> opening_;  // by attempt
  std::unordered_map<LaneKey, Held> held_;         // the others' openings, not decided yet
};

}  // namespace aperture::nic
