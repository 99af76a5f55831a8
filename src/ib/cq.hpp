// Completion queues of work completions. IBTA vol. 1, 11.4.2; ibv_create_cq(3), ibv_poll_cq(3),
// ibv_req_notify_cq(3).
//
// A plain ring under its context's engine lock. It holds as many entries as it was made for: one
// more is an overrun, which is told once as an asynchronous event, and the queue pair whose
// completion is lost goes to the error state. An entry that is taken gives the slots of its queue
// back (a WR occupies its queue until its completion, or a later one, has been polled). A queue
// that ignores overruns puts the new entry in the place of the oldest, which is lost, and tells
// nobody.
#pragma once

#include <cstdint>

#include "base/errc.hpp"
#include "base/invariant.hpp"
#include "ib/queue_memory.hpp"
#include "ib/words.hpp"

namespace aperture::ib {

class QueuePair;

struct Wc {
  uint64_t id = 0;
  uint64_t timestamp = 0;  // ticks(), if the queue wants them
  uint32_t byte_len = 0;
  uint32_t imm = 0;  // network order, as sent; or the rkey that was invalidated
  uint32_t qpn = 0;
  uint32_t src_qpn = 0;
  uint32_t vendor_err = 0;  // protect::Denial, or an Errc above 256
  WcStatus status = WcStatus::success;
  WcOpcode opcode = WcOpcode::send;
  uint8_t flags = 0;  // kWc...
  bool solicited = false;

  // In a place that holds an old one: a success of which there is no more to say. Field by field:
  // a copy of a whole one waits for the stores that made it.
  void succeed(WcOpcode what, uint64_t bytes, uint32_t of_qpn) noexcept {
    timestamp = 0;
    byte_len = static_cast<uint32_t>(bytes);
    imm = src_qpn = vendor_err = 0;
    qpn = of_qpn;
    status = WcStatus::success;
    opcode = what;
    flags = 0;
    solicited = false;
  }
};

// A completion, and the queue that gets slots back with it.
struct Cqe {
  Wc wc;
  QueuePair* qp = nullptr;       // null once it is gone
  uint32_t* released = nullptr;  // of its queue: set to `release` when this is taken
  uint32_t release = 0;
};

class CqEvents {
 public:
  virtual ~CqEvents() = default;
  // One completion event, as asked for with arm(). Engine lock held.
  virtual void on_completion_event() noexcept = 0;
  virtual void on_overrun() noexcept = 0;
};

class CompletionQueue {
 public:
  // capacity: entries, at least 1. memory outlives it; null: the process's own. By exception
  // std::bad_alloc.
  CompletionQueue(uint32_t capacity, CqEvents& events, bool timestamps,
                  QueueMemory* memory = nullptr);

  uint32_t capacity() const noexcept { return capacity_; }
  uint32_t size() const noexcept { return static_cast<uint32_t>(tail_ - head_); }
  bool empty() const noexcept { return head_ == tail_; }
  bool has_room() const noexcept { return size() != capacity_; }
  bool overrun() const noexcept { return overrun_; }
  // From now on, before anything completes here: ibv_create_cq_ex(3).
  void ignore_overrun() noexcept { ignores_overrun_ = true; }

  // The place of one more completion, which holds an old one: all of it is to be set, and then
  // handed in by push(). nullptr: overrun; the completion is lost.
  Cqe* next() noexcept {
    if (size() == capacity_) [[unlikely]]
      return on_full();
    return &slots_[tail_ & mask_];
  }
  // The same where has_room() has been asked.
  Cqe& next_in_room() noexcept {
    APERTURE_DEBUG_ASSERT(has_room());
    return slots_[tail_ & mask_];
  }
  void push() noexcept {
    APERTURE_DEBUG_ASSERT(has_room());
    Cqe& cqe = slots_[tail_ & mask_];
    if (timestamps_) stamp(cqe);
    ++tail_;
    if (armed_) [[unlikely]]
      notify(cqe.wc);
  }
  const Wc& front() const noexcept { return slots_[head_ & mask_].wc; }
  void pop() noexcept {
    APERTURE_DEBUG_ASSERT(!empty());
    const Cqe& cqe = slots_[head_ & mask_];
    if (cqe.released != nullptr) *cqe.released = cqe.release;
    ++head_;
  }

  // The next completion (or, solicited_only, the next solicited or bad one) makes one event.
  void arm(bool solicited_only) noexcept {
    // the wider wish wins until it has been served
    solicited_only_ = armed_ ? solicited_only_ && solicited_only : solicited_only;
    armed_ = true;
  }
  // Armed: its event comes now, without a completion.
  void fire() noexcept;
  // Errors: invalid (more completions are in it), no_memory.
  Status resize(uint32_t capacity) noexcept;
  bool has_success_of(const QueuePair& qp) const noexcept;
  // The completions of that queue pair are dropped: it is reset, or gone.
  void forget(const QueuePair& qp) noexcept;

 private:
  Cqe* on_full() noexcept;
  void stamp(Cqe& slot) const noexcept;
  void notify(const Wc& wc) noexcept;

  QueueMemory* const memory_;
  QueueArray<Cqe> slots_;  // a power of two: mask_ + 1
  CqEvents& events_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint64_t mask_ = 0;
  uint32_t capacity_ = 0;
  const bool timestamps_;
  bool armed_ = false;
  bool solicited_only_ = false;
  bool overrun_ = false;
  bool ignores_overrun_ = false;
};

}  // namespace aperture::ib
