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
      kept.erase(kept.begin() + static_cast<ptrdiff_t>(i));
      kept_bytes_ -= size_of(which);
      return at;
    }
  }
  return static_cast<std::byte*>(driver.take_host(size_of(which)));
}

bool StagingMemory::keep(memory::Driver& driver, std::byte* at, size_t which) noexcept {
  const std::lock_guard guard(mutex_);
  if (!no_throw([&] { kept_[which].push_back({&driver, at, ++last_number_}); })) return false;
  kept_bytes_ += size_of(which);
  return true;
}

bool StagingMemory::take_surplus(Piece& piece, size_t& which) noexcept {
  const std::lock_guard guard(mutex_);
  if (kept_bytes_ <= kMostKept) return false;
  uint64_t first = ~uint64_t{0};
  for (size_t i = 0; i < kClasses; ++i) {
    if (kept_[i].empty() || kept_[i].front().number >= first) continue;
    first = kept_[i].front().number;
    which = i;
  }
  assert(first != ~uint64_t{0});
  piece = kept_[which].front();
  kept_[which].erase(kept_[which].begin());
  kept_bytes_ -= size_of(which);
  return true;
}

void StagingMemory::give(memory::Driver& driver, std::byte* at, size_t n) noexcept {
  if (n > kLargest) return std::free(at);
  size_t which = class_of(n);
  if (!keep(driver, at, which)) return driver.give_host(at, size_of(which));
  for (Piece surplus; take_surplus(surplus, which);) {
    surplus.driver->give_host(surplus.at, size_of(which));
  }
}

}  // namespace aperture::provider
