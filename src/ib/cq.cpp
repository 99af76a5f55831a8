// Completion queues: see cq.hpp.
#include "ib/cq.hpp"

#include <bit>
#include <cassert>
#include <new>

#include "base/clock.hpp"

namespace aperture::ib {

CompletionQueue::CompletionQueue(uint32_t capacity, CqEvents& events, bool timestamps,
                                 QueueMemory* memory)
    : memory_(memory),
      slots_(std::bit_ceil(capacity), memory),
      events_(events),
      mask_(std::bit_ceil(capacity) - 1),
      capacity_(capacity),
      timestamps_(timestamps) {}

Cqe* CompletionQueue::on_full() noexcept {
  assert(!has_room());
  if (ignores_overrun_) {
    pop();
    return &slots_[tail_ & mask_];
  }
  if (overrun_) return nullptr;
  overrun_ = true;
  events_.on_overrun();
  return nullptr;
}

void CompletionQueue::stamp(Cqe& slot) const noexcept {
  slot.wc.timestamp = ticks();
}

void CompletionQueue::notify(const Wc& wc) noexcept {
  if (solicited_only_ && !wc.solicited && wc.status == WcStatus::success) return;
  fire();
}

void CompletionQueue::fire() noexcept {
  assert(armed_);
  armed_ = solicited_only_ = false;
  events_.on_completion_event();
}

Status CompletionQueue::resize(uint32_t capacity) noexcept {
  if (capacity < size()) return Errc::invalid;
  try {
    QueueArray<Cqe> slots(std::bit_ceil(capacity), memory_);
    const uint64_t mask = std::bit_ceil(capacity) - 1;
    for (uint64_t i = head_; i != tail_; ++i) slots[i & mask] = slots_[i & mask_];
    slots_.swap(slots);
    mask_ = mask;
    capacity_ = capacity;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  return {};
}

bool CompletionQueue::has_success_of(const QueuePair& qp) const noexcept {
  for (uint64_t i = head_; i != tail_; ++i) {
    const Cqe& cqe = slots_[i & mask_];
    if (cqe.qp == &qp && cqe.wc.status == WcStatus::success) return true;
  }
  return false;
}

void CompletionQueue::forget(const QueuePair& qp) noexcept {
  uint64_t kept = head_;
  for (uint64_t i = head_; i != tail_; ++i) {
    if (slots_[i & mask_].qp == &qp) continue;
    if (kept != i) slots_[kept & mask_] = slots_[i & mask_];
    ++kept;
  }
  assert(kept <= tail_);
  tail_ = kept;
}

}  // namespace aperture::ib
