// Drawing keys in advance: see drawn_keys.hpp.
#include "protect/drawn_keys.hpp"

#include <cassert>
#include <utility>

#include "base/invariant.hpp"
#include "base/random.hpp"

namespace aperture::protect {

// The oldest of the keys drawn in advance, for which a new one is drawn.
DrawnKeys::Ahead DrawnKeys::next(DomainId pd, const KeyChains& chains) noexcept {
  if (fresh_at_ == fresh_.size()) {
    random_bytes(fresh_.data(), sizeof fresh_);
    fresh_at_ = 0;
  }
  APERTURE_DEBUG_ASSERT(fresh_at_ < fresh_.size());
  const uint64_t key = fresh_[fresh_at_++];
  const uint64_t hash = hash_key(pd, key);
  const Ahead oldest = std::exchange(ahead_[ahead_at_ % kAhead], {{key, hash}, pd});
  ++ahead_at_;
  if (!chains.is_large()) return oldest;
  const auto drawn = [this](size_t ago) {
    return ahead_[(ahead_at_ - 1 - ago) % kAhead].drawn.hash;
  };
  APERTURE_DEBUG_ASSERT(drawn(0) == hash);
  chains.fetch_bucket(hash);
  chains.fetch_first(drawn(kAhead / 3));
  chains.fetch_second(drawn(kAhead / 3 * 2));
  return oldest;
}

DrawnKeys::Drawn DrawnKeys::draw(DomainId pd, const KeyChains& chains) noexcept {
  assert(pd != 0);
  for (;;) {
    Ahead ahead = next(pd, chains);
    Drawn& drawn = ahead.drawn;
    uint32_t resting;
    // 0 also stands for the places that were never filled
    if (drawn.key == 0 || drawn.key == kNotAvail) continue;
    if (ahead.pd != pd) drawn.hash = hash_key(pd, drawn.key);
    if (!chains.is_taken(drawn.hash, pd, drawn.key, resting) && resting == 0) return drawn;
  }
}

}  // namespace aperture::protect
