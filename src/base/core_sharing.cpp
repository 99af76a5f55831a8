// Yielding, and what it tells: see core_sharing.hpp.
#include "base/core_sharing.hpp"

#include <sched.h>

#include <algorithm>
#include <cassert>

namespace aperture {

bool CoreSharing::is_due(bool vain, uint64_t now_ticks) noexcept {
  assert(left_ <= kPolls);  // count() was not asked again once it had said so
  left_ = kPolls;
  if (!vain || since_ == 0) {
    since_ = now_ticks;
    return false;
  }
  // relaxed, both: hints that order nothing; at worst one yield more or less
  since_ = std::max(since_, returned_at_.load(std::memory_order_relaxed));
  const uint64_t patience_ns = patience_ns_.load(std::memory_order_relaxed);
  return now_ticks > since_ && now_ticks - since_ >= ticks_from_ns(patience_ns);
}

void CoreSharing::give_away() noexcept {
  const uint64_t begun = ticks();
  ::sched_yield();
  const uint64_t over = ticks();
  const bool gave = over - begun >= ticks_from_ns(kGaveNs);
  // relaxed, all: as in is_due()
  const uint64_t patience_ns = patience_ns_.load(std::memory_order_relaxed);
  assert(patience_ns >= kLeastPatienceNs && patience_ns <= kMostPatienceNs);
  patience_ns_.store(next_patience_ns(patience_ns, gave), std::memory_order_relaxed);
  returned_at_.store(over, std::memory_order_relaxed);
}

}  // namespace aperture
