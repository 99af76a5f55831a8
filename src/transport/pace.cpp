// When to rest: see pace.hpp.
#include "transport/pace.hpp"

#include <algorithm>

#include "base/invariant.hpp"
#include "base/ticks_in.hpp"
#include "transport/tuning.hpp"

namespace aperture::transport {

namespace {

constexpr uint32_t kMostInVain = 6;  // rests are put off by as many doublings
constexpr uint32_t kJudged = 2;      // the group after a rest that shows what it was good for

}  // namespace

bool Pace::is_rest_due(uint64_t position, uint64_t now) noexcept {
  APERTURE_DEBUG_ASSERT(position > from_ && in_vain_ <= kMostInVain);
  const uint64_t cells = position - from_;
  const bool timed = since_ != 0;
  const bool slow = timed && now - since_ > cells * ticks_in<kChasingNs>();
  from_ = position;
  since_ = now;
  if (!timed) return false;
  if (since_rest_ != 0 && --since_rest_ == 0) {
    in_vain_ = slow ? std::min(in_vain_ + 1, kMostInVain) : 0;
    put_off_ = slow ? 1u << in_vain_ : 0;
  }
  if (since_rest_ != 0) return false;  // its lines are still to come
  if (!slow) return false;
  if (put_off_ != 0) {
    --put_off_;
    return false;
  }
  since_rest_ = kJudged;
  return true;
}

void Pace::rest() noexcept {
  APERTURE_DEBUG_ASSERT(since_rest_ == kJudged);
  const uint64_t end = since_ + ticks_in<kRestNs>();
  while (ticks() < end) cpu_relax();
  since_ = ticks();
}

}  // namespace aperture::transport
