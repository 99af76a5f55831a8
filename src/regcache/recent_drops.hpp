// Memory whose pages were told to be dropped a moment ago (madvise): the kernel tells before it
// does so, and a resource made in between would hold pages that are about to go. Nothing is kept
// for such memory until that is surely over. Guarded by the cache's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>

#include "regcache/range.hpp"

namespace aperture::regcache {

class RecentDrops {
 public:
  // How long a thread that has been told to go on may need until its pages are gone.
  static constexpr uint64_t kLongNs = 100'000'000;

  void note(const Range& range, uint64_t now_ns) noexcept {
    assert(now_ns != 0 && !range.is_empty());
    Drop& oldest =
        *std::min_element(drops_.begin(), drops_.end(),
                          [](const Drop& a, const Drop& b) { return a.at_ns < b.at_ns; });
    // without room nothing at all is kept for as long
    if (oldest.at_ns + kLongNs > now_ns && oldest.at_ns != 0) all_until_ns_ = now_ns + kLongNs;
    assert(oldest.at_ns <= now_ns);
    oldest = {range, now_ns};
  }
  bool any(const Range& range, uint64_t now_ns) const noexcept {
    return now_ns < all_until_ns_ ||
           std::any_of(drops_.begin(), drops_.end(), [&](const Drop& drop) {
             return drop.at_ns + kLongNs > now_ns && drop.at_ns != 0 && drop.range.overlaps(range);
           });
  }

 private:
  struct Drop {
    Range range;
    uint64_t at_ns = 0;  // 0: none
  };
  std::array<Drop, 16> drops_;
  uint64_t all_until_ns_ = 0;
};

}  // namespace aperture::regcache
