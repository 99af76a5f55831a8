// Work handed over between threads: see posted_work.hpp.
#include "nic/posted_work.hpp"

#include <utility>

namespace aperture::nic {

bool PostedWork::put(Callback<> work) noexcept {
  const std::lock_guard guard(mutex_);
  const bool first = work_.empty();
  work_.push_back(std::move(work));
  // SYNC POINT: posted-work
  any_.store(true, std::memory_order_release);
  return first;
}

void PostedWork::run() noexcept {
  decltype(work_) work;
  {
    const std::lock_guard guard(mutex_);
    work.swap(work_);
    any_.store(false, std::memory_order_relaxed);  // relaxed: under the mutex
  }
  for (auto& one : work) one();
}

}  // namespace aperture::nic
