// The process at the other end: one unix socket, the segments that both map, its key file, and the
// lanes between endpoints of the two processes.
//
// A peer is one incarnation of one process, known by SO_PEERCRED; its lanes share everything here.
// Whoever opens a lane picks it in a segment that it created itself, and takes it back when both
// sides have closed it. What the peer says is decoded (wire/hello.hpp) and checked here; which
// endpoints get which lane is decided by the PeerHost. Owned by the control thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "link/shm/segment.hpp"
#include "nic/contact.hpp"
#include "nic/control_thread.hpp"
#include "nic/identity.hpp"
#include "nic/liveness.hpp"
#include "nic/sockets.hpp"
#include "protect/peer_key_view.hpp"
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
  uint32_t notices = 0;                    // ring::kNotice...
  std::shared_ptr<const Secret> auth_key;  // null: none
};

// A lane of a peer, from the moment that Open was sent until both sides have closed it.
struct PeerLane {
  Peer* peer = nullptr;  // null once the peer is down
  uint32_t segment = 0;
  uint32_t index = 0;
  bool created_here = false;  // we created the segment
  uint32_t attempt = 0;       // while Open is not answered
  ListenerId listener = 0;
  Address remote;
  link::Lane* lane = nullptr;  // null before it is up, and once closed here
  bool closed_here = false;
  bool closed_there = false;
  bool down = false;           // its endpoint has been told
  uint64_t last_progress = 0;  // words of the other side at the last look
};

class PeerHost {
 public:
  virtual ~PeerHost() = default;
  virtual void on_peer_joined(Peer& peer) noexcept = 0;
  virtual void on_open(Peer& peer, const wire::Open& open, Packet& packet) noexcept = 0;
  virtual void on_accept(Peer& peer, const wire::Accept& accept, Packet& packet) noexcept = 0;
  virtual void on_reject(Peer& peer, uint32_t attempt, wire::Why why) noexcept = 0;
  // Between connected endpoints.
  virtual void on_connect(Peer& peer, const wire::Connect& connect, Packet& packet) noexcept = 0;
  virtual void on_connected(Peer& peer, const wire::Connected& connected,
                            Packet& packet) noexcept = 0;
  virtual void on_refuse(Peer& peer, const wire::Refuse& refuse) noexcept = 0;
  virtual void on_withdraw(Peer& peer, uint32_t attempt) noexcept = 0;
  virtual void on_lane_closed(PeerLane& lane) noexcept = 0;
  // A peer of another user may have put something on any of its lanes.
  virtual void on_rung(Peer& peer) noexcept = 0;
  // The process is gone, or talks nonsense. All lanes are in the host's hands now.
  virtual void on_peer_down(Peer& peer, Errc why) noexcept = 0;
};

// What every peer needs of this process. Outlives them.
struct PeerContext {
  ControlThread& control;
  PeerHost& host;
  const Identity& self;
  protect::KeyTable& keys;
  const UniqueFd& keys_read_only;  // what peers are handed
};

class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(const PeerContext& context, ParentOnlyFd socket, const Credentials& credentials) noexcept;
  ~Peer();

  // Connector: presents `nonce`; on_peer_joined() follows when the other side presented `expected`
  // and is that incarnation.
  Status begin(const wire::Id128& nonce, const wire::Id128& expected,
               const wire::Id128& incarnation) noexcept;
  // Acceptor: the other side has presented our nonce; presents its own.
  Status answer(const wire::Join& join, const wire::Id128& nonce) noexcept;

  bool joined() const noexcept { return joined_; }
  bool is_down() const noexcept { return down_; }
  const wire::Id128& incarnation() const noexcept { return incarnation_; }
  pid_t pid() const noexcept { return credentials_.pid; }
  uid_t uid() const noexcept { return credentials_.uid; }
  bool same_user() const noexcept { return credentials_.uid == context_.self.uid; }
  size_t lane_count() const noexcept { return lanes_.size(); }
  uint64_t joined_at_ns() const noexcept { return joined_at_ns_; }
  bool ever_opened() const noexcept { return ever_opened_; }

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

  // Looks whether a peer that owes us something still lives. True if anything is pending.
  bool look_after_pending() noexcept;
  // Ends it. The lanes' records forget their peer.
  void go_down(Errc why) noexcept;

  std::vector<std::shared_ptr<PeerLane>> lanes() const;
  // Segments whose accessor slots our key table still watches: for the host to detach in peace.
  std::vector<std::shared_ptr<link::shm::Segment>> take_watched_segments() noexcept;

 private:
  struct SharedSegment {
    std::shared_ptr<link::shm::Segment> segment;
    bool slots_watched = false;
  };
  struct Doorbell {  // one of the two
    UniqueFd event;
    ParentOnlyFd socket;  // ours, once more, for a peer of another user: Ring is sent to it
    wire::PeerPacket ring;
  };
  struct LaneKeep;  // what a lane keeps alive
  struct Held {     // what came with Open or Connect, until the lane is made
    std::shared_ptr<Doorbell> doorbell;
    bool direct = false;
    uint32_t domain = 0;
    uint32_t attempt = 0;
    wire::Statement statement;
    wire::Proof proof{};
  };
  struct Outgoing {
    wire::PeerPacket packet;
    std::vector<UniqueFd> fds;
  };
  using LaneKey = uint64_t;
  struct Opening {  // Open or Connect is sent, and not answered
    LaneKey key = 0;
    wire::Statement statement;
    std::shared_ptr<const Secret> auth_key;
  };
  static LaneKey key_of(bool created_here, uint32_t segment, uint32_t index) noexcept;

  void on_events() noexcept;
  void handle(Packet& packet) noexcept;
  void handle_request(wire::PeerMessage kind, Packet& packet) noexcept;
  void handle_joined(const Packet& packet) noexcept;
  void handle_lane_close(const wire::LaneClose& close) noexcept;
  void learn(const wire::Join& join) noexcept;
  wire::Join introduction(const wire::Id128& nonce) const noexcept;

  Status send(const wire::PeerPacket& packet, std::initializer_list<int> fds) noexcept;
  void flush() noexcept;

  Result<std::pair<uint32_t, uint32_t>> reserve_lane() noexcept;
  Result<SharedSegment*> attached_segment(uint32_t number, UniqueFd fd) noexcept;
  void watch_slots(SharedSegment& shared) noexcept;
  uint64_t key_bytes_for(const SharedSegment& shared) const noexcept;
  bool learn_keys(uint64_t size_bytes, UniqueFd fd) noexcept;
  Result<std::shared_ptr<Doorbell>> doorbell(uint64_t engine, UniqueFd fd) noexcept;
  Result<std::unique_ptr<link::Lane>> make_lane(SharedSegment& shared, PeerLane& record,
                                                uint32_t domain, std::shared_ptr<Doorbell> doorbell,
                                                bool direct) noexcept;
  void finish(PeerLane& lane) noexcept;

  const PeerContext context_;
  ParentOnlyFd socket_;
  const Credentials credentials_;
  ControlThread::WatchId watch_ = 0;
  ControlThread::TimerId flush_timer_ = 0;
  std::deque<Outgoing> outbox_;  // bounded by kMaxOutbox

  wire::Id128 incarnation_{};
  wire::Id128 expected_nonce_{};
  bool joined_ = false;
  bool down_ = false;
  bool ever_opened_ = false;
  uint64_t joined_at_ns_ = 0;
  bool fence_sends_ = false;
  bool direct_possible_ = false;  // same user and pid namespace, and neither side denies it
  Liveness liveness_;
  std::shared_ptr<const protect::PeerKeyView> keys_;
  bool keys_probed_ = false;  // the kernel lets us, as keys_ tells

  std::map<uint32_t, SharedSegment> created_;   // by our number
  std::map<uint32_t, SharedSegment> attached_;  // by the peer's number
  uint32_t next_segment_ = 1;
  std::unordered_map<uint64_t, std::weak_ptr<Doorbell>> doorbells_;  // by the peer's number
  std::unordered_map<LaneKey, std::shared_ptr<PeerLane>> lanes_;
  std::unordered_map<uint32_t, Opening> opening_;  // by attempt
  std::unordered_map<LaneKey, Held> held_;         // the others' openings, not decided yet
};

}  // namespace aperture::nic
