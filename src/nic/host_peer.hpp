// A process of this host, and the lanes between its endpoints and ours.
//
// It is one incarnation of one process: its channel (peer_channel.hpp) says who it is and carries
// packets, its memory (peer_memory.hpp) is what both map, and host_lanes.hpp tells how lanes in it
// come and go. Owned by the control thread.
#pragma once

#include <memory>

#include "nic/deadline.hpp"
#include "nic/host_lanes.hpp"
#include "nic/known_ports.hpp"
#include "nic/peer.hpp"
#include "nic/peer_channel.hpp"
#include "nic/peer_memory.hpp"

namespace aperture::nic {

// Who has the segments of processes that are gone.
class SegmentsHost {
 public:
  virtual ~SegmentsHost() = default;
  // Until the key table watches their accessor slots no more.
  virtual void take_over(WatchedSegments segments) noexcept = 0;
};

class HostPeer final : public Peer, private PeerChannelHost {
 public:
  // By exception std::bad_alloc. segments outlives it.
  HostPeer(const PeerContext& context, SegmentsHost& segments, ParentOnlyFd socket,
           const Credentials& credentials);

  // See PeerChannel. on_peer_joined() follows begin().
  Status begin(const wire::Id128& nonce, const wire::Id128& expected,
               const wire::Id128& incarnation) noexcept;
  Status answer(const wire::Join& join, const wire::Id128& nonce) noexcept;

  // Who is at the other end, and whether it has joined.
  const PeerChannel& channel() const noexcept { return channel_; }
  KnownPorts ports;  // its own

  // Peer
  const wire::Id128& incarnation() const noexcept override { return channel_.incarnation(); }
  Name name() const noexcept override;
  bool is_process() const noexcept override { return true; }
  bool is_down() const noexcept override { return channel_.is_down(); }
  bool speaks_for(const Address& source, PortOwners& owners) noexcept override;
  bool may_ask_at_once() const noexcept override { return channel_.same_user(); }
  void note_port(const Address& remote) noexcept override;
  bool may_hold(const Holding& more) override { return memory_.may_hold(more); }

  Status open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
              const wire::Answer& offer, uint32_t attempt,
              const wire::PrivateData* request) noexcept override;
  Result<std::unique_ptr<link::Lane>> opened(const wire::Accept& accept, Packet& packet,
                                             std::shared_ptr<PeerLane>& record) noexcept override;
  void open_rejected(uint32_t attempt) noexcept override;
  Result<std::shared_ptr<PeerLane>> hold(const LocalEnd& end, const wire::Open& open,
                                         const wire::Statement& statement,
                                         Packet& packet) noexcept override;
  Result<std::unique_ptr<link::Lane>> admit(const LocalEnd& end, PeerLane& record,
                                            const wire::PrivateData* data) noexcept override;
  void let_go(PeerLane& record) noexcept override;
  void withdraw(uint32_t attempt) noexcept override;
  void close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept override;

  void begin_watch(link::Lane& lane) override { context_.host.watch(lane); }
  Pending look_after_pending() noexcept override;
  void open_within(uint64_t ns) noexcept override;
  void go_down(Errc why) noexcept override;

 private:
  // PeerChannelHost
  std::shared_ptr<void> keep() noexcept override { return shared_from_this(); }
  void on_joined() noexcept override;
  bool on_packet(wire::PeerMessage kind, Packet& packet) noexcept override;
  void on_drained() noexcept override;
  void on_channel_lost(Errc why) noexcept override { go_down(why); }

  void say(const wire::PeerPacket& packet) noexcept override;
  void time_newcomer() noexcept;

  const PeerContext context_;
  SegmentsHost& segments_;
  PeerChannel channel_;
  PeerMemory memory_;
  HostLanes shared_lanes_{*this, lanes_, channel_, memory_};
  Deadline newcomer_;
  uint64_t newcomer_ns_ = 0;  // how long it may be here without a lane; 0: it has had one
};

}  // namespace aperture::nic
