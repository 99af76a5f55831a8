// A pool of objects of one type: chunks that are never given back, and a free list.
//
// take() allocates only when every object is out, so a path that stays within the size planned for
// never does. Objects keep their last contents. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

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
    if (free_.empty() && !grow(kChunk)) return nullptr;
    T* item = free_.back();
    free_.pop_back();
    return item;
  }
  void give(T* item) noexcept { free_.push_back(item); }  // capacity is there: see grow
  size_t out() const noexcept { return total_ - free_.size(); }

 private:
  static constexpr size_t kChunk = 64;

  bool grow(size_t n) noexcept {
    if (total_ >= most_ || n == 0) return false;
    if (n > most_ - total_) n = most_ - total_;
    try {
      auto chunk = std::make_unique<T[]>(n);
      free_.reserve(total_ + n);
      chunks_.reserve(chunks_.size() + 1);
      for (size_t i = n; i-- > 0;) free_.push_back(&chunk[i]);
      chunks_.push_back(std::move(chunk));
    } catch (const std::bad_alloc&) {
      return false;
    }
    total_ += n;
    return true;
  }

  const size_t most_;
  size_t total_ = 0;
  std::vector<std::unique_ptr<T[]>> chunks_;
  std::vector<T*> free_;
};

}  // namespace aperture
