// Objects by a number: a hash table whose look-up is one multiplication and, mostly, one line.
//
// Open addressing with linear probing, at most half full, so that every probe ends at an empty
// place; a removal moves back what was probed past it, so there are no tombstones. A division by a
// prime and a node for each element (std::unordered_map) cost a bind of a memory window a tenth of
// its time, and three cache misses among a million regions. Guarded by its owner's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/invariant.hpp"

namespace aperture {

template <typename T>
class NumberMap {
 public:
  // Replaces what had the number. Throws bad_alloc, and is unchanged then.
  void set(uint32_t number, T& object) {
    if (2 * (size_ + 1) > capacity()) grow();
    Place& place = places_[place_of(number)];
    if (place.object == nullptr) ++size_;
    place = {number, &object};
    APERTURE_DEBUG_ASSERT(2 * size_ <= capacity());
  }
  // Unknown numbers are ignored.
  void remove(uint32_t number) noexcept {
    if (size_ == 0) return;
    size_t gap = place_of(number);
    if (places_[gap].object == nullptr) return;
    --size_;
    for (size_t at = next(gap); places_[at].object != nullptr; at = next(at)) {
      // it may go back to the gap if its own place does not lie between the gap and it
      const size_t own = home_of(places_[at].number);
      if (((at - own) & mask_) < ((at - gap) & mask_)) continue;
      places_[gap] = places_[at];
      gap = at;
    }
    places_[gap] = {};
    APERTURE_DEBUG_ASSERT(find(number) == nullptr);
  }
  T* find(uint32_t number) const noexcept {
    return size_ == 0 ? nullptr : places_[place_of(number)].object;
  }
  size_t size() const noexcept { return size_; }

 private:
  struct Place {
    uint32_t number = 0;
    T* object = nullptr;  // nullptr: empty
  };
  static constexpr size_t kSmallest = 16;  // a power of two

  size_t capacity() const noexcept { return places_ == nullptr ? 0 : mask_ + 1; }
  size_t next(size_t at) const noexcept { return (at + 1) & mask_; }
  size_t home_of(uint32_t number) const noexcept {
    return static_cast<size_t>(uint64_t{number} * 0x9e3779b97f4a7c15u >> 32) & mask_;
  }
  // Where it is, or the empty place where it would be.
  size_t place_of(uint32_t number) const noexcept {
    size_t at = home_of(number);
    while (places_[at].object != nullptr && places_[at].number != number) at = next(at);
    return at;
  }
  void grow() {
    const size_t before = capacity();
    const size_t after = before == 0 ? kSmallest : 2 * before;
    std::unique_ptr<Place[]> old = std::exchange(places_, std::make_unique<Place[]>(after));
    mask_ = after - 1;
    for (size_t i = 0; i < before; ++i) {
      if (old[i].object != nullptr) places_[place_of(old[i].number)] = old[i];
    }
  }

  std::unique_ptr<Place[]> places_;
  size_t mask_ = 0;
  size_t size_ = 0;
};

}  // namespace aperture
