// Memory set aside for what must not fail: small blocks that are taken when the heap has none.
//
// What one thread leaves for another, timers, and what a connection has become, as an event for the
// application, have nobody to report an error to: a lane that came up would be lost, and who waits
// would wait for ever. A few hundred of them can be under way while memory is short; kBlocks is far
// above what a process has at one time. Any thread.
#pragma once

#include <cstddef>
#include <new>

namespace aperture::reserve {

inline constexpr size_t kBlockBytes = 512;
inline constexpr size_t kBlocks = 512;

// From the heap, or else from the reserve; nullptr: neither has room. A reserve's block is for at
// most kBlockBytes.
void* take(size_t bytes) noexcept;
void give(void* block) noexcept;
// How many blocks of the reserve are taken.
size_t in_use() noexcept;

// For containers of nodes. Whoever has one says what happens once the reserve is used up as well.
template <typename T>
struct Allocator {
  using value_type = T;

  Allocator() noexcept = default;
  template <typename U>
  Allocator(const Allocator<U>&) noexcept {}  // NOLINT: containers convert it

  // By exception std::bad_alloc, once the reserve is used up as well.
  T* allocate(size_t count) {
    static_assert(sizeof(T) <= kBlockBytes);
    void* block = take(count * sizeof(T));
    if (block == nullptr) throw std::bad_alloc();
    return static_cast<T*>(block);
  }
  void deallocate(T* block, size_t) noexcept { give(block); }
  bool operator==(const Allocator&) const noexcept { return true; }
};

}  // namespace aperture::reserve
