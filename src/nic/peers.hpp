// The processes that this one talks to, and what is left of dead ones.
//
// A peer that owes somebody something is looked after, the more often the more is going on, and
// within a bounded share of the thread's time; the watch rests where none has for a while. The
// segments of a dead peer rest here until the key table is sure that nothing lands through their
// slots any more. Owned by the control thread.
#pragma once

#include <memory>
#include <vector>

#include "nic/doorway.hpp"
#include "nic/host_peer.hpp"
#include "nic/stream_peer.hpp"

namespace aperture::nic {

class Peers final : private link::PendingWatch, private SegmentsHost {
 public:
  // What is passed outlives it. limits: how long a newcomer may take to open a lane.
  Peers(const PeerContext& context, const Doorway::Limits& limits) noexcept
      : context_(context), limits_(limits) {}

  // One at the other end of that socket, not taken in yet; null if its user holds its share of what
  // we have (Shares). By exception std::bad_alloc.
  std::shared_ptr<HostPeer> make(ParentOnlyFd socket, const Credentials& credentials);
  // One at the other end of that TCP connection, with that ticket; likewise.
  std::shared_ptr<StreamPeer> make(ParentOnlyFd tcp, const wire::Id128& incarnation, Holder holder,
                                   uint64_t ticket) const;
  // Whether make() would refuse one of that user or host, as far as can be told before it comes.
  bool has_place_for(Holder user) const noexcept;
  // Takes it in, until remove(). By exception std::bad_alloc.
  void adopt(std::shared_ptr<Peer> peer);
  // Whether a process of this host that is not down has said that it is this one.
  bool has(const wire::Id128& incarnation) const noexcept;
  // The first such process of which is_it(peer) holds; nullptr: there is none.
  std::shared_ptr<HostPeer> find(const wire::Id128& incarnation, const auto& is_it) const noexcept {
    return find_process(
        [&](const HostPeer& peer) { return peer.incarnation() == incarnation && is_it(peer); });
  }
  // Likewise one of our user, to which that port belongs: it can be asked without a ticket.
  std::shared_ptr<HostPeer> find_at(const Address& remote) const noexcept;
  // It is down.
  void remove(Peer& peer) noexcept;
  // A lane is there: watches over it, and its owner wakes the watch when that rests.
  void watch(link::Lane& lane) noexcept;

  struct Count {
    size_t peers, lanes, resting;
  };
  Count count() const noexcept;

 private:
  std::shared_ptr<HostPeer> find_process(const auto& is_it) const noexcept {
    for (const auto& peer : peers_) {
      if (!peer->is_process() || peer->is_down()) continue;
      if (is_it(static_cast<const HostPeer&>(*peer)))
        return std::static_pointer_cast<HostPeer>(peer);
    }
    return nullptr;
  }
  void wake() noexcept override;
  void take_over(WatchedSegments segments) noexcept override;
  void keep_watch() noexcept;
  void watch_over_pending() noexcept;
  bool is_anything_pending() noexcept;
  bool rest() noexcept;
  void detach_resting() noexcept;

  const PeerContext context_;
  const Doorway::Limits& limits_;
  std::vector<std::shared_ptr<Peer>> peers_;
  ControlThread::TimerId watch_timer_ = 0;
  uint64_t last_stir_ns_ = 0;  // when anything last became pending, or moved
  WatchedSegments resting_;    // of dead peers
  ControlThread::TimerId rest_timer_ = 0;
};

}  // namespace aperture::nic
