// The entries that can be found, those of the same rights in the order of their addresses.
//
// Entries of the same rights do not overlap; those of different rights may. Room for all of them is
// there from the beginning, so that nothing here allocates or frees: a monitor may call in while
// the application's allocator is locked. Guarded by the cache's lock.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <memory>
#include <new>

#include "base/errc.hpp"
#include "regcache/entry.hpp"

namespace aperture::regcache {

class Index {
 public:
  // Room for so many of each kind of rights. Errors: no_memory. To be called once, first.
  Status reserve(size_t most) noexcept;

  size_t count() const noexcept { return count_; }
  bool has_room() const noexcept { return count_ < most_; }

  // One that covers the range and allows that, or nullptr.
  Entry* find(const Range& range, Access access) const noexcept;
  // `range` and all of that kind of rights that overlap it, in one.
  Range joined(const Range& range, Access access) const noexcept;
  // Overlaps none of its kind, and there is room.
  void insert(Entry& entry) noexcept;
  void remove(Entry& entry) noexcept;
  // Whether any of any kind overlaps it.
  bool any(const Range& range) const noexcept;
  // Takes out each that overlaps it, and calls visit(entry).
  template <typename Visit>
  void take_out(const Range& range, Visit&& visit) noexcept {
    for (size_t kind = 0; kind < kKinds; ++kind) take_out_of(kinds_[kind], range, visit);
  }
  template <typename Visit>
  void take_out(const Range& range, Access access, Visit&& visit) noexcept {
    take_out_of(of(access), range, visit);
  }

 private:
  static constexpr size_t kKinds = 3;
  struct Kind {
    std::unique_ptr<Entry*[]> entries;
    size_t count = 0;
  };

  Kind& of(Access access) noexcept { return kinds_[static_cast<size_t>(access) - 1]; }
  const Kind& of(Access access) const noexcept { return kinds_[static_cast<size_t>(access) - 1]; }
  // The first whose end lies behind that address.
  static size_t first_behind(const Kind& kind, uint64_t addr) noexcept;

  template <typename Visit>
  void take_out_of(Kind& kind, const Range& range, Visit& visit) noexcept {
    const size_t first = first_behind(kind, range.begin);
    size_t last = first;
    for (; last < kind.count && kind.entries[last]->range.begin < range.end; ++last) {
      assert(kind.entries[last]->kept);
      kind.entries[last]->kept = false;
      visit(*kind.entries[last]);
    }
    std::copy(&kind.entries[last], &kind.entries[kind.count], &kind.entries[first]);
    kind.count -= last - first;
    count_ -= last - first;
  }

  std::array<Kind, kKinds> kinds_;
  size_t count_ = 0;
  size_t most_ = 0;
};

}  // namespace aperture::regcache
