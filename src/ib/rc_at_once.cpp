// The short way of a short request: a send or a write whose bytes are inline and fit into one cell,
// on a reliable connection with nothing before it that is still to be put into the ring; and of
// such a one at the other end, where a send needs a receive of one piece.
//
// It does what post_send(), begin() and put_inline() together do for such a one, or execute(),
// take_receive(), place_inline() and deliver(), in one go and with one copy; whatever is different
// in any way goes the long way, which also finds what is wrong with it. Engine lock held.
//
// IBTA vol. 1, 9.7; ibv_post_send(3), IBV_SEND_INLINE.
#include "base/barrier.hpp"
#include "base/copy.hpp"
#include "ib/rc_qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::ib {

using wire::RcOp;

namespace {

constexpr bool is_send(SendOp op) noexcept {
  return op == SendOp::send || op == SendOp::send_with_imm;
}
constexpr bool is_write(SendOp op) noexcept {
  return op == SendOp::write || op == SendOp::write_with_imm;
}
constexpr size_t kSendOffset = wire::rc_payload_offset(RcOp::send, 0);
constexpr size_t kWriteOffset = wire::rc_payload_offset(RcOp::write, 0);
static_assert(ring::kBodyBytes <= kShortBytes);

}  // namespace

// The state alone: nothing is in the way of a request that goes into the ring now.
bool RcQp::is_clear() const noexcept {
  return spec_.type == QpType::rc && may_send() && sq_next_ == sq_tail_ && !stopped_ && is_up() &&
         lost_until_ns_ == 0 && sq_tail_ - sq_released_ < spec_.max_send_wr;
}

// Of a target that is away we may do a read or a write by our own hand.
bool RcQp::target_polls() const noexcept {
  return !target_away_ && away_times_ == 0 && lane_->request_tx.consumer_hot();
}

// It is over, and nothing was before it. The completion queue has room.
void RcQp::complete_now(const SendWr& wr, WcOpcode opcode, uint64_t len) noexcept {
  sq_head_ = sq_next_ = ++sq_tail_;
  if (!spec_.sq_sig_all && (wr.flags & kSignaled) == 0) return;
  Cqe* cqe = spec_.send_cq->next();
  cqe->wc.succeed(opcode, len, spec_.qpn);
  cqe->wc.id = wr.id;
  if (opcode == WcOpcode::local_inv) cqe->wc.imm = wr.imm;
  cqe->qp = this;
  cqe->released = &sq_released_;
  cqe->release = sq_head_;
  spec_.send_cq->push();
}

bool RcQp::post_at_once(const SendWr& wr) noexcept {
  if (is_local(wr.op)) return post_local_at_once(wr);
  if ((wr.flags & (kFence | kSolicited)) != 0 || wr.inline_parts != nullptr || wr.sge_count != 1 ||
      spec_.max_send_sge == 0 || !is_clear()) {
    return false;
  }
  const bool send = is_send(wr.op);
  if (!send && !target_polls()) {
    return (wr.op == SendOp::write || wr.op == SendOp::read) && put_direct_at_once(wr);
  }
  if ((wr.flags & kInline) == 0 || !(send || is_write(wr.op))) return false;
  const uint64_t len = wr.sge[0].length;
  const size_t offset = send ? kSendOffset : kWriteOffset;
  ring::ChannelTx& tx = lane_->request_tx;
  if (len == 0 || len > spec_.max_inline_bytes || offset + len > ring::kBodyBytes) return false;
  if (!tx.room(1) || !(send || has_piece_slot())) return false;
  const void* from = reinterpret_cast<const void*>(wr.sge[0].addr);
  if (!send) {
    // kept: should the target stop before it, it is done by our own hand
    copy_short(inline_of(sq_tail_), from, len);
    from = inline_of(sq_tail_);
  }
  std::byte* body = tx.cells.body();
  copy_short(body + offset, from, len);
  const bool imm = wr.op == SendOp::send_with_imm || wr.op == SendOp::write_with_imm;
  const wire::RcHead head{
      static_cast<uint8_t>(send ? RcOp::send : RcOp::write),
      static_cast<uint8_t>(wire::kRcFirst | wire::kRcLast | (imm ? wire::kRcImm : 0)),
      static_cast<uint16_t>(len), wr.imm};
  std::memcpy(body, &head, sizeof head);
  if (!send) {
    const wire::RcWrite f{static_cast<uint32_t>(wr.remote_addr),
                          static_cast<uint32_t>(wr.remote_addr >> 32), wr.rkey};
    std::memcpy(body + wire::kRcHeadBytes, &f, sizeof f);
    // one with immediate data is for its owner alone to take from the ring
    if (!imm) note_piece(sq_tail_, 1, 0, len);
  }
  // on its way first: what is noted is looked at under the engine lock alone, and so not before
  const uint64_t pos = tx.cells.pos();
  tx.cells.publish(1);
  published_request();
  note_posted(wr, len, pos);
  return true;
}

// What both kinds have of it.
void RcQp::note(Wqe& w, const SendWr& wr) noexcept {
  w.id = wr.id;
  w.op = wr.op;
  w.signaled = spec_.sq_sig_all || (wr.flags & kSignaled) != 0;
  if (w.signaled) ++signaled_out_;
  w.fence = w.solicited = w.owner_only = w.copied = false;
  w.sge_count = 0;
  w.imm = wr.imm;
  w.rkey = wr.rkey;
  w.remote_addr = wr.remote_addr;
  w.status = WcStatus::success;
  w.denial = 0;
  w.done = w.region = 0;
}

// Its slot of the send queue, which is over for the requester but for the acknowledgement.
void RcQp::note_posted(const SendWr& wr, uint64_t len, uint64_t pos) noexcept {
  Wqe& w = wqe(sq_tail_);
  note(w, wr);
  w.stage = Wqe::Stage::posted;
  w.is_inline = w.in_ring = true;
  w.len = len;
  w.begin_pos = pos;
  w.end_pos = pos + 1;
  sq_next_ = ++sq_tail_;
  busy_ = awaits_answers();
}

// ---- the responder ------------------------------------------------------------------------------

// True: some of the requests at the head of the ring were of that kind, and are done. flatten: the
// calls would be a tenth of it.
[[gnu::flatten]] bool RcQp::take_at_once() noexcept {
  // the first message of a connection, and the rest of a longer one, go the long way
  if (spec_.type != QpType::rc || spec_.srq != nullptr || !established_ || taken_ || !is_up() ||
      lost_until_ns_ != 0) {
    return false;
  }
  ring::ChannelRx& rx = lane_->request_rx;
  int budget = qp::kPollBudget;
  for (; budget > 0 && rx.cells.ready(); --budget) {
    const std::byte* body = rx.cells.body();
    const wire::RcHead head = wire::load_rc_head(body);
    if (budget != qp::kPollBudget) rx.cells.prefetch(qp::kPrefetchCells);
    if (!execute_at_once(head, body)) break;
    rx.cells.advance(1);
    if (rx.unpublished() >= qp::kAckCells) {
      rx.publish_consumed();
      published_response();
    }
  }
  if (budget == qp::kPollBudget) return false;
  rnr_told_ = waiting_ = false;
  if (rx.unpublished() != 0) {
    rx.publish_consumed();
    published_response();
  }
  return true;
}

// False: nothing was taken, and it goes the long way.
bool RcQp::execute_at_once(const wire::RcHead& head, const std::byte* body) noexcept {
  constexpr uint8_t kWhole = wire::kRcFirst | wire::kRcLast;
  if (head.len == 0 || (head.flags & ~(wire::kRcImm | wire::kRcSolicited)) != kWhole) return false;
  if (head.op == static_cast<uint8_t>(RcOp::send)) {
    return head.len <= ring::kBodyBytes - kSendOffset && receive_at_once(head, body + kSendOffset);
  }
  return head.op == static_cast<uint8_t>(RcOp::write) &&
         head.len <= ring::kBodyBytes - kWriteOffset && write_at_once(head, body);
}

// Payload into the next receive, and its completion.
bool RcQp::receive_at_once(const wire::RcHead& head, const std::byte* payload) noexcept {
  if (!may_complete()) return false;
  const Sge* piece = rq_->only_piece();
  if (piece == nullptr || head.len > piece->length || piece->lkey == kNullLkey) return false;
  const protect::Checked checked = spec_.keys->check(
      local_ask(piece->lkey, piece->addr, head.len, protect::Rights::local_write), &hint_);
  if (!checked || !checked.grant().copy_in(payload, head.len)) return false;
  complete_at_once(head, WcOpcode::recv);
  return true;
}

// Payload into the region, and the completion of the next receive if there is immediate data.
bool RcQp::write_at_once(const wire::RcHead& head, const std::byte* body) noexcept {
  const bool has_imm = (head.flags & wire::kRcImm) != 0;
  if (!allows(kAllowRemoteWrite) || (has_imm && !may_complete()) ||
      may_execute() != qp::ClaimVerdict::execute) {
    return false;
  }
  const auto f = wire::load_rc<wire::RcWrite>(body);
  const protect::Checked checked = spec_.keys->check(
      ask_of(f.rkey, f.addr(), head.len, protect::Rights::remote_write), &remote_hint_);
  if (!checked || !checked.grant().copy_in(body + kWriteOffset, head.len)) return false;
  if (has_imm) complete_at_once(head, WcOpcode::recv_write_with_imm);
  return true;
}

bool RcQp::may_complete() const noexcept {
  return !rq_->empty() && recv_cq_now_->has_room();
}

// The next receive is taken, and complete.
void RcQp::complete_at_once(const wire::RcHead& head, WcOpcode opcode) noexcept {
  ReceiveQueue& queue = *rq_;
  Cq& cq = *recv_cq_now_;
  Cqe* cqe = cq.next();
  cqe->release = queue.take_oldest(cqe->wc.id);
  cqe->released = queue.released();
  cqe->qp = this;
  cqe->wc.succeed(opcode, head.len, spec_.qpn);
  cqe->wc.imm = head.imm;
  cqe->wc.flags = (head.flags & wire::kRcImm) != 0 ? kWcWithImm : 0;
  cqe->wc.solicited = (head.flags & wire::kRcSolicited) != 0;
  cq.push();
}

}  // namespace aperture::ib
