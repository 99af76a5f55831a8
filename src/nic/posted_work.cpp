// Work handed over between threads: see posted_work.hpp.
#include "nic/posted_work.hpp"

#include <cassert>
#include <utility>

namespace aperture::nic {

bool PostedWork::put(Callback<> work) noexcept {
  const std::lock_guard guard(mutex_);
  const bool first = work_.empty();
  assert(any_.load(std::memory_order_relaxed) == !first);  // relaxed: under the mutex
  work_.push_back(std::move(work));
  // SYNC POINT: posted-work
  any_.store(true, std::memory_order_release);
  return first;
}

void PostedWork::run() noexcept {
  decltype(work_) work;
  {
    const std::lock_guard guard(mutex_);
    // relaxed, both: under the mutex
    assert(any_.load(std::memory_order_relaxed) == !work_.empty());
    work.swap(work_);
    any_.store(false, std::memory_order_relaxed);
  }
  for (auto& one : work) one();
}

}  // namespace aperture::nic
