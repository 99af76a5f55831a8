// The slow half of the biased lock: see lock.hpp.
#include "base/lock.hpp"

#include "base/clock.hpp"

namespace aperture {

namespace {
constexpr uint32_t kMoves = 4;
}

void EngineLock::enter_as_visitor() noexcept {
  // mutex_ is held: we are the only visitor past this point
  heavy_barrier();
  // SYNC POINT: engine-lock (pairs with the owner's store of inside_ before its light_barrier)
  while (inside_.load(std::memory_order_acquire)) cpu_relax();
  visiting_ = true;
  visits_in_a_row_ = last_visitor_ == self() ? visits_in_a_row_ + 1 : 1;
  last_visitor_ = self();
}

void EngineLock::lock_slow() noexcept {
  visitors_.fetch_add(1, std::memory_order_seq_cst);
  mutex_.lock();
  enter_as_visitor();
}

bool EngineLock::try_lock() noexcept {
  if (!threaded_) return true;
  if (owner_.load(std::memory_order_relaxed) == self()) {
    inside_.store(true, std::memory_order_relaxed);
    light_barrier();
    if (visitors_.load(std::memory_order_acquire) == 0) return true;
    inside_.store(false, std::memory_order_release);
  }
  visitors_.fetch_add(1, std::memory_order_seq_cst);
  if (!mutex_.try_lock()) {
    visitors_.fetch_sub(1, std::memory_order_release);
    return false;
  }
  heavy_barrier();
  if (inside_.load(std::memory_order_acquire)) {
    visitors_.fetch_sub(1, std::memory_order_release);
    mutex_.unlock();
    return false;
  }
  visiting_ = true;
  return true;
}

void EngineLock::unlock_slow() noexcept {
  visiting_ = false;
  if (visits_in_a_row_ >= kMoves || owner_.load(std::memory_order_relaxed) == 0) {
    // relaxed: the old owner notices under visitors_, which we drop only below
    owner_.store(self(), std::memory_order_relaxed);
    visits_in_a_row_ = 0;
  }
  // SYNC POINT: engine-lock: our stores become visible to the owner that reads visitors_ == 0
  visitors_.fetch_sub(1, std::memory_order_release);
  mutex_.unlock();
}

}  // namespace aperture
