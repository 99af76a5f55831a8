// Handles of a driver's queues for copies (a stream, a command list) that are kept between copies,
// since making one takes longer than a short copy.
//
// Each copy has one to itself, so that threads do not wait for each other's. The lock is held to
// take or give one and never while the driver works. Any thread.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <mutex>

namespace aperture::memory {

class SpareHandles {
 public:
  // As many as threads copy at one time, on most days.
  static constexpr size_t kMost = 16;

  // Null: none is kept, make one.
  void* take() noexcept {
    const std::lock_guard guard(lock_);
    assert(n_ <= kMost);
    return n_ != 0 ? kept_[--n_] : nullptr;
  }
  // False: there are enough, it is for the caller to destroy.
  [[nodiscard]] bool give(void* handle) noexcept {
    assert(handle != nullptr);
    const std::lock_guard guard(lock_);
    if (n_ == kMost) return false;
    kept_[n_++] = handle;
    return true;
  }

 private:
  std::mutex lock_;  // guards what follows
  size_t n_ = 0;
  std::array<void*, kMost> kept_{};
};

}  // namespace aperture::memory
