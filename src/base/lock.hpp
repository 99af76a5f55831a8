// The lock of a progress engine: nothing in FI_THREAD_DOMAIN, biased otherwise.
//
// A biased lock belongs to the thread that uses it most; that thread enters with two plain stores
// and a load, no LOCK prefix. Another thread takes it away by announcing itself and passing a
// heavy_barrier(), which costs it about a microsecond; after kMoves such visits in a row the bias
// moves. Fair enough for a NIC, not a general mutex: critical sections are one poll long.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/barrier.hpp"

namespace aperture {

class EngineLock {
 public:
  // threaded = false: the caller promises to serialise (FI_THREAD_DOMAIN); lock and unlock are free.
  explicit EngineLock(bool threaded) noexcept : threaded_(threaded) {}
  EngineLock(const EngineLock&) = delete;
  EngineLock& operator=(const EngineLock&) = delete;

  void lock() noexcept {
    if (!threaded_) return;
    if (owner_.load(std::memory_order_relaxed) == self()) {  // relaxed: only we store our own id
      inside_.store(true, std::memory_order_relaxed);        // ordered by the barrier pair
      light_barrier();
      // SYNC POINT: engine-lock (pairs with the visitor's store of visitors_ and heavy_barrier)
      if (visitors_.load(std::memory_order_acquire) == 0) return;
      inside_.store(false, std::memory_order_release);
    }
    lock_slow();
  }
  bool try_lock() noexcept;
  void unlock() noexcept {
    if (!threaded_) return;
    if (!visiting_) {
      // SYNC POINT: engine-lock: what was done inside becomes visible to a waiting visitor
      inside_.store(false, std::memory_order_release);
      return;
    }
    unlock_slow();
  }
  bool threaded() const noexcept { return threaded_; }

 private:
  static uintptr_t self() noexcept {
    static thread_local char mark;
    return reinterpret_cast<uintptr_t>(&mark);
  }
  void enter_as_visitor() noexcept;
  void lock_slow() noexcept;
  void unlock_slow() noexcept;

  const bool threaded_;
  bool visiting_ = false;               // holder came through mutex_; written only by the holder
  uint32_t visits_in_a_row_ = 0;        // guarded by mutex_
  uintptr_t last_visitor_ = 0;          // guarded by mutex_
  std::atomic<uintptr_t> owner_{0};     // thread the lock is biased to
  std::atomic<bool> inside_{false};     // the owner is in its critical section
  std::atomic<uint32_t> visitors_{0};   // threads that want in past the bias
  std::mutex mutex_;
};

}  // namespace aperture
