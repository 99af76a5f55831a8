// A pool of objects of one type: chunks that are never given back, and a free list.
//
// take() allocates only when every object planned for is out, so a path that stays within the size
// planned for never does. An object is made when it is first taken: until then its memory is not
// touched, and costs no page. Objects keep their last contents. Not thread-safe.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "base/invariant.hpp"

namespace aperture {

template <typename T>
class Pool {
 public:
  // planned: objects whose memory is there at once; most: objects at all.
  Pool(size_t planned, size_t most) noexcept : most_(most) { grow(planned); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    size_t left = made_;
    for (const Chunk& chunk : chunks_) {
      const size_t made_here = std::min(left, chunk.n);
      std::destroy_n(chunk.first, made_here);
      left -= made_here;
      std::allocator<T>().deallocate(chunk.first, chunk.n);
    }
    assert(left == 0);
  }

  // nullptr if there are `most` or memory has run out.
  T* take() noexcept {
    if (n_free_ == 0) [[unlikely]]
      return make();
    APERTURE_DEBUG_ASSERT(n_free_ <= made_);
    return free_[--n_free_];
  }
  void give(T* item) noexcept {
    APERTURE_DEBUG_ASSERT(item != nullptr && n_free_ < made_);
    free_[n_free_++] = item;  // a place for each: see grow
  }
  size_t out() const noexcept { return made_ - n_free_; }

 private:
  static constexpr size_t kChunk = 64;  // objects, or a quarter of all where that is more
  struct Chunk {
    T* first;
    size_t n;
  };

  [[gnu::noinline]] T* make() noexcept {
    if (made_ == total_ && !grow(std::max(kChunk, total_ / 4)) && !grow(kChunk)) return nullptr;
    const Chunk& chunk = chunks_.back();
    T* const at = chunk.first + (chunk.n - (total_ - made_));
    ++made_;
    return ::new (at) T();
  }

  // All there are have been made, and are out.
  bool grow(size_t n) noexcept {
    assert(made_ == total_ && n_free_ == 0);
    n = std::min(n, most_ - total_);
    if (n == 0) return false;
    try {
      auto places = std::make_unique_for_overwrite<T*[]>(total_ + n);
      chunks_.reserve(chunks_.size() + 1);
      chunks_.push_back({std::allocator<T>().allocate(n), n});
      free_ = std::move(places);
    } catch (const std::bad_alloc&) {
      return false;
    }
    total_ += n;
    return true;
  }

  const size_t most_;
  std::vector<Chunk> chunks_;   // all but the last are full of objects
  std::unique_ptr<T*[]> free_;  // a place for each; the first n_free_ are in the pool
  size_t n_free_ = 0;
  size_t made_ = 0;
  size_t total_ = 0;
};

}  // namespace aperture
