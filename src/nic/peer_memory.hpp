// What two processes of one host share in memory: the segments that both map, the accessor slots in
// them, the peer's key file, and the doorbells of its engines.
//
// Whoever opens a lane picks it in a segment that it created itself, so each side has segments of
// its own making and others that it attached. The key file and one-sided copies are for peers of
// the same user; a peer of another user is rung through the socket. Everything that came from the
// peer (descriptors, sizes, numbers) is checked here. Calls that may throw bad_alloc say so; they
// leave nothing half done. Owned by the control thread.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "link/shm/segment.hpp"
#include "nic/peer_channel.hpp"
#include "nic/shares.hpp"
#include "protect/peer_key_view.hpp"

namespace aperture::protect {
class KeyTable;
}  // namespace aperture::protect

namespace aperture::nic {

// Segments whose accessor slots our key table still watches.
using WatchedSegments = std::list<std::shared_ptr<link::shm::Segment>>;

class PeerMemory {
 public:
  struct Place {
    bool created_here = false;  // who created the segment
    uint32_t segment = 0;       // its creator's number for it
    uint32_t index = 0;         // of the lane in it
  };
  struct Doorbell {       // one of the two
    UniqueFd pipe;        // as we opened it
    ParentOnlyFd socket;  // the channel's once more: Ring is sent to it
    wire::PeerPacket ring;
  };

  // All outlive it. keys_read_only: what peers are handed.
  PeerMemory(PeerChannel& channel, protect::KeyTable& keys, const UniqueFd& keys_read_only,
             Shares& shares) noexcept;

  // Whether we may hold so much more for this peer: Shares. By exception std::bad_alloc.
  bool may_hold(const Holding& more) { return channel_.same_user() || share_.take(more); }

  // A free lane in a segment of ours. Errors: no_fds, no_memory, no_space. Throws.
  Result<Place> reserve();
  void release(const Place& place) noexcept;  // of another's segment: nothing to do
  // The peer's segment of that number, which comes with its first lane. Errors: no_fds, no_space
  // (there are as many as may be, or its user holds its share), protocol, no_memory. Throws.
  Status attach(uint32_t number, UniqueFd fd);
  int segment_fd(const Place& place) const noexcept;
  // What the peer is told of our key file beside a lane there; 0: it is not handed out.
  uint64_t key_bytes_for(const Place& place) const noexcept;
  // What the peer tells of its own. True if the kernel lets us copy from and to the peer under its
  // keys. Throws.
  bool learn_keys(uint64_t size_bytes, UniqueFd fd);
  // By the peer's number for its engine. Errors: no_fds, protocol. Throws.
  Result<std::shared_ptr<Doorbell>> doorbell(uint64_t engine, UniqueFd fd);
  // Our end of a lane. Errors: protocol, no_memory. Throws.
  Result<std::unique_ptr<link::Lane>> make_lane(const Place& place, const Address& remote,
                                                uint32_t domain, std::shared_ptr<Doorbell> doorbell,
                                                bool direct);
  // For the host to detach in peace.
  WatchedSegments take_watched() noexcept { return std::move(watched_); }

 private:
  struct SharedSegment {
    std::shared_ptr<link::shm::Segment> segment;
    bool slots_watched = false;
  };
  struct LaneKeep;  // what a lane keeps alive

  const SharedSegment& at(const Place& place) const noexcept;
  void watch_slots(SharedSegment& shared);
  void tell_whose(const SharedSegment& shared) noexcept;

  PeerChannel& channel_;
  Shares::Share share_;  // of another user
  protect::KeyTable& own_keys_;
  const UniqueFd& keys_read_only_;
  std::shared_ptr<const protect::PeerKeyView> keys_;
  bool keys_probed_ = false;                    // the kernel lets us, as keys_ tells
  std::map<uint32_t, SharedSegment> created_;   // by our number
  std::map<uint32_t, SharedSegment> attached_;  // by the peer's number
  uint32_t next_segment_ = 1;
  WatchedSegments watched_;
  std::unordered_map<uint64_t, std::weak_ptr<Doorbell>> doorbells_;  // by the peer's number
};

}  // namespace aperture::nic
