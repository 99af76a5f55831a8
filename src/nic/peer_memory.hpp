// What two processes of one host share in memory: the segments that both map, the accessor slots in
// them, the peer's key file, and the doorbells of its engines.
//
// Whoever opens a lane picks it in a segment that it created itself, so each side has segments of
// its own making and others that it attached. The key file and one-sided copies are for peers of
// the same user; a peer of another user is rung through the socket. What records say of a lane's
// memory is written and read here alone, and so is everything that came with them checked here
// (descriptors, sizes, numbers). Calls that may throw bad_alloc say so; they leave nothing half
// done. Owned by the control thread.
#pragma once

#include <array>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>

#include "link/shm/segment.hpp"
#include "nic/peer.hpp"
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
  struct Doorbell;
  // What the other side has told of its end of a lane.
  struct TheirEnd {
    std::shared_ptr<Doorbell> doorbell;
    uint32_t domain = 0;
    bool direct = false;  // the kernel lets us copy from and to the peer under its keys
  };
  // Descriptors that go with a record, until it is sent.
  class Beside {
   public:
    std::span<const int> fds() const noexcept { return {fds_.data(), count_}; }

   private:
    friend class PeerMemory;
    void add(int fd) noexcept;
    std::array<int, wire::kMaxDescriptors> fds_{};
    size_t count_ = 0;
    UniqueFd doorbell_;  // one of them
  };

  // All outlive it. keys_read_only: what peers are handed.
  PeerMemory(PeerChannel& channel, protect::KeyTable& keys, const UniqueFd& keys_read_only,
             Shares& shares) noexcept;

  // Whether we may hold so much more for this peer: Shares. By exception std::bad_alloc.
  bool may_hold(const Holding& more) { return channel_.same_user() || share_.take(more); }

  // A free lane in a segment of ours. Errors: no_fds, no_memory, no_space. Throws.
  Result<Place> reserve();
  void release(const Place& place) noexcept;  // of another's segment: nothing to do
  // Which lane it is that the peer speaks of. Errors: protocol (there can be no such lane).
  static Result<Place> place_of(const wire::Open& open) noexcept;
  static Result<Place> place_of(const wire::LaneClose& close) noexcept;
  // The other way round, in a record of ours.
  static void name(const Place& place, wire::LaneClose& close) noexcept;

  // Says in the record what the peer has to know of our end of that lane, and gives what goes
  // with it: the segment with an opening; and, to the same user, a doorbell and our keys. Errors:
  // no_fds.
  Result<Beside> tell(const Place& place, int doorbell_fd, wire::Open& open) noexcept;
  Result<Beside> tell(const Place& place, int doorbell_fd, wire::Accept& accept) noexcept;
  // What the peer says of its own, and sends with it. Of an opening the segment comes first: a new
  // one is taken in. Errors: no_fds, no_space (there are as many as may be, or its user holds its
  // share), protocol, no_memory. Throws.
  Result<TheirEnd> learn(const Place& place, const wire::Open& open, Packet& packet);
  Result<TheirEnd> learn(const wire::Accept& accept, Packet& packet);
  // Our end of a lane. Errors: protocol, no_memory. Throws.
  Result<std::unique_ptr<link::Lane>> make_lane(const Place& place, const Address& remote,
                                                TheirEnd theirs);
  // For whoever detaches them in peace.
  WatchedSegments take_watched() noexcept { return std::move(watched_); }

 private:
  struct SharedSegment {
    std::shared_ptr<link::shm::Segment> segment;
    bool slots_watched = false;
  };
  struct LaneKeep;  // what a lane keeps alive

  const SharedSegment& at(const Place& place) const noexcept;
  Status attach(uint32_t number, UniqueFd fd);
  Result<std::shared_ptr<Doorbell>> doorbell(uint64_t engine, UniqueFd fd);
  Status add_bells(Beside& beside, int doorbell_fd, uint64_t key_bytes) noexcept;
  uint64_t key_bytes_for(const Place& place) const noexcept;
  bool learn_keys(uint64_t size_bytes, UniqueFd fd);
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
