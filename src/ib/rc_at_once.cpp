// The short way of a short request: a send or a write whose bytes are inline and fit into one cell,
// on a reliable connection with nothing before it that is still to be put into the ring.
//
// It does what post_send(), begin() and put_inline() together do for such a one, in one go and with
// one copy; whatever is different in any way goes the long way, which also finds what is wrong with
// it. And that of binds and invalidations, which are over when they are posted, if nothing is
// before them. Engine lock held.
//
// IBTA vol. 1, 9.7; ibv_post_send(3), IBV_SEND_INLINE, IBV_WR_BIND_MW.
#include "base/barrier.hpp"
#include "base/copy.hpp"
#include "ib/rc_qp.hpp"

namespace aperture::ib {

using wire::RcOp;

namespace {

constexpr uint32_t kOtherwise = kFence | kSolicited | kInline;  // of these, inline alone

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

// A write to a target that is away would be done by our own hand.
bool RcQp::target_polls() const noexcept {
  return !target_away_ && away_times_ == 0 && lane_->request_tx.consumer_hot();
}

// Nothing at all is before it, so no fence holds it up and no lane is asked for.
bool RcQp::post_local_at_once(const SendWr& wr) noexcept {
  const bool binds = wr.op == SendOp::bind_mw && wr.bind != nullptr;
  if ((wr.flags & ~kSignaled) != 0 || wr.sge_count != 0 || wr.inline_parts != nullptr ||
      !(binds || wr.op == SendOp::local_inv) || spec_.type != QpType::rc || !may_send() ||
      sq_head_ != sq_tail_ || sq_tail_ - sq_released_ >= spec_.max_send_wr) {
    return false;
  }
  const Driving driving(*this);
  stopped_ = local_waits_ = false;  // all that had failed is flushed
  const uint32_t at = sq_tail_++;
  Wqe& w = wqe(at);
  note(w, wr);
  w.stage = Wqe::Stage::begun;
  w.is_inline = w.in_ring = false;
  w.len = w.begin_pos = w.end_pos = 0;
  if (binds) w.bind = *wr.bind;
  if (binds ? put_bind(at) : put_local_inv(at)) {
    ++sq_next_;
    retire();
  }
  busy_ = sq_head_ != sq_tail_;
  return true;
}

bool RcQp::post_at_once(const SendWr& wr) noexcept {
  if (is_local(wr.op)) return post_local_at_once(wr);
  const bool send = is_send(wr.op);
  if ((wr.flags & kOtherwise) != kInline || wr.inline_parts != nullptr || wr.sge_count != 1 ||
      spec_.max_send_sge == 0 || !(send || is_write(wr.op)) || !is_clear()) {
    return false;
  }
  const uint64_t len = wr.sge[0].length;
  const size_t offset = send ? kSendOffset : kWriteOffset;
  ring::ChannelTx& tx = lane_->request_tx;
  if (len == 0 || len > spec_.max_inline_bytes || offset + len > ring::kBodyBytes) return false;
  if (!tx.room(1) || !(send || (target_polls() && has_piece_slot()))) return false;
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
  note_posted(wr, len, tx.cells.pos());
  tx.cells.publish(1);
  published_request();
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

}  // namespace aperture::ib
