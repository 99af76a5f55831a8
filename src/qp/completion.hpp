// Completion queues and counters of the core.
//
// A Cq is a plain ring under its engine's lock: no atomics. An operation that will complete later
// reserves its entry when it is posted, so a completion never finds the queue full: overrun is
// back-pressure at the post (Errc::again), never loss. Errors stand in line with the other entries.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <string>

#include "base/errc.hpp"
#include "base/invariant.hpp"
#include "base/untouched_array.hpp"
#include "qp/wake_fd.hpp"

namespace aperture::qp {

inline constexpr uint64_t kNoSource = ~uint64_t{0};

struct Completion {
  void* context = nullptr;
  uint64_t flags = 0;   // the door's word, as given with the operation
  uint64_t len = 0;     // bytes transferred
  void* buf = nullptr;  // receive buffer
  uint64_t imm = 0;     // remote CQ data, immediate data
  uint64_t tag = 0;
  uint64_t source = kNoSource;  // address-table index of the sender
};

struct CompletionError {
  Completion entry;
  Errc err = Errc::ok;
  uint32_t vendor = 0;    // protect::Denial, or 0
  uint64_t overflow = 0;  // bytes of the message that did not fit (truncated)
  std::string sentence;   // what happened and what to do; may be empty
};

class Cq {
 public:
  // capacity: entries, rounded up to a power of two. Errors by exception std::bad_alloc.
  explicit Cq(size_t capacity);
  ~Cq();
  Cq(const Cq&) = delete;
  Cq& operator=(const Cq&) = delete;

  size_t capacity() const noexcept { return mask_ + 1; }
  size_t size() const noexcept { return static_cast<size_t>(tail_ - head_); }
  bool empty() const noexcept { return head_ == tail_; }
  // Entries that can still be promised.
  bool has_room() const noexcept { return tail_ - head_ + reserved_ <= mask_; }
  size_t room() const noexcept {
    const uint64_t used = tail_ - head_ + reserved_;
    return used < capacity() ? static_cast<size_t>(capacity() - used) : 0;
  }

  // Has room for n entries, growing if it must. False: no memory.
  bool make_room(size_t n) noexcept;

  void reserve() noexcept { ++reserved_; }
  void unreserve() noexcept {
    assert(reserved_ != 0);
    --reserved_;
  }

  // For completions without a reservation: the caller has asked has_room().
  void push(const Completion& c) noexcept {
    slots_[tail_ & mask_] = {c, nullptr};
    ++tail_;
    wake_fd.on_arrival();
  }
  // Errors grow the queue if they must (they are rare, and must not be lost).
  void push_error(CompletionError e) noexcept;

  // True if the head is an error: read it with pop_error.
  bool error_first() const noexcept { return !empty() && slots_[head_ & mask_].error != nullptr; }
  // Anywhere in it.
  bool has_error() const noexcept { return errors_ != 0; }
  const Completion& front() const noexcept { return slots_[head_ & mask_].entry; }
  void pop() noexcept {
    APERTURE_DEBUG_ASSERT(!empty());
    ++head_;
  }
  // Empty: begins at the first slot again, which is in the cache.
  void rewind() noexcept { head_ = tail_ = 0; }
  CompletionError pop_error() noexcept;

  WakeFd wake_fd;  // for who sleeps until something is pushed

 private:
  struct Slot {
    Completion entry;
    CompletionError* error;  // owned while queued
  };
  void grow() noexcept;

  UntouchedArray<Slot> slots_;
  uint64_t mask_ = 0;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint64_t reserved_ = 0;
  size_t errors_ = 0;  // that are queued
};

// A completion counter. Changed under the engine's lock, read by any thread.
class Counter {
 public:
  // SYNC POINT: counter (pairs with store(): what was completed is visible to who reads this)
  uint64_t value() const noexcept { return value_.load(std::memory_order_acquire); }
  uint64_t errors() const noexcept { return errors_.load(std::memory_order_acquire); }
  // from_call: see ArrivalListener.
  void add(uint64_t n, bool from_call = false) noexcept {
    store(value_, value_.load(std::memory_order_relaxed) + n, from_call);
  }
  void add_error(uint64_t n, bool from_call = false) noexcept {
    store(errors_, errors_.load(std::memory_order_relaxed) + n, from_call);
  }
  void set(uint64_t v, bool from_call = false) noexcept { store(value_, v, from_call); }
  void set_error(uint64_t v, bool from_call = false) noexcept { store(errors_, v, from_call); }

  WakeFd wake_fd;  // for who waits until it changes

 private:
  void store(std::atomic<uint64_t>& word, uint64_t v, bool from_call) noexcept {
    // SYNC POINT: counter: a reader that sees the value sees what was completed. Only the holder of
    // the engine's lock writes, so the relaxed reads above see the latest value.
    word.store(v, std::memory_order_release);
    wake_fd.on_arrival(from_call);
  }

  std::atomic<uint64_t> value_{0};
  std::atomic<uint64_t> errors_{0};
};

}  // namespace aperture::qp
