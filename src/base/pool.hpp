// A pool of objects of one type: chunks that are never given back, and a free list.
//
// take() allocates only when every object is out, so a path that stays within the size planned for
// never does. Objects keep their last contents. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "base/invariant.hpp"

namespace aperture {

template <typename T>
class Pool {
 public:
  // planned: objects made at once; most: objects at all.
  Pool(size_t planned, size_t most) noexcept : most_(most) { grow(planned); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // nullptr if there are `most` or memory has run out.
  T* take() noexcept {
    if (n_free_ == 0 && !grow(kChunk)) return nullptr;
    APERTURE_DEBUG_ASSERT(n_free_ != 0 && n_free_ <= free_.size());
    return free_[--n_free_];
  }
  void give(T* item) noexcept {
    APERTURE_DEBUG_ASSERT(item != nullptr && n_free_ < free_.size());
    free_[n_free_++] = item;  // a place for each: see grow
  }
  size_t out() const noexcept { return free_.size() - n_free_; }

 private:
  static constexpr size_t kChunk = 64;

  bool grow(size_t n) noexcept {
    const size_t total = free_.size();
    if (total >= most_ || n == 0) return false;
    if (n > most_ - total) n = most_ - total;
    try {
      auto chunk = std::make_unique<T[]>(n);
      chunks_.reserve(chunks_.size() + 1);
      free_.resize(total + n);
      for (size_t i = n; i-- > 0;) give(&chunk[i]);
      chunks_.push_back(std::move(chunk));
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }

  const size_t most_;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<T*> free_;  // as many as there are objects; the first n_free_ are in the pool
  size_t n_free_ = 0;
};

}  // namespace aperture
