// The slow half of the biased lock: see lock.hpp.
#include "base/lock.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>

#include "base/clock.hpp"

namespace aperture {

namespace {

// Visits after which a bias whose owner is not clearly the more frequent one is dropped, and how
// much more frequent that is: a visit costs some twenty times what the bias saves.
constexpr uint32_t kVisitsToJudge = 64;
constexpr uint32_t kWorthIt = 16;
constexpr uint32_t kSpins = 256;  // some ten microseconds
// What a visitor sleeps at once, the first time and at most.
constexpr long kFirstNapNs = 20'000;
constexpr long kLastNapNs = 1'000'000;

}  // namespace

bool EngineLock::biased_to_other() const noexcept {
  const Bias& bias = biases_[current_.load(std::memory_order_relaxed)];  // relaxed: mutex_ is held
  const uintptr_t owner = bias.owner.load(std::memory_order_relaxed);
  return owner != 0 && owner != self();
}

void EngineLock::lock_slow() noexcept {
  if (!mutex_.try_lock()) {
    wanted_.store(true, std::memory_order_relaxed);  // relaxed, here and below: a hint
    mutex_.lock();
    wanted_.store(false, std::memory_order_relaxed);
  }
  if (biased_to_other()) {
    // SYNC POINT: engine-lock (pairs with enter_by_bias())
    announced_.store(true, std::memory_order_relaxed);
    heavy_barrier();
    wait_for_owner(biases_[current_.load(std::memory_order_relaxed)]);
  }
  through_mutex_ = true;
  count_entry();
}

// The bias is announced against: the owner leaves once, and does not come in again.
void EngineLock::wait_for_owner(Bias& bias) noexcept {
  for (uint32_t spins = 0; spins < kSpins; ++spins) {
    // SYNC POINT: engine-lock-inside
    if (bias.inside.load(std::memory_order_acquire) == 0) return;
    cpu_relax();
  }
  // longer than any poll takes: the owner was taken off its CPU, which may be this one
  for (long nap_ns = kFirstNapNs;; nap_ns = std::min(2 * nap_ns, kLastNapNs)) {
    // SYNC POINT: engine-lock-inside
    if (bias.inside.load(std::memory_order_acquire) == 0) return;
    const timespec nap{0, nap_ns};
    ::syscall(SYS_futex, &bias.inside, FUTEX_WAIT_PRIVATE, 1, &nap, nullptr, 0);
  }
}

// The owner has found a visitor announced, who may sleep.
void EngineLock::retreat(Bias& bias) noexcept {
  // SYNC POINT: engine-lock-inside
  bias.inside.store(0, std::memory_order_release);
  ::syscall(SYS_futex, &bias.inside, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

bool EngineLock::try_lock_slow() noexcept {
  if (!mutex_.try_lock()) return false;
  if (biased_to_other()) {
    // relaxed: changes under mutex_ only, which we hold
    const Bias& bias = biases_[current_.load(std::memory_order_relaxed)];
    bool inside = bias.inside.load(std::memory_order_acquire) != 0;
    if (!inside) {  // worth a barrier; as in lock_slow()
      announced_.store(true, std::memory_order_relaxed);
      heavy_barrier();
      inside = bias.inside.load(std::memory_order_acquire) != 0;
    }
    if (inside) {
      announced_.store(false, std::memory_order_release);
      mutex_.unlock();
      return false;
    }
  }
  through_mutex_ = true;
  count_entry();
  return true;
}

void EngineLock::count_entry() noexcept {
  const Bias& bias = biases_[current_.load(std::memory_order_relaxed)];
  // relaxed: only the count matters, and the owner is outside while we are here
  const uint32_t entries = bias.entries.load(std::memory_order_relaxed);
  const bool owner_was_in = entries - entries_at_streak_ > streak_;
  if (last_ != self() || owner_was_in) {
    last_ = self();
    streak_ = 0;
    entries_at_streak_ = entries;
  }
  ++streak_;
  ++visits_;
}

// Which bias is to be in force after this visit.
uint32_t EngineLock::next_bias() const noexcept {
  const uint32_t now = current_.load(std::memory_order_relaxed);
  const Bias& bias = biases_[now];
  if (bias.owner.load(std::memory_order_relaxed) == self()) return now;
  const uint32_t granted = granted_.load(std::memory_order_relaxed);
  if (streak_ >= kStreak && granted < kGenerations && register_for_heavy_barriers()) {
    return granted + 1;
  }
  if (now == kUnbiased) return now;
  const uint32_t entries = bias.entries.load(std::memory_order_relaxed);
  const bool contested = visits_ >= kVisitsToJudge && entries / kWorthIt < visits_;
  return contested ? kUnbiased : now;
}

void EngineLock::start_generation(uint32_t generation) noexcept {
  assert(generation == kUnbiased ||
         generation == granted_.load(std::memory_order_relaxed) + 1);  // relaxed: as in unlock_slow
  if (generation != kUnbiased) {
    biases_[generation].owner.store(self(), std::memory_order_relaxed);  // published just below
    granted_.store(generation, std::memory_order_relaxed);
  }
  streak_ = 0;
  visits_ = 0;
  entries_at_streak_ = 0;
  current_.store(generation, std::memory_order_release);
}

void EngineLock::unlock_slow() noexcept {
  assert(through_mutex_);
  const uint32_t next = next_bias();
  // relaxed: changes under mutex_ only, which we hold
  if (next != current_.load(std::memory_order_relaxed)) start_generation(next);
  // SYNC POINT: engine-lock (our stores, the new generation among them, become visible to the owner
  // that reads that nobody is announced). Without a bias the mutex alone hands them on.
  if (announced_.load(std::memory_order_relaxed))
    announced_.store(false, std::memory_order_release);
  mutex_.unlock();
}

}  // namespace aperture
