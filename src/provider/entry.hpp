// What every C entry of this door is wrapped in: nothing thrown ever reaches the C caller.
//
// Data-path entries call only noexcept code and need no wrapping. No state, any thread.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "base/log.hpp"

namespace aperture::provider {

// Runs fn, which returns 0 or a negative fi_errno; an exception becomes -FI_ENOMEM or -FI_EOTHER.
template <typename Fn>
auto guarded(const char* call, Fn&& fn) noexcept -> decltype(fn()) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const std::bad_alloc&) {
    APERTURE_WARN("%s: out of memory", call);
    return -FI_ENOMEM;
  } catch (...) {
    APERTURE_WARN("%s: an unexpected internal error; please report it", call);
    return -FI_EOTHER;
  }
}

// How many opened objects still refer to this one; fi_close answers -FI_EBUSY until it is 0.
class Uses {
 public:
  // relaxed: a count alone; what is behind it is published by whoever handed the object over
  void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    // SYNC POINT: uses: what the child did to its parent is visible before the parent goes
    count_.fetch_sub(1, std::memory_order_release);
  }
  uint32_t count() const noexcept {
    // SYNC POINT: uses: a close that reads 0 sees what every child did
    return count_.load(std::memory_order_acquire);
  }

 private:
  std::atomic<uint32_t> count_{0};
};

// The object whose first member is this fid.
template <typename Object, typename Fid>
Object& object_of(Fid* fid) noexcept {
  return *reinterpret_cast<Object*>(fid);
}

}  // namespace aperture::provider
