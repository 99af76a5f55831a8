// Going to sleep and waking up: see engine_sleep.hpp.
#include "nic/engine_sleep.hpp"

#include <cassert>

#include "base/barrier.hpp"

namespace aperture::nic {

bool EngineSleep::prepare() noexcept {
  Wakers& wakers = parts_.wakers;
  wakers.drain();
  parts_.links.flush(true);
  if (needs_polling()) return false;
  wakers.arm(true);
  set_asleep(true);
  const bool any = fall_asleep();
  if (!any && needs_later_look()) {
    wakers.look_again_later();
  } else {
    wakers.look_no_more();
  }
  if (any) wake_up();
  return !any;
}

// The peers ring from now on. True: something had arrived before.
bool EngineSleep::fall_asleep() noexcept {
  const auto& [wakers, qps, pollables, links, posted, auto_progress] = parts_;
  ++sleeps_;  // each time: what the doorbell was rung for before may have been taken back
  qps.fall_asleep(sleeps_);
  pollables.fall_asleep(sleeps_);
  full_fence();  // pairs with the producers' fence between publishing and ChannelTx::must_ring
  if (!qps.all_peers_fence() || !pollables.all_peers_fence()) heavy_barrier();
  // a link that brings up what comes knows of it before the queue pairs do
  return posted.any() || qps.any_has_work() || pollables.any_has_work() ||
         links.any_needs_polling();
}

// What prepare() has found then is not so any more. Where it is peers that are waited for, they
// ring.
void EngineSleep::look_at_posted() noexcept {
  assert(asleep_);
  Wakers& wakers = parts_.wakers;
  if (needs_polling()) return wakers.ring();
  const bool qps_too_deep = parts_.qps.any_sleeps_too_deep();
  if ((parts_.pollables.any_sleeps_too_deep() || qps_too_deep) && fall_asleep()) {
    wakers.ring();
  } else if (!wakers.looks_again() && needs_later_look()) {
    wakers.look_again_later();
  }
}

bool EngineSleep::needs_polling() const noexcept {
  return parts_.qps.any_needs_polling() || parts_.pollables.any_needs_polling() ||
         parts_.links.any_needs_polling();
}

bool EngineSleep::needs_later_look() const noexcept {
  return parts_.qps.any_needs_later_look() || parts_.pollables.any_needs_later_look();
}

void EngineSleep::wake_up() noexcept {
  assert(asleep_);
  parts_.wakers.wake_up();
  set_asleep(false);
  parts_.qps.wake_up();
  parts_.pollables.wake_up();
  parts_.auto_progress.start_ticking();
}

}  // namespace aperture::nic
