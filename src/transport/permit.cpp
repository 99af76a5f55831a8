// Moving the gate of a lane: see permit.hpp.
#include "transport/permit.hpp"

#include <sched.h>

#include <algorithm>
#include <cassert>

#include "base/clock.hpp"
#include "base/invariant.hpp"
#include "base/log.hpp"

namespace aperture::transport {

namespace {

// A copy of one chunk takes microseconds; a stopped or dead accessor is recognised. Longer than
// that takes only one that the kernel holds in the middle of its copy, or one that lies.
constexpr uint64_t kLongestWaitNs = 1'000'000'000;
constexpr uint64_t kLookPauseNs = 1'000'000;

}  // namespace

void Gate::move_to(LaneEnd& lane, protect::Accessors& accessors, uint64_t number) noexcept {
  APERTURE_DEBUG_ASSERT(number == kShut || number == last_number_);  // none is used twice
  protect::Accessors::move_gate(lane->request_rx.words().gate, number);
  // under a first permit nobody can have been inside
  const bool anybody = in_force_ || moved_at_ns_ != 0;
  moved_at_ns_ = anybody && lane->direct.watched != nullptr ? now_ns() : 0;
  look_after_ns_ = 0;
  static_cast<void>(is_quiet(lane, accessors));  // who is inside has its copy cut short by the look
}

bool Gate::look(LaneEnd& lane, protect::Accessors& accessors) noexcept {
  assert(moved_at_ns_ != 0);
  const uint64_t now = now_ns();
  if (now < look_after_ns_) return false;
  const bool quiet = accessors.is_lane_quiet(lane->direct.watched, lane->direct.lane);
  if (!quiet && now - moved_at_ns_ < kLongestWaitNs) {
    look_after_ns_ = now + std::min(now - moved_at_ns_, kLookPauseNs);
    return false;
  }
  moved_at_ns_ = 0;
  if (!quiet) {
    APERTURE_WARN(
        "%s is still in the middle of a direct copy that began before its queue pair was closed to "
        "it: the kernel holds it there (a frozen process, or a page fault that is not answered)",
        lane->remote.print().c_str());
  }
  return true;
}

void Gate::shut(LaneEnd& lane, protect::Accessors& accessors) noexcept {
  for (begin_to_shut(lane, accessors); !is_quiet(lane, accessors);) ::sched_yield();
  APERTURE_DEBUG_ASSERT(!in_force_ && !due_ && moved_at_ns_ == 0);
}

}  // namespace aperture::transport
