// The send queue of a queue pair: a ring of WQEs with their scatter/gather lists and inline bytes,
// and the completion queue that is told of them. IBTA vol. 1, 10.2.9 and 10.8.
//
// Guarded by the engine's lock. Positions only grow (and wrap): released <= head <= next <= tail.
// WQEs complete in order, at `head`; a slot is free again when its completion has been polled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/invariant.hpp"
#include "ib/attributes.hpp"
#include "ib/cq.hpp"
#include "ib/local_memory.hpp"
#include "ib/qp_spec.hpp"
#include "ib/queue_memory.hpp"
#include "ib/work.hpp"

namespace aperture::ib {

// One slot of the send queue.
struct Wqe {
  // what was asked
  uint64_t id;
  SendOp op;
  bool signaled;
  bool fence;
  bool solicited;
  bool is_inline;
  uint8_t sge_count;
  uint32_t imm;
  uint32_t rkey;
  uint64_t len;  // bytes of the local buffer
  uint64_t remote_addr;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t srq_number;
  BindWr bind;
  Route route;  // UD
  uint32_t remote_qpn;
  uint32_t remote_qkey;
  // how far it has got
  enum class Stage : uint8_t { queued, begun, posted, finished };
  Stage stage;         // posted: all of it is in the ring; finished: nothing is to come any more
  WcStatus status;     // other than success: it failed
  bool in_ring;        // it has cells in the ring, and goes no other way any more
  bool owner_only;     // and is not to be claimed there
  bool copied;         // directly; its notice is to follow
  bool result_out;     // a read or atomic that is counted as under way
  uint32_t denial;     // protect::Denial, or what Wc::vendor_err shall be
  uint64_t done;       // bytes put into the ring, copied, or received
  uint64_t asked;      // of a read: bytes whose requests are in the ring
  uint64_t begin_pos;  // request position of its first cell
  uint64_t end_pos;    // after its last cell
  uint64_t region;     // generation that the direct path has met; 0: none yet
};

class SendQueue {
 public:
  // By exception std::bad_alloc. qp: whose it is.
  SendQueue(QueuePair& qp, const QpSpec& spec);

  bool is_empty() const noexcept { return head == tail; }
  // All of its WQEs are posted whole.
  bool is_posted() const noexcept { return next == tail; }
  // No place for one more behind `ahead` others.
  bool is_full(uint32_t ahead = 0) const noexcept { return tail - released + ahead >= max_wr_; }
  bool is_begun(uint32_t at) const noexcept {
    return at != tail && wqes_[at & mask_].stage == Wqe::Stage::begun;
  }
  bool signals(const SendWr& wr) const noexcept {
    return signal_all_ || (wr.flags & kSignaled) != 0;
  }
  Wqe& wqe(uint32_t at) noexcept { return wqes_[at & mask_]; }
  const Wqe& wqe(uint32_t at) const noexcept { return wqes_[at & mask_]; }
  Sge* sges_of(uint32_t at) noexcept { return &sges_[size_t{at & mask_} * max_sge_]; }
  std::byte* inline_of(uint32_t at) noexcept {
    return &inline_[size_t{at & mask_} * max_inline_bytes_];
  }

  // The WQE at `tail` begins as that WR says: everything that does not lie beside it. flags: those
  // of the WR that are looked at. The caller sets what differs, and steps over it with ++tail.
  Wqe& fill(const SendWr& wr, uint32_t flags) noexcept {
    APERTURE_DEBUG_ASSERT(!is_full());
    Wqe& w = wqe(tail);
    w.id = wr.id;
    w.op = wr.op;
    w.signaled = signals(wr);
    if (w.signaled) ++signaled_out;
    w.fence = (flags & kFence) != 0;
    w.solicited = (flags & kSolicited) != 0;
    w.is_inline = w.in_ring = w.owner_only = w.copied = w.result_out = false;
    w.sge_count = 0;
    w.imm = wr.imm;
    w.rkey = wr.rkey;
    w.remote_addr = wr.remote_addr;
    w.stage = Wqe::Stage::queued;
    w.status = WcStatus::success;
    w.denial = 0;
    w.len = w.done = w.asked = w.begin_pos = w.end_pos = w.region = 0;
    return w;
  }
  // The same with its scatter/gather list, inline bytes and what few operations need.
  void post(const SendWr& wr) noexcept;
  // [offset, offset + n) of the WQE's bytes, wherever they lie.
  WcStatus gather(LocalMemory& memory, uint32_t at, uint64_t offset, std::byte* to,
                  uint64_t n) noexcept;
  // The same as the payload of a piece.
  WcStatus put_piece(LocalMemory& memory, uint32_t at, uint64_t offset, uint64_t n,
                     transport::PieceOut& out) noexcept;
  // The oldest is about to be over, whether or not all of it is posted.
  void post_no_more_of_oldest() noexcept {
    APERTURE_DEBUG_ASSERT(head != tail);
    if (next == head) ++next;
  }
  // The oldest is over, as its status says, and stepped over. False: its completion is lost, since
  // there is no room for it.
  bool complete_oldest() noexcept {
    APERTURE_DEBUG_ASSERT(head != tail);
    const Wqe& w = wqe(head++);
    APERTURE_DEBUG_ASSERT(!w.signaled || signaled_out != 0);
    if (w.signaled) --signaled_out;
    if (!w.signaled && w.status == WcStatus::success) return true;
    Cqe* cqe = next_completion(w.id, w.op, w.len, w.imm);
    if (cqe == nullptr) [[unlikely]]
      return false;
    cqe->wc.status = w.status;
    cqe->wc.vendor_err = w.denial;
    cq_->push();
    return true;
  }
  // The WR is over, nothing was before it, and the completion queue has room.
  void complete_fast(const SendWr& wr, uint64_t len) noexcept {
    APERTURE_DEBUG_ASSERT(is_empty());
    head = next = ++tail;
    if (!signals(wr)) return;
    next_completion(wr.id, wr.op, len, wr.imm);
    cq_->push();
  }
  void clear() noexcept { head = next = tail = released = signaled_out = 0; }

  uint32_t head = 0;          // oldest that is not completed
  uint32_t next = 0;          // first that is not posted whole
  uint32_t tail = 0;          // where the next goes
  uint32_t released = 0;      // slots before it may be used again: their completions were polled
  uint32_t signaled_out = 0;  // not completed yet, of those that ask for a completion

 private:
  // The place of the completion of what was the oldest until now, filled for a success. Null: it is
  // an overrun.
  Cqe* next_completion(uint64_t id, SendOp op, uint64_t len, uint32_t imm) noexcept {
    Cqe* cqe = cq_->next();
    if (cqe == nullptr) [[unlikely]]
      return nullptr;
    cqe->wc.succeed(opcode_of(op), len, qpn_);
    cqe->wc.id = id;
    if (op == SendOp::local_inv) cqe->wc.imm = imm;
    cqe->qp = &qp_;
    cqe->released = &released;
    cqe->release = head;
    return cqe;
  }

  QueuePair& qp_;
  CompletionQueue* const cq_;  // null: XRC receive
  const uint32_t qpn_;
  const uint32_t max_wr_;
  const uint32_t max_sge_;
  const uint32_t max_inline_bytes_;
  const uint32_t mask_;
  const bool signal_all_;
  QueueArray<Wqe> wqes_;
  QueueArray<Sge> sges_;
  QueueArray<std::byte> inline_;
};

}  // namespace aperture::ib
