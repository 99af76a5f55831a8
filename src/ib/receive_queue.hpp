// Receive queues: the posted receives of one queue pair, or of all that share one (SRQ). IBTA
// vol. 1, 10.2.9 and 10.8; ibv_post_recv(3), ibv_create_srq(3).
//
// Guarded by the engine lock. A receive leaves the queue when a message takes it. In a queue pair's
// own queue it keeps its slot until its completion has been polled; a shared one gives it back at
// once, since its completions lie in several queues.
#pragma once

#include <cstdint>
#include <vector>

#include "base/errc.hpp"
#include "base/invariant.hpp"
#include "ib/queue_memory.hpp"
#include "ib/work.hpp"
#include "protect/rights.hpp"

namespace aperture::ib {

class CompletionQueue;
class QueuePair;

// A receive that a message has taken: its scatter list stays valid until the next one is posted
// into its slot, so it is copied here.
struct TakenRecv {
  uint64_t id = 0;
  uint64_t room = 0;  // bytes of its scatter list
  uint32_t sge_count = 0;
  uint32_t release = 0;  // what Cqe::release is, for a queue pair's own queue
  Sge sge[kMaxSge];
};

class SrqEvents {
 public:
  virtual ~SrqEvents() = default;
  // Fewer receives than the limit are left; once, until it is set again. Engine lock held.
  virtual void on_limit_reached() noexcept = 0;
};

class ReceiveQueue {
 public:
  // By exception std::bad_alloc. events: of a shared one; its slots are given back at once. memory
  // outlives it; null: the process's own.
  ReceiveQueue(uint32_t max_wr, uint32_t max_sge, SrqEvents* events, QueueMemory* memory = nullptr);

  // Of an XRC one: where its receives complete, and whose regions its messages may reach.
  void serve_xrc(CompletionQueue& cq, protect::DomainId pd) noexcept {
    cq_ = &cq;
    pd_ = pd;
  }
  CompletionQueue* cq() const noexcept { return cq_; }
  protect::DomainId pd() const noexcept { return pd_; }

  uint32_t max_wr() const noexcept { return max_wr_; }
  uint32_t max_sge() const noexcept { return max_sge_; }
  uint32_t limit() const noexcept { return limit_; }
  bool empty() const noexcept { return head_ == tail_; }
  uint32_t size() const noexcept { return tail_ - head_; }

  // Errors: invalid (more pieces than max_sge), no_space (full).
  Status post(const RecvWr& wr) noexcept {
    if (wr.sge_count > max_sge_) [[unlikely]]
      return Errc::invalid;
    if (tail_ - released_ >= max_wr_) [[unlikely]]
      return Errc::no_space;
    put(wr);
    if (!waiting_.empty()) [[unlikely]]
      tell_waiting();
    return {};
  }
  // Bytes of the oldest's scatter list; not of an empty queue.
  uint64_t room_of_next() noexcept;
  // Takes the oldest; not of an empty queue.
  void take(TakenRecv& out) noexcept;

  // The same in two steps, of a queue pair's own queue that is not empty: the only piece of the
  // oldest, or nullptr if it has another number of them; and taking it, when its pieces are not
  // asked for any more. Hands out its id, and what TakenRecv::release would be.
  const Sge* only_piece() noexcept {
    APERTURE_DEBUG_ASSERT(!empty());
    return slots_[head_ & mask_].sge_count == 1 ? sges_of(head_) : nullptr;
  }
  uint32_t take_oldest(uint64_t& id) noexcept {
    APERTURE_DEBUG_ASSERT(!empty() && !shared_);
    id = slots_[head_ & mask_].id;
    return ++head_;
  }

  // That queue pair has a message and no receive. It is told of the next post; false: there is no
  // memory to note that in, and it has to look again by itself.
  bool wait(QueuePair& qp) noexcept;
  void forget(const QueuePair& qp) noexcept;
  // It is about to be destroyed, and nothing names it any more: whoever waits looks again.
  void retire() noexcept;

  // Of a shared one. Errors: invalid.
  Status set_limit(uint32_t limit) noexcept;
  Status resize(uint32_t max_wr) noexcept;  // Errors: invalid (more are posted), no_memory
  // What Cqe::released points to; nullptr for a shared one.
  uint32_t* released() noexcept { return shared_ ? nullptr : &released_; }
  void clear() noexcept { head_ = tail_ = released_ = 0; }

 private:
  struct Slot {
    uint64_t id;
    uint32_t sge_count;
  };
  void put(const RecvWr& wr) noexcept;
  void tell_waiting() noexcept;
  Sge* sges_of(uint32_t at) noexcept { return &sges_[size_t{at & mask_} * max_sge_]; }

  const uint32_t max_sge_;
  uint32_t max_wr_;
  uint32_t mask_;
  uint32_t head_ = 0;      // next to be taken
  uint32_t tail_ = 0;      // next to be posted
  uint32_t released_ = 0;  // slots before it may be posted into again
  const bool shared_;
  SrqEvents* const events_;
  CompletionQueue* cq_ = nullptr;
  protect::DomainId pd_ = 0;
  uint32_t limit_ = 0;               // 0: not asked for
  std::vector<QueuePair*> waiting_;  // of a shared one, each once
  QueueMemory* const memory_;
  QueueArray<Slot> slots_;
  QueueArray<Sge> sges_;
};

}  // namespace aperture::ib
