// What a peer may do to our memory without our help, told by one message and enforced by one word.
//
// The owner sends a `permit` as a response when the lane is attached, and another whenever what is
// allowed changes. It names a number. The same number stands in the gate, a word of the request
// channel that only the owner writes; an accessor compares the two after its pin and fence
// (protect::PeerKeyView). So changing the gate, and waiting until no slot of this lane is pinned,
// ends every access that an older permit allowed: a queue pair or endpoint that is in error or gone
// is fenced as a region's close is. docs/revocation.md, "The gate of a lane".
//
// As a rule nobody is inside, or leaves at once. Whoever stays inside must not hold up the others
// of the engine: nobody waits with its lock. A queue pair that ends by itself goes on ending in its
// polls; a call that ends one waits between its looks (Engine::until).
//
// An initiator without a permit goes through the ring. Guarded by the engine's lock.
#pragma once

#include <cstdint>

#include "protect/accessors.hpp"
#include "transport/lane_end.hpp"

namespace aperture::transport {

inline constexpr uint16_t kPermitReads = 1;
inline constexpr uint16_t kPermitWrites = 2;
// The owner wants a notice of each such access that it has not executed itself.
inline constexpr uint16_t kTellOfReads = 4;
inline constexpr uint16_t kTellOfWrites = 8;

class Gate {
 public:
  // Another permit is in force from now on, and the peer hears of it as soon as there is room:
  // put(body, number, flags) lays the record out in one cell. Accesses under the permit before are
  // over when is_quiet() says so.
  template <typename PutRecord>
  void permit(LaneEnd& lane, protect::Accessors& accessors, uint16_t flags,
              PutRecord&& put) noexcept {
    move_to(lane, accessors, ++last_number_);
    constexpr auto kAccesses = static_cast<uint16_t>(kPermitReads | kPermitWrites);
    flags_ = lane->direct.owner_only ? static_cast<uint16_t>(flags & ~kAccesses) : flags;
    due_ = in_force_ = true;
    tell(lane, put);
  }
  // Tells what found no room. False: there is still none.
  template <typename PutRecord>
  bool tell(LaneEnd& lane, PutRecord&& put) noexcept {
    if (!due_) [[likely]]
      return true;
    if (!lane->response_tx.room(1)) return false;
    put(lane->response_tx.cells.body(), last_number_, flags_);
    lane.publish_response(1);
    due_ = false;
    return true;
  }
  // Nothing else of the peer's begins. True: and nothing that it has begun lands any more.
  bool begin_to_shut(LaneEnd& lane, protect::Accessors& accessors) noexcept {
    if (in_force_) move_to(lane, accessors, kShut);
    due_ = in_force_ = false;
    return is_quiet(lane, accessors);
  }
  // The same at once, for whoever has not begun before: blocks for as long as it takes.
  void shut(LaneEnd& lane, protect::Accessors& accessors) noexcept;
  // Nothing lands that began before the gate last moved. Looks itself at most every millisecond.
  // True also when the kernel has held the peer in its copy for a second, which is told in the log.
  bool is_quiet(LaneEnd& lane, protect::Accessors& accessors) noexcept {
    return moved_at_ns_ == 0 || look(lane, accessors);
  }
  bool is_due() const noexcept { return due_; }

 private:
  static constexpr uint64_t kShut = 0;
  void move_to(LaneEnd& lane, protect::Accessors& accessors, uint64_t number) noexcept;
  bool look(LaneEnd& lane, protect::Accessors& accessors) noexcept;

  uint64_t last_number_ = 0;  // of our permits: none is used twice, whatever lanes come and go
  uint64_t moved_at_ns_ = 0;  // somebody may be inside since before then; 0: nobody
  uint64_t look_after_ns_ = 0;
  bool in_force_ = false;  // the gate is open
  uint16_t flags_ = 0;
  bool due_ = false;  // the peer has not heard of it
};

}  // namespace aperture::transport
