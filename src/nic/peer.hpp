// The other end of first contact, and the lanes that come of it.
//
// A peer asks and answers: Open, Accept and Reject; Connect, Connected, Refuse and Withdraw, where
// an application decides. On one host it is a process, with any number of lanes in memory that both
// map (host_peer.hpp); elsewhere it is one TCP connection, which becomes one lane
// (stream_peer.hpp). Which endpoints get which lane is decided by those whom it tells: PeerHost,
// PeerAsks and PeerAnswers. Owned by the control thread.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "nic/contact.hpp"
#include "nic/control_thread.hpp"
#include "nic/identity.hpp"
#include "nic/port_owner.hpp"
#include "nic/shares.hpp"
#include "nic/sockets.hpp"
#include "wire/hello.hpp"
#include "wire/proof.hpp"

namespace aperture::link::tcp {
class Mover;
}  // namespace aperture::link::tcp

namespace aperture::nic {

class Peer;
class SilenceWatch;

// One of our endpoints, as a peer has to know it.
struct LocalEnd {
  ListenerId listener = 0;
  Address address;
  uint32_t domain = 0;
  int doorbell_fd = -1;
  uint64_t engine = 0;                      // our number for the doorbell
  std::shared_ptr<const Secret> auth_key;   // null: none
  std::shared_ptr<link::tcp::Mover> mover;  // of its engine
};

// A lane of a peer, from the moment that Open was sent until both sides have closed it.
struct PeerLane {
  Peer* peer = nullptr;  // null once the peer is down
  ListenerId listener = 0;
  Address remote;
  link::Lane* lane = nullptr;   // null before it is up, and once closed here
  link::Lane* owned = nullptr;  // what its owner has: that lane, or one with faults on top of it
  bool closed_here = false;
  bool closed_there = false;
  bool down = false;  // its endpoint has been told
  // Words of the other side at the last look; kNone: nothing was pending then.
  static constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t last_progress = kNone;

  virtual ~PeerLane() = default;
};

// What becomes of a peer and of its lanes.
class PeerHost {
 public:
  virtual ~PeerHost() = default;
  virtual void on_lane_closed(PeerLane& lane) noexcept = 0;
  // A peer of another user may have put something on any of its lanes.
  virtual void on_rung(Peer& peer) noexcept = 0;
  // It is gone, or talks nonsense. All lanes are in the host's hands now.
  virtual void on_peer_down(Peer& peer, Errc why) noexcept = 0;
  // A lane to a process of this host is up: watches over it.
  virtual void watch(link::Lane& lane) noexcept = 0;
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
  Shares& shares;                  // of other users' processes, and of other hosts
  SilenceWatch& silence;           // over connections to other hosts
};

class Peer : public std::enable_shared_from_this<Peer> {
 public:
  using LaneKey = uint64_t;
  using Lanes = std::unordered_map<LaneKey, std::shared_ptr<PeerLane>>;
  // What is asked for by a hello that was answered so, and what both sides prove; without what is
  // in memory, and without the proof.
  struct Question {
    wire::Open open;
    wire::Statement statement;
  };
  struct Name {
    char text[112];
    const char* c_str() const noexcept { return text; }
  };

  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  virtual ~Peer() = default;

  // --- who it is ---

  virtual const wire::Id128& incarnation() const noexcept = 0;
  // For the log: "process 4711", or where it comes from.
  virtual Name name() const noexcept = 0;
  // A process of this host (HostPeer), with which further lanes can be opened.
  virtual bool is_process() const noexcept = 0;
  virtual bool is_down() const noexcept = 0;
  // Whether it is to be believed that the endpoint at that address is its own; says so if not.
  virtual bool speaks_for(const Address& source, PortOwners& owners) noexcept = 0;
  // A process of this host and of our user: it may ask for lanes without a ticket.
  virtual bool may_ask_at_once() const noexcept { return false; }
  // It has given us a lane to there for a ticket, so that port is its own.
  virtual void note_port(const Address& /*remote*/) noexcept {}
  // The ticket with which it stays on the connection of its hello, used or not; 0: none.
  virtual uint64_t ticket() const noexcept { return 0; }
  // What a proof in that packet is about, beside the statement: see prove().
  virtual std::span<const std::byte> proved_beside(const Packet& /*packet*/) noexcept { return {}; }
  // Whether we may hold so much more for it: Shares. By exception std::bad_alloc.
  virtual bool may_hold(const Holding& more) = 0;

  const Lanes& lanes() const noexcept { return lanes_; }

  // --- lanes ---

  // Opener: sends Open, or Connect with what the application says. `nonce` is the one that our
  // hello said. Errors: no_fds, no_memory, no_space, peer_lost.
  virtual Status open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
                      const wire::Answer& offer, uint32_t attempt,
                      const wire::PrivateData* request) noexcept = 0;
  // Opener: what Accept says, made a lane; nullptr record: nobody waits for that answer. Errors as
  // of accept(), and access_denied: the other side has not proved that it holds our key.
  virtual Result<std::unique_ptr<link::Lane>> opened(
      const wire::Accept& accept, Packet& packet, std::shared_ptr<PeerLane>& record) noexcept = 0;
  virtual void open_rejected(uint32_t attempt) noexcept = 0;
  // Acceptor: takes what came with Open and sends Accept. `statement` is what the two sides prove;
  // that Open does is admit()'s to see. Errors: protocol, access_denied, no_fds, no_memory.
  Result<std::unique_ptr<link::Lane>> accept(const LocalEnd& end, const wire::Open& open,
                                             const wire::Statement& statement, Packet& packet,
                                             std::shared_ptr<PeerLane>& record) noexcept;
  void reject(uint32_t attempt, wire::Why why) noexcept;
  // The same in two steps, with the application's decision between: hold() takes what came, and
  // admit() makes the lane and sends Connected (or Accept, without data), if `end` has the key that
  // was proved; let_go() forgets it.
  virtual Result<std::shared_ptr<PeerLane>> hold(const LocalEnd& end, const wire::Open& open,
                                                 const wire::Statement& statement,
                                                 Packet& packet) noexcept = 0;
  virtual Result<std::unique_ptr<link::Lane>> admit(const LocalEnd& end, PeerLane& record,
                                                    const wire::PrivateData* data) noexcept = 0;
  virtual void let_go(PeerLane& record) noexcept = 0;
  void refuse(uint32_t attempt, const wire::PrivateData& data) noexcept;
  virtual void withdraw(uint32_t attempt) noexcept = 0;
  // Our side of the lane is closed: tells the other. lane: null if none was made.
  virtual void close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept = 0;

  // --- life ---

  // A lane of it is up: somebody looks, now and then, whether it still lives while it owes us
  // something. By exception std::bad_alloc.
  virtual void begin_watch(link::Lane& lane) = 0;
  struct Pending {
    bool any = false;
    bool stirs = false;  // some of it is new, or has moved since the last look
  };
  virtual Pending look_after_pending() noexcept { return {}; }
  // It goes down unless it has a lane within so long; while somebody decides about one it has time.
  virtual void open_within(uint64_t ns) noexcept = 0;
  // Ends it. The lanes' records forget their peer.
  virtual void go_down(Errc why) noexcept = 0;

 protected:
  Peer() = default;
  // One packet, decoded and handed to who is to answer it: all but what the channel itself is
  // about. False: it breaks the protocol, or is of no kind that is asked or answered here.
  bool dispatch(const PeerContext& context, wire::PeerMessage kind, Packet& packet) noexcept;
  // A short answer, without a lane. Whoever cannot be told any more goes down.
  virtual void say(const wire::PeerPacket& packet) noexcept = 0;
  static Question question(const Identity& self, const LocalEnd& end, const Address& remote,
                           const wire::Id128& nonce, const wire::Answer& offer,
                           uint32_t attempt) noexcept;
  // Every lane is in the host's hands now, and forgets us.
  void tell_down(const PeerContext& context, Errc why) noexcept;

  Lanes lanes_;
};

}  // namespace aperture::nic
