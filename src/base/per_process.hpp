// What a process has one of, and what a forked child must have anew.
//
// A child has a copy of its parent's memory as it was while the parent's other threads went on
// writing it: a lock may be taken for ever, a list half linked. So nothing that such threads change
// is looked at in a child. PerProcess and ProcessLock go by the number of the process
// (base/fork.hpp), so that a child begins with none of them and with every lock free; what the
// parent had is left where it is and never destroyed, since its locks, descriptors and mappings are
// not the child's. Where the child also needs what the parent knew, a lock is held across fork(2)
// instead (verbs/path_fds.cpp). Any thread; not for the data path.
#pragma once

#include <atomic>
#include <cassert>
#include <mutex>
#include <thread>
#include <utility>

#include "base/errc.hpp"
#include "base/fork.hpp"

namespace aperture {

// Free in a forked child, whoever holds it in the parent. For what is short or rare: who waits
// yields. What it guards is either abandoned in a child or begun anew there.
class ProcessLock {
 public:
  constexpr ProcessLock() noexcept = default;
  ProcessLock(const ProcessLock&) = delete;
  ProcessLock& operator=(const ProcessLock&) = delete;

  void lock() noexcept {
    const uint64_t us = process_epoch();
    uint64_t holder = 0;
    // SYNC POINT: process-lock: what the last holder did is visible.
    // relaxed: where it fails nothing was learned but the holder
    while (!holder_.compare_exchange_weak(holder, us, std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
      if (holder != us) continue;  // free, or its holder is a thread of the parent's
      holder = 0;
      std::this_thread::yield();
    }
  }
  // SYNC POINT: process-lock
  void unlock() noexcept { holder_.store(0, std::memory_order_release); }

 private:
  std::atomic<uint64_t> holder_{0};  // process_epoch() of who holds it, 0: nobody
};

// One T of the process, made at first use and never destroyed.
template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() noexcept = default;
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // make() returns a Result<T*>; where it fails, the next one to ask tries again.
  template <typename Make>
  Result<T*> get(Make&& make) {
    if (T* there = existing()) return there;
    const std::lock_guard guard(lock_);
    if (T* there = existing()) return there;
    Result<T*> made = std::forward<Make>(make)();
    if (!made) return made;
    assert(*made != nullptr);
    the_one_.store(*made, std::memory_order_relaxed);  // relaxed: published by the next line
    // SYNC POINT: per-process: the object is whole before it is found
    made_in_.store(process_epoch(), std::memory_order_release);
    return made;
  }
  // One that is made by its default constructor. By exception what that throws.
  T& get() {
    return **get([]() -> Result<T*> { return new T(); });
  }
  // Null: this process has none.
  T* existing() const noexcept {
    // SYNC POINT: per-process
    if (made_in_.load(std::memory_order_acquire) != process_epoch()) return nullptr;
    return the_one_.load(std::memory_order_relaxed);  // relaxed: published by the number
  }

 private:
  std::atomic<uint64_t> made_in_{0};  // process_epoch() of the process that the object is of
  std::atomic<T*> the_one_{nullptr};
  ProcessLock lock_;
};

// A value that is found out once and is the same in forked children: a static of a function, but
// that a child which was forked in the middle finds it out by itself, rather than wait for a thread
// that it has not got.
template <typename T>
class FoundOnce {
 public:
  constexpr FoundOnce() noexcept = default;
  FoundOnce(const FoundOnce&) = delete;
  FoundOnce& operator=(const FoundOnce&) = delete;

  template <typename Find>
  const T& get(Find&& find) {
    // SYNC POINT: found-once
    if (!found_.load(std::memory_order_acquire)) [[unlikely]]
      find_now(std::forward<Find>(find));
    return value_;
  }

 private:
  template <typename Find>
  [[gnu::noinline]] void find_now(Find&& find) {
    const std::lock_guard guard(lock_);
    if (found_.load(std::memory_order_relaxed)) return;  // relaxed: under the lock
    value_ = std::forward<Find>(find)();
    // SYNC POINT: found-once: the value is whole before it is read
    found_.store(true, std::memory_order_release);
  }

  T value_{};
  std::atomic<bool> found_{false};
  ProcessLock lock_;
};

}  // namespace aperture
