// The lock of a progress engine: nothing where the caller promises to serialise, else biased.
//
// It begins as a plain mutex. A thread that takes it kStreak times in a row gets a bias: from then
// on that thread enters with two plain stores and two loads, no LOCK prefix. Another thread takes
// the lock away through the mutex, an announcement and a heavy_barrier(), about a microsecond; if
// it keeps coming and the owner does not, the bias moves, and if both keep coming, it is dropped. A
// visitor that meets the owner inside for longer than a poll takes sleeps, so that the owner has
// the core if it is this one. unlock() pays nothing for that: the owner wakes it when it comes
// again and finds it announced, or else it looks by itself after a while.
// Fair enough for a NIC, not a general mutex: critical sections are one poll long, there is no
// recursion.
//
// Each bias is a generation with its own owner and its own `inside`, and is never used again: an
// old owner that was preempted between reading that it is the owner and raising `inside` raises the
// flag of its own generation, which no one waits for any more, and sees after the barrier that the
// generation has changed. After kGenerations biases the lock stays a mutex for ever.
// tests/spin/engine_lock.pml is the model.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/barrier.hpp"

namespace aperture {

class EngineLock {
 public:
  // threaded = false: the caller promises to serialise; lock and unlock are free.
  explicit EngineLock(bool threaded) noexcept : threaded_(threaded) {}
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  void lock() noexcept {
    if (!threaded_ || enter_by_bias()) return;
    lock_slow();
  }
  // May fail while nobody is inside, never the other way round.
  bool try_lock() noexcept {
    if (!threaded_ || enter_by_bias()) return true;
    return try_lock_slow();
  }
  void unlock() noexcept {
    if (!threaded_) return;
    if (!through_mutex_) {
      // relaxed: no bias begins or ends while we are inside
      Bias& bias = biases_[current_.load(std::memory_order_relaxed)];
      // SYNC POINT: engine-lock-inside (what was done inside becomes visible to a waiting visitor)
      bias.inside.store(0, std::memory_order_release);
      return;
    }
    unlock_slow();
  }
  bool threaded() const noexcept { return threaded_; }
  // Holder: somebody waits, as far as can be told. Who stays inside for long asks now and then.
  bool is_wanted() const noexcept {
    // relaxed: hints. Who came in by a bias does not hold mutex_, and is announced to instead.
    return (through_mutex_ ? wanted_ : announced_).load(std::memory_order_relaxed);
  }
  // Somebody waits for it, as far as can be told. Any thread. Who comes again and again in another
  // one's place leaves the lock to him: the mutex alone would let in whoever is awake.
  bool is_waited_for() const noexcept {
    // relaxed: hints
    return wanted_.load(std::memory_order_relaxed) || announced_.load(std::memory_order_relaxed);
  }
  // Biases granted so far; for tests and the curious.
  uint32_t generations() const noexcept { return granted_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kGenerations = 8;
  static constexpr uint32_t kUnbiased = 0;  // biases_[0] belongs to nobody
  static constexpr uint32_t kStreak = 64;

  // Kept a cache line apart by its size: over-aligned objects are a burden to whoever embeds them.
  struct Bias {
    std::atomic<uintptr_t> owner{0};   // written once, before the generation is current
    std::atomic<uint32_t> inside{0};   // 0 or 1, written by the owner only; a futex
    std::atomic<uint32_t> entries{0};  // written by the owner only; wraps
    char apart[48];
  };
  static_assert(sizeof(Bias) == 64);

  // A number that no other living thread has, for one instruction.
  static uintptr_t self() noexcept {
#if defined(__x86_64__)
    uintptr_t thread_pointer;
    asm("mov %%fs:0, %0" : "=r"(thread_pointer));
    return thread_pointer;
#else
    static thread_local char mark;
    return reinterpret_cast<uintptr_t>(&mark);
#endif
  }

  bool enter_by_bias() noexcept {
    // acquire: the owner of a generation is stored before the generation is current
    const uint32_t generation = current_.load(std::memory_order_acquire);
    Bias& bias = biases_[generation];
    if (bias.owner.load(std::memory_order_relaxed) != self()) return false;
    bias.inside.store(1, std::memory_order_relaxed);  // relaxed: ordered by the barrier pair
    light_barrier();
    // SYNC POINT: engine-lock (pairs with the visitor's announcement and its heavy_barrier(): we
    // see it, or it sees us inside). In this order: who reads that a visitor has left also reads
    // whether it took the bias along.
    if (!announced_.load(std::memory_order_acquire) &&
        current_.load(std::memory_order_acquire) == generation) {
      // relaxed: a count by which visitors tell whether the bias is worth it
      bias.entries.store(bias.entries.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
      through_mutex_ = false;
      return true;
    }
    retreat(bias);
    return false;
  }

  void lock_slow() noexcept;
  [[gnu::cold]] static void retreat(Bias& bias) noexcept;
  void wait_for_owner(Bias& bias) noexcept;
  bool try_lock_slow() noexcept;
  void unlock_slow() noexcept;
  bool biased_to_other() const noexcept;
  void count_entry() noexcept;
  uint32_t next_bias() const noexcept;
  void start_generation(uint32_t generation) noexcept;

  const bool threaded_;
  bool through_mutex_ = false;                // how the holder came in; written only by the holder
  std::atomic<bool> announced_{false};        // a visitor holds mutex_ and wants in past the bias
  std::atomic<uint32_t> current_{kUnbiased};  // index of the bias in force
  Bias biases_[kGenerations + 1];

  std::atomic<bool> wanted_{false};  // somebody waits for mutex_, as a hint
  std::mutex mutex_;                 // guards what follows
  uintptr_t last_ = 0;               // who came through the mutex last,
  uint32_t streak_ = 0;              // ... and how often in a row
  uint32_t visits_ = 0;              // past the bias in force
  uint32_t entries_at_streak_ = 0;   // what the owner had counted when the streak began
  std::atomic<uint32_t> granted_{0};
};

}  // namespace aperture
