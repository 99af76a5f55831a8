// Messages into receives: see rc_receiver.hpp.
#include "ib/rc_receiver.hpp"

#include <algorithm>

#include "ib/rc_explain.hpp"

namespace aperture::ib {

using protect::Denial;
using protect::Rights;
using transport::BytesIn;
using wire::RcMessage;
using wire::RcOp;

bool RcReceiver::serve_xrc(const RcMessage& m) noexcept {
  if (m.op == RcOp::wake) return true;  // of the lane, and of no receive queue
  const ReceiveQueue* queue = queue_for(m);
  if (queue == nullptr || queue->cq() == nullptr) return false;
  q_.memory_.set_pd(queue->pd());
  q_.receiving_.complete_at(*queue->cq());
  return true;
}

// The receive queue that a message is for; nullptr: an XRC number that means nothing here.
ReceiveQueue* RcReceiver::queue_for(const RcMessage& m) noexcept {
  if (q_.spec_.type != QpType::xrc_recv) return &q_.receiving_.queue();
  if (!m.has(wire::kRcXrc)) return nullptr;
  // it is only looked up, in our own domain
  const uint32_t number =
      wire::load_srq_number(q_.lane_->request_rx.cells.body(), m.op).unchecked();
  if (!taken_ && number != recv_srq_) {
    forget_waiting();
    recv_srq_ = number;
  }
  return q_.spec_.windows->find_srq(recv_srq_, q_.spec_.xrc_domain);
}

CompletionQueue* RcReceiver::completes_at() const noexcept {
  if (q_.spec_.type != QpType::xrc_recv) return q_.receiving_.cq();
  const ReceiveQueue* queue = q_.spec_.windows->find_srq(recv_srq_, q_.spec_.xrc_domain);
  return queue != nullptr ? queue->cq() : nullptr;
}

void RcReceiver::forget_waiting() noexcept {
  if (!waiting_) return;
  waiting_ = false;
  if (q_.spec_.type != QpType::xrc_recv) return q_.receiving_.queue().forget(q_);
  ReceiveQueue* queue = q_.spec_.windows->find_srq(recv_srq_, q_.spec_.xrc_domain);
  if (queue != nullptr) queue->forget(q_);
}

RcReceiver::Receive RcReceiver::take(const RcMessage& m) noexcept {
  ReceiveQueue* queue = queue_for(m);
  if (queue == nullptr) {
    execution_.refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
    return Receive::refused;
  }
  if (taken_) return Receive::taken;
  if (!queue->empty()) [[likely]] {
    queue->take(recv_);
    taken_ = true;
    got_ = 0;
    return Receive::taken;
  }
  if (!q_.is_reliable()) return Receive::lost;
  waiting_ = queue->wait(q_);
  if (!rnr_told_) {
    rnr_told_ = true;
    execution_.respond({static_cast<uint8_t>(RcOp::rnr), 0, 0, q_.attr_.min_rnr_timer},
                       wire::RcAnswer{q_.lane_->request_rx.cells.pos()});
  }
  return Receive::waits;
}

// The receive that was taken completes so.
void RcReceiver::end(WcStatus mine) noexcept {
  assert(taken_ && mine != WcStatus::success);
  taken_ = false;
  // XRC: the queue of the receive that was taken may be gone, and where it completes with it
  const bool has_queue = q_.spec_.type != QpType::xrc_recv ||
                         q_.spec_.windows->find_srq(recv_srq_, q_.spec_.xrc_domain) != nullptr;
  if (has_queue) q_.receiving_.fail(recv_, mine);
}

void RcReceiver::fail(WcStatus mine, WcStatus theirs) noexcept {
  end(mine);
  if (theirs != WcStatus::success) execution_.refuse(theirs, nullptr, Denial::none);
  q_.fail();
}

// Both ends are told both lengths.
void RcReceiver::fail_too_long(uint64_t len) noexcept {
  const uint64_t room = recv_.room;
  explain_too_long({q_.spec_, q_.remote_}, len, room);
  end(WcStatus::loc_len_err);
  execution_.refuse(WcStatus::rem_inv_req_err, wire::kRcRoom,
                    static_cast<uint32_t>(std::min<uint64_t>(room, ~0u)));
  q_.fail();
}

void RcReceiver::begin_anew() noexcept {
  forget_waiting();
  windows_.begin_anew();
  rnr_told_ = dropping_ = placed_ = false;
  got_ = 0;
}

void RcReceiver::stop() noexcept {
  if (!taken_) return;
  if (q_.attr_.state == QpState::err) {
    fail(WcStatus::wr_flush_err, WcStatus::success);
  } else {
    taken_ = false;
  }
}

bool RcReceiver::deliver(const RcMessage& m, uint64_t len, WcOpcode opcode) noexcept {
  assert(taken_);
  const bool invalidates = m.has(wire::kRcInv) && opcode == WcOpcode::recv;
  if (invalidates) {
    // a key of the peer's: protect/ checks that its window was bound to this queue pair
    const protect::WindowAnswer answer = windows_.invalidate_for_peer(m.imm.unchecked());
    placed_ = answer == protect::WindowAnswer::waits;
    if (placed_) return false;
    // unreliable: the receive is for the next message
    if (answer != protect::WindowAnswer::done) {
      return execution_.refuse(WcStatus::rem_access_err, nullptr, protect::denial_of(answer));
    }
  }
  taken_ = false;
  if (placed_) [[unlikely]] {  // also if the peer has put another request in its place meanwhile
    placed_ = false;
    windows_.begin_anew();
  }
  q_.receiving_.complete(recv_, opcode, len, [&](Wc& wc) {
    say(wc, m.flags, m.imm);
    if (invalidates && !m.has(wire::kRcImm)) wc.flags = kWcWithInv;
  });
  return true;
}

// Inline payload into the receive that was taken, which has room for it.
WcStatus RcReceiver::place_inline(const RcMessage& m) noexcept {
  assert(taken_ && m.len <= recv_.room);
  const ring::CellReader& cells = q_.lane_->request_rx.cells;
  if (recv_.sge_count > 1) {  // a bad piece changes none of the others
    const WcStatus s = q_.memory_.check_all(recv_.sge, recv_.sge_count, m.len, Rights::local_write);
    if (s != WcStatus::success) return s;
  }
  const size_t at = wire::rc_payload_offset(RcOp::send, m.flags);
  if (at + m.len <= ring::kBodyBytes) [[likely]] {
    // copied once: what is placed is what was read
    return q_.memory_.scatter(recv_.sge, recv_.sge_count, 0, cells.body() + at, m.len);
  }
  std::byte flat[wire::kRcMaxInline];
  ring::BodyReader(cells, at).copy_out(flat, m.len);
  return q_.memory_.scatter(recv_.sge, recv_.sge_count, 0, flat, m.len);
}

bool RcReceiver::on_send(const RcMessage& m) noexcept {
  if (placed_) return deliver(m, m.len, WcOpcode::recv);
  if (const Receive r = take(m); r != Receive::taken) return r != Receive::waits;
  if (m.len > recv_.room) {
    fail_too_long(m.len);
    return true;
  }
  const WcStatus s = place_inline(m);
  if (s != WcStatus::success) {
    fail(s, WcStatus::rem_op_err);
    return true;
  }
  return deliver(m, m.len, WcOpcode::recv);
}

bool RcReceiver::on_send_bytes(const RcMessage& m) noexcept {
  if (placed_) return deliver(m, got_, WcOpcode::recv);
  ring::ChannelRx& rx = q_.lane_->request_rx;
  const auto f = wire::load_rc<wire::RcSendBytesFields>(rx.cells.body());
  const bool first = m.has(wire::kRcFirst);
  RcPart part;
  BytesIn bytes;
  if (read_part(f, part)) {
    bytes = q_.lane_.payload().take_piece(rx, f.byte_pos, part.len, q_.lane_->piece_bytes);
  }
  if (!bytes || first != (part.offset == 0) || m.has(wire::kRcLast) != part.is_last()) {
    q_.break_protocol("payload outside its ring or its message");
    return false;
  }
  if (first) {
    const Receive r = take(m);
    if (r == Receive::waits || r == Receive::refused) return r == Receive::refused;
    dropping_ = r == Receive::lost;
    got_ = 0;
  }
  if (dropping_) {
    q_.lane_.payload().done_with(rx, bytes);
    return true;
  }
  if (!taken_ || part.offset != got_) {
    q_.break_protocol("a piece that continues no message");
    return false;
  }
  if (part.total > recv_.room) {
    fail_too_long(part.total);
    return true;
  }
  WcStatus s = WcStatus::success;
  if (first) s = q_.memory_.check_all(recv_.sge, recv_.sge_count, part.total, Rights::local_write);
  if (s == WcStatus::success) {
    s = q_.memory_.take_piece(recv_.sge, recv_.sge_count, part.offset, bytes);
  }
  q_.lane_.payload().done_with(rx, bytes);
  if (s != WcStatus::success) {
    fail(s, WcStatus::rem_op_err);
    return true;
  }
  got_ += part.len;
  return !part.is_last() || deliver(m, got_, WcOpcode::recv);
}

}  // namespace aperture::ib
