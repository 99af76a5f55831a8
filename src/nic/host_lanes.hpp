// The lanes between the endpoints of a process of this host and ours, from Open to LaneClose.
//
// Whoever opens a lane picks its place in memory that both map (peer_memory.hpp), and takes it back
// when both sides have closed it. One that is not up yet is opening (Open or Connect is sent, and
// not answered) or held (the other side has opened it, and it is not decided here). A part of
// HostPeer, which hears from it what has become of each. Owned by the control thread.
#pragma once

#include <memory>
#include <unordered_map>

#include "nic/peer.hpp"
#include "nic/peer_channel.hpp"
#include "nic/peer_memory.hpp"

namespace aperture::nic {

class HostLanes {
 public:
  // lanes: of that peer, where each has its record. All outlive this.
  HostLanes(Peer& peer, Peer::Lanes& lanes, PeerChannel& channel, PeerMemory& memory) noexcept
      : peer_(peer), lanes_(lanes), channel_(channel), memory_(memory) {}
  HostLanes(const HostLanes&) = delete;
  HostLanes& operator=(const HostLanes&) = delete;

  // Somebody has to decide about one: the other side, which we have asked, or an application here.
  bool any_is_undecided() const noexcept { return !opening_.empty() || !held_.empty(); }

  // As Peer says of each.
  Status open(const LocalEnd& end, const Peer::Question& asks,
              const wire::PrivateData* request) noexcept;
  Result<std::unique_ptr<link::Lane>> opened(const wire::Accept& accept, Packet& packet,
                                             std::shared_ptr<PeerLane>& record) noexcept;
  void open_rejected(uint32_t attempt) noexcept;
  Result<std::shared_ptr<PeerLane>> hold(const LocalEnd& end, const wire::Open& open,
                                         const wire::Statement& statement, Packet& packet) noexcept;
  Result<std::unique_ptr<link::Lane>> admit(const LocalEnd& end, PeerLane& record,
                                            const wire::PrivateData* data) noexcept;
  void let_go(PeerLane& record) noexcept;

  // Our side of the lane is closed. False: the other one cannot be told.
  bool close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept;
  // And the other side's; tells the host of one that is open here. False: no sound peer says that.
  bool close_there(const wire::LaneClose& close, PeerHost& host) noexcept;

  // What is pending on those that are up.
  Peer::Pending pending() noexcept;
  // The peer is down, and so are they: nobody decides any more.
  void forget_undecided() noexcept;

 private:
  struct SharedLane final : PeerLane {
    PeerMemory::Place place;
  };
  struct Held {  // what came with Open or Connect, until the lane is made
    PeerMemory::TheirEnd theirs;
    uint32_t attempt = 0;
    wire::Statement statement;
    wire::Proof proof{};
  };
  struct Opening {  // Open or Connect is sent, and not answered
    Peer::LaneKey key = 0;
    wire::Statement statement;
    std::shared_ptr<const Secret> auth_key;
  };
  static Peer::LaneKey key_of(const PeerMemory::Place& place) noexcept;
  // Every record of the peer's is of that kind.
  static const PeerMemory::Place& place_of(const PeerLane& record) noexcept {
    return static_cast<const SharedLane&>(record).place;
  }
  std::shared_ptr<PeerLane> make_record(const PeerMemory::Place& place, ListenerId listener,
                                        const Address& remote);
  void finish(PeerLane& record) noexcept;

  Peer& peer_;
  Peer::Lanes& lanes_;
  PeerChannel& channel_;
  PeerMemory& memory_;
  std::unordered_map<uint32_t, Opening> opening_;  // by attempt
  std::unordered_map<Peer::LaneKey, Held> held_;   // the others' openings, not decided yet
};

}  // namespace aperture::nic
