// A process of this host, and the lanes between its endpoints and ours.
//
// It is one incarnation of one process: its channel (peer_channel.hpp) says who it is and carries
// packets, its memory (peer_memory.hpp) is what both map. Whoever opens a lane takes it back when
// both sides have closed it, with LaneClose. Owned by the control thread.
#pragma once

#include <array>
#include <memory>
#include <unordered_map>

#include "nic/peer.hpp"
#include "nic/peer_channel.hpp"
#include "nic/peer_memory.hpp"

namespace aperture::nic {

class HostPeer final : public Peer, private PeerChannelHost {
 public:
  // By exception std::bad_alloc.
  HostPeer(const PeerContext& context, ParentOnlyFd socket, const Credentials& credentials);

  // See PeerChannel. on_peer_joined() follows begin().
  Status begin(const wire::Id128& nonce, const wire::Id128& expected,
               const wire::Id128& incarnation) noexcept;
  Status answer(const wire::Join& join, const wire::Id128& nonce) noexcept;

  bool joined() const noexcept { return channel_.joined(); }
  uid_t uid() const noexcept { return channel_.uid(); }
  // The owner of the port at that address, in another network namespace, has told its socket.
  void note_met_at(const Address& remote) noexcept { met_at_ = remote.of_port().without_key(); }
  bool was_met_at(const Address& remote) const noexcept {
    return met_at_ == remote.of_port().without_key();
  }
  // The port at that address is known to be its own: note_port(). It may have closed it since.
  bool has_port(const Address& at) const noexcept;

  // Peer
  const wire::Id128& incarnation() const noexcept override { return channel_.incarnation(); }
  Name name() const noexcept override;
  bool is_process() const noexcept override { return true; }
  bool is_down() const noexcept override { return channel_.is_down(); }
  bool speaks_for(const Address& source, PortOwners& owners) noexcept override;
  bool may_ask_at_once() const noexcept override { return channel_.same_user(); }
  void note_port(const Address& remote) noexcept override;
  std::span<const std::byte> proved_beside(const Packet&) noexcept override { return {}; }
  bool may_hold(const Holding& more) override { return memory_.may_hold(more); }
  WatchedSegments take_watched_segments() noexcept override { return memory_.take_watched(); }

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
    LaneKey key = 0;
    wire::Statement statement;
    std::shared_ptr<const Secret> auth_key;
  };
  static LaneKey key_of(const PeerMemory::Place& place) noexcept;
  // Every record of ours is of that kind.
  static const PeerMemory::Place& place_of(const PeerLane& record) noexcept {
    return static_cast<const SharedLane&>(record).place;
  }

  // PeerChannelHost
  std::shared_ptr<void> keep() noexcept override { return shared_from_this(); }
  void on_joined() noexcept override;
  bool on_packet(wire::PeerMessage kind, Packet& packet) noexcept override;
  void on_drained() noexcept override;
  void on_channel_lost(Errc why) noexcept override { go_down(why); }

  std::shared_ptr<PeerLane> make_record(const PeerMemory::Place& place, ListenerId listener,
                                        const Address& remote);
  bool handle_lane_close(const wire::LaneClose& close) noexcept;
  void say(const wire::PeerPacket& packet) noexcept override;
  void finish(PeerLane& record) noexcept;
  void time_newcomer() noexcept;
  void note_lane() noexcept;

  const PeerContext context_;
  PeerChannel channel_;
  PeerMemory memory_;
  ControlThread::TimerId newcomer_timer_ = 0;
  uint64_t newcomer_ns_ = 0;       // how long it may be here without a lane; 0: it has had one
  std::array<Address, 32> ports_;  // of it: note_port(); the oldest makes room
  size_t ports_noted_ = 0;
  Address met_at_;                                 // note_met_at(); without a port: not so
  std::unordered_map<uint32_t, Opening> opening_;  // by attempt
  std::unordered_map<LaneKey, Held> held_;         // the others' openings, not decided yet
};

}  // namespace aperture::nic
