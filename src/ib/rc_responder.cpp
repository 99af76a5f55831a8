// The responder: executes the peer's requests in order. Everything here is a peer's word; what
// cannot come from a sound peer ends the connection (break_protocol), what a sound peer may get
// wrong is refused, and the queue pair takes nothing more. IBTA vol. 1, 9.7.4 and 9.9.3.
#include <algorithm>
#include <cstring>

#include "base/guarded_copy.hpp"
#include "ib/rc_qp.hpp"
#include "ib/window_book.hpp"
#include "qp/atomic_op.hpp"
#include "qp/tuning.hpp"

namespace aperture::ib {

using protect::AccessAsk;
using protect::Denial;
using protect::Rights;
using wire::RcHead;
using wire::RcOp;

bool RcQp::poll_requests() noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  bool any = take_at_once();
  if (!established_ && rx.cells.ready()) [[unlikely]] {
    established_ = true;
    if (attr_.state == QpState::rtr) raise(AsyncEvent::comm_est);
  }
  for (int budget = qp::kPollBudget; budget > 0 && rx.cells.ready() && is_up(); --budget) {
    const RcHead head = wire::load_rc_head(rx.cells.body());
    const auto op = static_cast<RcOp>(head.op);
    const uint32_t n_cells = wire::rc_cells_of(op, head.flags, head.len);
    if (n_cells == 0) [[unlikely]] {
      break_protocol("an unknown request");
      return true;
    }
    if (budget != qp::kPollBudget) rx.cells.prefetch(qp::kPrefetchCells);
    if (!execute(head, op)) break;
    rnr_told_ = waiting_ = false;
    rx.cells.advance(n_cells);
    any = true;
    // pieces of a large message at once: who sends them waits for room
    if (rx.unpublished() >= qp::kAckCells || op == RcOp::write_bytes || op == RcOp::send_bytes) {
      rx.publish_consumed();
      published_response();
    }
  }
  if (rx.unpublished() != 0) {
    rx.publish_consumed();
    published_response();
  }
  return any;
}

// An XRC request works for the receive queue that it names: in its domain, with its completions.
bool RcQp::serve_xrc(const RcHead& head, RcOp op) noexcept {
  const ReceiveQueue* queue = queue_for(head, op);
  if (queue == nullptr || queue->cq() == nullptr) return false;
  pd_now_ = queue->pd();
  recv_cq_now_ = queue->cq();
  return true;
}

// False: it stays at the head of the ring.
bool RcQp::execute(const RcHead& head, RcOp op) noexcept {
  if (spec_.type == QpType::xrc_recv && !serve_xrc(head, op)) [[unlikely]] {
    return lane_->response_tx.room(1) && refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
  }
  switch (op) {
    case RcOp::send: return on_send(head);
    case RcOp::send_bytes: return on_send_bytes(head);
    case RcOp::write: return on_write(head);
    case RcOp::write_bytes: return on_write_bytes(head);
    case RcOp::notice: return on_notice(head);
    case RcOp::read: return on_read(head);
    case RcOp::atomic: return on_atomic(head);
    default: break_protocol("a response among the requests"); return false;
  }
}

qp::ClaimVerdict RcQp::may_execute() noexcept {
  return qp::claim_verdict(lane_->request_rx.words(), lane_->request_rx.cells.pos(),
                           lane_->fence_sends);
}

// Answers, if it is reliable, and takes nothing more: true, the request is over. Room for one nak
// has been seen to.
bool RcQp::refuse(WcStatus status, const AccessAsk* ask, Denial denial) noexcept {
  if (ask != nullptr) explain_refusing(*ask, denial);
  if (!is_reliable()) return true;
  ring::ChannelTx& tx = lane_->response_tx;
  const RcHead head{static_cast<uint8_t>(RcOp::nak), 0, static_cast<uint16_t>(status),
                    static_cast<uint32_t>(denial)};
  wire::store_rc(tx.cells.body(), head, wire::RcAnswer{lane_->request_rx.cells.pos()});
  tx.cells.publish(1);
  lane_->request_rx.publish_consumed();
  published_response();
  enter_error();
  raise(status == WcStatus::rem_access_err ? AsyncEvent::qp_access_err : AsyncEvent::qp_req_err);
  return true;
}

bool RcQp::allows(uint32_t access) noexcept {
  return (attr_.access & access) == access;
}

// The receive queue that a message is for; nullptr: an XRC number that means nothing here.
ReceiveQueue* RcQp::queue_for(const RcHead& head, RcOp op) noexcept {
  if (spec_.type != QpType::xrc_recv) return &receives();
  if ((head.flags & wire::kRcXrc) == 0) return nullptr;
  const uint32_t number = wire::load_srq_number(lane_->request_rx.cells.body(), op);
  if (!taken_ && number != recv_srq_) {
    forget_waiting();
    recv_srq_ = number;
  }
  return spec_.windows->find_srq(recv_srq_, spec_.xrc_domain);
}

// A receive for the message at the head. False: none is posted, and the peer is told once.
bool RcQp::take_receive(ReceiveQueue* queue) noexcept {
  if (taken_) return true;
  if (!queue->empty()) [[likely]] {
    queue->take(recv_);
    taken_ = true;
    got_ = 0;
    return true;
  }
  waiting_ = true;
  queue->wait(*this);
  if (rnr_told_ || !is_reliable()) return false;
  ring::ChannelTx& tx = lane_->response_tx;
  if (!tx.room(1)) return false;
  rnr_told_ = true;
  const RcHead head{static_cast<uint8_t>(RcOp::rnr), 0, 0, attr_.min_rnr_timer};
  wire::store_rc(tx.cells.body(), head, wire::RcAnswer{lane_->request_rx.cells.pos()});
  tx.cells.publish(1);
  published_response();
  return false;
}

// The receive under way fails, and with it the queue pair.
void RcQp::fail_receive(WcStatus mine, WcStatus theirs) noexcept {
  Wc wc;
  wc.status = mine;
  wc.opcode = WcOpcode::recv;
  taken_ = false;
  if (has_receive_queue()) complete_recv(recv_, wc);
  if (theirs != WcStatus::success) refuse(theirs, nullptr, Denial::none);
  enter_error();
}

// Its bytes are in place: what is left is the invalidation it asks for, and the completion. False:
// the invalidation is not over.
bool RcQp::deliver(const RcHead& head, uint64_t len, WcOpcode opcode) noexcept {
  const bool invalidates = (head.flags & wire::kRcInv) != 0 && opcode == WcOpcode::recv;
  if (invalidates) {
    const protect::WindowAnswer answer = invalidate_for_peer(head.imm);
    placed_ = answer == protect::WindowAnswer::waits;
    if (placed_) return false;
    // unreliable: the receive is for the next message
    if (answer != protect::WindowAnswer::done) return true;
  }
  Wc wc;
  wc.opcode = opcode;
  wc.byte_len = static_cast<uint32_t>(len);
  wc.imm = head.imm;
  wc.flags = (head.flags & wire::kRcImm) != 0 ? kWcWithImm : invalidates ? kWcWithInv : 0;
  wc.solicited = (head.flags & wire::kRcSolicited) != 0;
  taken_ = false;
  complete_recv(recv_, wc);
  return true;
}

// Inline payload into the receive that was taken, which has room for it.
WcStatus RcQp::place_inline(const RcHead& head) noexcept {
  const ring::CellReader& cells = lane_->request_rx.cells;
  if (recv_.sge_count > 1) {  // a bad piece changes none of the others
    const WcStatus s = check_local(recv_.sge, recv_.sge_count, head.len, Rights::local_write);
    if (s != WcStatus::success) return s;
  }
  const size_t at = wire::rc_payload_offset(RcOp::send, head.flags);
  if (at + head.len <= ring::kBodyBytes) [[likely]] {
    // copied once: what is placed is what was read
    return scatter(recv_.sge, recv_.sge_count, 0, cells.body() + at, head.len);
  }
  std::byte flat[wire::kRcMaxInline];
  ring::BodyReader(cells, at).copy_out(flat, head.len);
  return scatter(recv_.sge, recv_.sge_count, 0, flat, head.len);
}

bool RcQp::on_send(const RcHead& head) noexcept {
  if (placed_) return deliver(head, head.len, WcOpcode::recv);
  if (!lane_->response_tx.room(1)) return false;
  ReceiveQueue* queue = queue_for(head, RcOp::send);
  if (queue == nullptr) return refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
  if (is_lost(*queue)) return true;
  if (!take_receive(queue)) return false;
  if (head.len > recv_.room) {
    fail_receive(WcStatus::loc_len_err, WcStatus::rem_inv_req_err);
    return true;
  }
  const WcStatus s = place_inline(head);
  if (s != WcStatus::success) {
    fail_receive(s, WcStatus::rem_op_err);
    return true;
  }
  return deliver(head, head.len, WcOpcode::recv);
}

bool RcQp::on_send_bytes(const RcHead& head) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  const auto f = wire::load_rc<wire::RcSendBytes>(rx.cells.body());
  if (placed_) return deliver(head, got_, WcOpcode::recv);
  if (!lane_->response_tx.room(1)) return false;
  const std::byte* from = f.len <= qp::kPieceBytes ? rx.bytes.view(f.byte_pos, f.len) : nullptr;
  const bool first = (head.flags & wire::kRcFirst) != 0;
  const bool last = (head.flags & wire::kRcLast) != 0;
  if (from == nullptr || f.total > kMaxMessageBytes || f.offset > f.total ||
      f.len > f.total - f.offset || first != (f.offset == 0) ||
      last != (f.len == f.total - f.offset)) {
    break_protocol("payload outside its ring or its message");
    return false;
  }
  if (first) {
    ReceiveQueue* queue = queue_for(head, RcOp::send_bytes);
    if (queue == nullptr) return refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
    dropping_ = is_lost(*queue);
    if (!dropping_ && !take_receive(queue)) return false;
    got_ = 0;
  }
  if (dropping_) {
    rx.free_bytes_before(rx.bytes.after(f.byte_pos, f.len));
    return true;
  }
  if (!taken_ || f.offset != got_) {
    break_protocol("a piece that continues no message");
    return false;
  }
  if (f.total > recv_.room) {
    fail_receive(WcStatus::loc_len_err, WcStatus::rem_inv_req_err);
    return true;
  }
  WcStatus s = WcStatus::success;
  if (first) s = check_local(recv_.sge, recv_.sge_count, f.total, Rights::local_write);
  if (s == WcStatus::success) s = scatter(recv_.sge, recv_.sge_count, f.offset, from, f.len);
  rx.free_bytes_before(rx.bytes.after(f.byte_pos, f.len));
  if (s != WcStatus::success) {
    fail_receive(s, WcStatus::rem_op_err);
    return true;
  }
  got_ += f.len;
  return !last || deliver(head, got_, WcOpcode::recv);
}

bool RcQp::on_write(const RcHead& head) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  if (!lane_->response_tx.room(1)) return false;
  const auto f = wire::load_rc<wire::RcWrite>(rx.cells.body());
  const AccessAsk ask = ask_of(f.rkey, f.addr(), head.len, Rights::remote_write);
  if (!allows(kAllowRemoteWrite)) return refuse(WcStatus::rem_inv_req_err, &ask, Denial::none);
  const bool has_imm = (head.flags & wire::kRcImm) != 0;
  if (has_imm) {
    ReceiveQueue* queue = queue_for(head, RcOp::write);
    if (queue == nullptr) return refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
    if (is_lost(*queue)) return true;
    if (!take_receive(queue)) return false;
  }
  const qp::ClaimVerdict verdict = may_execute();
  if (verdict == qp::ClaimVerdict::wait) return false;
  if (verdict == qp::ClaimVerdict::execute && head.len != 0) {  // without bytes no key is looked at
    const protect::Checked checked = spec_.keys->check(ask, &remote_hint_);
    if (!checked) return refuse(WcStatus::rem_access_err, &ask, checked.denial());
    size_t at = 0;
    bool copied = true;
    ring::BodyReader(rx.cells, wire::rc_payload_offset(RcOp::write, head.flags))
        .each_piece(head.len, [&](const std::byte* piece, size_t n) {
          copied = copied && checked.grant().copy_in(piece, n, at);
          at += n;
        });
    if (!copied) return refuse(WcStatus::rem_access_err, &ask, Denial::not_backed);
  }
  return !has_imm || deliver(head, head.len, WcOpcode::recv_write_with_imm);
}

bool RcQp::on_write_bytes(const RcHead& head) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  if (!lane_->response_tx.room(1)) return false;
  const auto f = wire::load_rc<wire::RcWriteBytes>(rx.cells.body());
  const std::byte* from = f.len <= qp::kPieceBytes ? rx.bytes.view(f.byte_pos, f.len) : nullptr;
  if (from == nullptr || f.total > kMaxMessageBytes || f.offset > f.total ||
      f.len > f.total - f.offset) {
    break_protocol("payload outside its ring or its operation");
    return false;
  }
  const AccessAsk whole = ask_of(f.rkey, f.addr, f.total, Rights::remote_write);
  if (!allows(kAllowRemoteWrite)) return refuse(WcStatus::rem_inv_req_err, &whole, Denial::none);
  const bool last = f.len == f.total - f.offset;
  const bool has_imm = (head.flags & wire::kRcImm) != 0;
  if (has_imm && last && !write_refused_) {
    ReceiveQueue* queue = queue_for(head, RcOp::write_bytes);
    if (queue == nullptr) return refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
    if (!is_lost(*queue) && !take_receive(queue)) return false;
  }
  const qp::ClaimVerdict verdict = may_execute();
  if (verdict == qp::ClaimVerdict::wait) return false;
  if (f.offset == 0) {
    whole_region_ = {};
    write_refused_ = false;
  }
  if (verdict == qp::ClaimVerdict::execute && !write_refused_) {
    // The whole range is checked with its first piece that is ours, so one that leaves its region
    // changes nothing; from then on only that life of that region will do.
    Denial denial = Denial::none;
    if (whole_region_.generation == 0) {
      const protect::Checked first = spec_.keys->check(whole, &remote_hint_);
      denial = first.denial();
      if (first) whole_region_ = first.grant().region();
    }
    if (denial == Denial::none) {
      const protect::Checked part = spec_.keys->recheck(
          ask_of(f.rkey, f.addr + f.offset, f.len, Rights::remote_write), whole_region_);
      denial = part.denial();
      if (part && !part.grant().copy_in(from, f.len)) denial = Denial::not_backed;
    }
    if (denial != Denial::none) {
      write_refused_ = true;
      refuse(WcStatus::rem_access_err, &whole, denial);
    }
  }
  rx.free_bytes_before(rx.bytes.after(f.byte_pos, f.len));
  if (!has_imm || !last || !is_up() || write_refused_ || !taken_) return true;
  return deliver(head, f.total, WcOpcode::recv_write_with_imm);
}

bool RcQp::on_notice(const RcHead& head) noexcept {
  if (!lane_->response_tx.room(1)) return false;
  const auto f = wire::load_rc<wire::RcNotice>(lane_->request_rx.cells.body());
  if ((head.flags & wire::kRcImm) == 0 || f.len > kMaxMessageBytes) {
    break_protocol("a notice of nothing");
    return false;
  }
  ReceiveQueue* queue = queue_for(head, RcOp::notice);
  if (queue == nullptr) return refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
  if (is_lost(*queue)) return true;
  if (!take_receive(queue)) return false;
  return deliver(head, f.len, WcOpcode::recv_write_with_imm);
}

bool RcQp::on_read(const RcHead&) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  if (!tx.room(wire::kRcMaxCells)) return false;
  const auto f = wire::load_rc<wire::RcRead>(lane_->request_rx.cells.body());
  const AccessAsk whole = ask_of(f.rkey, f.addr, f.len, Rights::remote_read);
  if (!is_reliable() || !allows(kAllowRemoteRead) || attr_.max_dest_rd_atomic == 0 ||
      f.len > kMaxMessageBytes) {
    return refuse(WcStatus::rem_inv_req_err, &whole, Denial::none);
  }
  const qp::ClaimVerdict verdict = may_execute();
  if (verdict == qp::ClaimVerdict::wait) return false;
  if (verdict == qp::ClaimVerdict::skip) {
    read_done_ = 0;
    return true;
  }
  const uint64_t pos = lane_->request_rx.cells.pos();
  if (f.len > wire::kRcMaxInline) {
    if (read_done_ == 0) {
      const protect::Checked checked = spec_.keys->check(whole, &remote_hint_);
      if (!checked) return refuse(WcStatus::rem_access_err, &whole, checked.denial());
      whole_region_ = checked.grant().region();
    }
    return stream_read(f, whole);
  }
  std::byte flat[wire::kRcMaxInline];
  if (f.len != 0) {
    const protect::Checked checked = spec_.keys->check(whole, &remote_hint_);
    if (!checked) return refuse(WcStatus::rem_access_err, &whole, checked.denial());
    if (!checked.grant().copy_out(flat, f.len)) {
      return refuse(WcStatus::rem_access_err, &whole, Denial::not_backed);
    }
  }
  const auto len = static_cast<uint16_t>(f.len);
  wire::store_rc(tx.cells.body(), {static_cast<uint8_t>(RcOp::read_inline), 0, len, 0},
                 wire::RcAnswer{pos});
  ring::BodyWriter(tx.cells, wire::rc_payload_offset(RcOp::read_inline, 0)).copy_in(flat, len);
  tx.cells.publish(wire::rc_cells_of(RcOp::read_inline, 0, len));
  published_response();
  return true;
}

// Puts pieces of the result into the response ring. True: all of it, or refused in its middle.
bool RcQp::stream_read(const wire::RcRead& f, const AccessAsk& whole) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  while (read_done_ < f.len) {
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(f.len - read_done_, qp::kPieceBytes));
    uint64_t pos = 0;
    if (!tx.room(2) || !tx.reserve_bytes(n, pos)) return false;
    const protect::Checked checked = spec_.keys->recheck(
        ask_of(f.rkey, f.addr + read_done_, n, Rights::remote_read), whole_region_);
    Denial denial = !lane_->prepare_response_bytes() ? Denial::not_backed : checked.denial();
    if (denial == Denial::none && !checked.grant().copy_out(tx.bytes.at(pos), n)) {
      denial = Denial::not_backed;
    }
    if (denial != Denial::none) return refuse(WcStatus::rem_access_err, &whole, denial);
    tx.bytes.commit(pos, n);
    wire::store_rc(
        tx.cells.body(), {static_cast<uint8_t>(RcOp::read_data), 0, 0, 0},
        wire::RcReadData{lane_->request_rx.cells.pos(), pos, static_cast<uint32_t>(read_done_), n});
    tx.cells.publish(1);
    published_response();
    read_done_ += n;
  }
  read_done_ = 0;
  return true;
}

bool RcQp::on_atomic(const RcHead&) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  if (!tx.room(2)) return false;
  const auto f = wire::load_rc<wire::RcAtomic>(lane_->request_rx.cells.body());
  const AccessAsk ask = ask_of(f.rkey, f.addr, sizeof(uint64_t), Rights::remote_atomic);
  if (!is_reliable() || !allows(kAllowRemoteAtomic) || attr_.max_dest_rd_atomic == 0 ||
      f.is_swap > 1) {
    return refuse(WcStatus::rem_inv_req_err, &ask, Denial::none);
  }
  if (may_execute() == qp::ClaimVerdict::wait) return false;
  if (f.addr % sizeof(uint64_t) != 0) {
    return refuse(WcStatus::rem_inv_req_err, &ask, Denial::misaligned);
  }
  const protect::Checked checked = spec_.keys->check(ask, &remote_hint_);
  if (!checked) return refuse(WcStatus::rem_access_err, &ask, checked.denial());
  std::byte former[sizeof(uint64_t)];
  std::byte compare_add[sizeof(uint64_t)];
  std::byte swap[sizeof(uint64_t)];
  std::memcpy(compare_add, &f.compare_add, sizeof compare_add);
  std::memcpy(swap, &f.swap, sizeof swap);
  const bool done = checked.grant().each_piece([&](std::byte* target, size_t n) {
    // the range of an offset-addressed region need not begin where its addresses say
    if (n != sizeof(uint64_t) || reinterpret_cast<uintptr_t>(target) % sizeof(uint64_t) != 0 ||
        !guarded_touch(target, n, true)) {
      return false;
    }
    if (f.is_swap != 0) {
      qp::execute_atomic(qp::AtomicOp::cswap, qp::AtomicType::uint64, target, swap, compare_add,
                         former, 1);
    } else {
      qp::execute_atomic(qp::AtomicOp::sum, qp::AtomicType::uint64, target, compare_add, nullptr,
                         former, 1);
    }
    return true;
  });
  if (!done) return refuse(WcStatus::rem_access_err, &ask, Denial::not_backed);
  wire::store_rc(tx.cells.body(), {static_cast<uint8_t>(RcOp::read_inline), 0, sizeof former, 0},
                 wire::RcAnswer{lane_->request_rx.cells.pos()});
  std::memcpy(tx.cells.body() + wire::rc_payload_offset(RcOp::read_inline, 0), former,
              sizeof former);
  tx.cells.publish(1);
  published_response();
  return true;
}

}  // namespace aperture::ib
