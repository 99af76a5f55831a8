// Keeping pinned memory: see staging_memory.hpp.
#include "provider/staging_memory.hpp"

#include <algorithm>
#include <cassert>
#include <cstdlib>

#include "base/no_throw.hpp"

namespace aperture::provider {

StagingMemory::~StagingMemory() {
  for (size_t which = 0; which < kClasses; ++which) {
    for (const Piece& piece : kept_[which]) piece.driver->give_host(piece.at, size_of(which));
  }
}

size_t StagingMemory::class_of(size_t n) noexcept {
  assert(n != 0 && n <= kLargest);
  return static_cast<size_t>(std::bit_width((std::max(n, kSmallest) - 1) / kSmallest));
}

std::byte* StagingMemory::take(memory::Driver& driver, size_t n) noexcept {
  if (n > kLargest) return static_cast<std::byte*>(std::malloc(n));
  const size_t which = class_of(n);
  assert(size_of(which) >= n);
  {
    const std::lock_guard guard(mutex_);
    std::vector<Piece>& kept = kept_[which];
    for (size_t i = kept.size(); i-- > 0;) {
      if (kept[i].driver != &driver) continue;
      std::byte* const at = kept[i].at;
      kept[i] = kept.back();
      kept.pop_back();
      kept_bytes_ -= size_of(which);
      return at;
    }
  }
  return static_cast<std::byte*>(driver.take_host(size_of(which)));
}

void StagingMemory::give(memory::Driver& driver, std::byte* at, size_t n) noexcept {
  if (n > kLargest) return std::free(at);
  const size_t which = class_of(n);
  {
    const std::lock_guard guard(mutex_);
    if (kept_bytes_ + size_of(which) <= kMostKept && no_throw([&] {
                                                       kept_[which].push_back({&driver, at});
                                                     }).ok()) {
      kept_bytes_ += size_of(which);
      return;
    }
  }
  driver.give_host(at, size_of(which));
}

}  // namespace aperture::provider
