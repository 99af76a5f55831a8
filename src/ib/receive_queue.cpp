// Receive queues: see receive_queue.hpp.
#include "ib/receive_queue.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include "base/no_throw.hpp"
#include "ib/queue_pair.hpp"

namespace aperture::ib {

ReceiveQueue::ReceiveQueue(uint32_t max_wr, uint32_t max_sge, SrqEvents* events,
                           QueueMemory* memory)
    : max_sge_(std::max(max_sge, 1u)),
      max_wr_(max_wr),
      mask_(std::bit_ceil(std::max(max_wr, 1u)) - 1),
      shared_(events != nullptr),
      events_(events),
      memory_(memory),
      slots_(size_t{mask_} + 1, memory),
      sges_((size_t{mask_} + 1) * max_sge_, memory) {}

namespace {

// One piece is the usual thing, and not worth the call of memmove.
void copy_sges(const Sge* from, uint32_t count, Sge* to) noexcept {
  if (count == 1) [[likely]] {
    *to = *from;
  } else {
    std::copy_n(from, count, to);
  }
}

}  // namespace

void ReceiveQueue::put(const RecvWr& wr) noexcept {
  slots_[tail_ & mask_] = {wr.id, wr.sge_count};
  copy_sges(wr.sge, wr.sge_count, sges_of(tail_));
  ++tail_;
}

uint64_t ReceiveQueue::room_of_next() noexcept {
  uint64_t room = 0;
  for (uint32_t i = 0; i < slots_[head_ & mask_].sge_count; ++i) room += sges_of(head_)[i].length;
  return room;
}

void ReceiveQueue::take(TakenRecv& out) noexcept {
  assert(!empty());
  const Slot& slot = slots_[head_ & mask_];
  out.id = slot.id;
  out.sge_count = slot.sge_count;
  copy_sges(sges_of(head_), slot.sge_count, out.sge);
  out.room = 0;
  for (uint32_t i = 0; i < slot.sge_count; ++i) out.room += out.sge[i].length;
  out.release = ++head_;
  if (!shared_) return;
  released_ = head_;
  if (size() < limit_) [[unlikely]] {
    limit_ = 0;
    events_->on_limit_reached();
  }
}

bool ReceiveQueue::wait(QueuePair& qp) noexcept {
  if (!shared_ || std::find(waiting_.begin(), waiting_.end(), &qp) != waiting_.end()) return true;
  return no_throw([&] { waiting_.push_back(&qp); }).ok();
}

void ReceiveQueue::forget(const QueuePair& qp) noexcept {
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), &qp), waiting_.end());
}

void ReceiveQueue::retire() noexcept {
  while (!waiting_.empty()) {
    QueuePair* const first = waiting_.front();
    waiting_.erase(waiting_.begin());
    first->on_receive_posted();
  }
}

// The one that has waited longest takes what it needs; the others wait on.
void ReceiveQueue::tell_waiting() noexcept {
  while (!waiting_.empty() && !empty()) {
    QueuePair* const first = waiting_.front();
    waiting_.erase(waiting_.begin());
    first->on_receive_posted();
  }
}

Status ReceiveQueue::set_limit(uint32_t limit) noexcept {
  if (!shared_ || limit > max_wr_) return Errc::invalid;
  limit_ = limit;
  if (size() < limit_) {
    limit_ = 0;
    events_->on_limit_reached();
  }
  return {};
}

Status ReceiveQueue::resize(uint32_t max_wr) noexcept {
  if (!shared_ || max_wr == 0 || max_wr < size()) return Errc::invalid;
  const uint32_t mask = std::bit_ceil(max_wr) - 1;
  try {
    QueueArray<Slot> slots(size_t{mask} + 1, memory_);
    QueueArray<Sge> sges((size_t{mask} + 1) * max_sge_, memory_);
    for (uint32_t i = head_; i != tail_; ++i) {
      slots[i & mask] = slots_[i & mask_];
      std::copy_n(sges_of(i), max_sge_, &sges[size_t{i & mask} * max_sge_]);
    }
    slots_.swap(slots);
    sges_.swap(sges);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  mask_ = mask;
  max_wr_ = max_wr;
  assert(size() <= max_wr_);
  return {};
}

}  // namespace aperture::ib
