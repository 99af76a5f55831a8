// Executing the peer's requests: see rc_responder.hpp.
//
// The claim of a write or read is looked at before what this queue pair allows: its initiator may
// have done it directly while it was allowed, and then there is nothing left to refuse.
#include "ib/rc_responder.hpp"

namespace aperture::ib {

using protect::AccessAsk;
using protect::Denial;
using protect::Rights;
using transport::BytesIn;
using transport::ClaimVerdict;
using wire::RcHead;
using wire::RcMessage;
using wire::RcOp;
using Receive = RcReceiver::Receive;
using WildHead = wire::RcHeadFields<Wild>;

// A NIC's acknowledgement of a send comes before the message that answers it, and programs with one
// queue for both count on it: the peer has published what it executed before it published what is
// at the head of our ring, so whatever that answers completes first.
[[gnu::noinline]] void RcResponder::complete_answered_sends() noexcept {
  assert(q_.lane_uses_ != 0);  // a failure ends the use of the lane
  answers_.learn_executed();
  if (q_.is_up()) answers_.retire();
}

// ---- the fast path ------------------------------------------------------------------------------

// flatten: the calls would be a tenth of it.
[[gnu::flatten]] bool RcResponder::take_fast() noexcept {
  // the first message of a connection, and the rest of a longer one, take the slow path
  if (q_.spec_.type != QpType::rc || q_.spec_.srq != nullptr || !established_ ||
      receiver_.has_begun() || !q_.is_up() || q_.lost_until_ns_ != 0) {
    return false;
  }
  ring::ChannelRx& rx = q_.lane_->request_rx;
  int budget = transport::kPollBudget;
  pace_.begin(rx.cells.pos());
  for (; budget > 0 && rx.cells.ready(); --budget) {
    if (q_.sq_.signaled_out != 0) {
      complete_answered_sends();
      if (!q_.is_up()) break;
    }
    const std::byte* body = rx.cells.body();
    const WildHead head = wire::load_rc_head(body);
    if (budget != transport::kPollBudget) rx.cells.prefetch(transport::kPrefetchCells);
    if (!take_one(head, body)) break;
    rx.cells.advance(1);
    const bool rests = pace_.wants_rest(rx.cells.pos());
    if (rests || rx.unpublished() >= transport::kAckCells) q_.lane_.acknowledge_requests();
    if (rests) [[unlikely]]
      pace_.rest();
  }
  if (budget == transport::kPollBudget) return false;
  receiver_.step();
  q_.lane_.acknowledge_requests();
  return true;
}

// False: nothing was taken, and it goes the slow path.
bool RcResponder::take_one(const WildHead& head, const std::byte* body) noexcept {
  constexpr uint8_t kInOne = wire::kRcFirst | wire::kRcLast;
  if ((head.flags & ~(wire::kRcImm | wire::kRcSolicited)) != kInOne) return false;
  uint16_t len = 0;
  if (head.op == static_cast<uint8_t>(RcOp::send)) {
    return head.len.bounded(ring::kBodyBytes - wire::kRcSendOffset, len) && len != 0 &&
           receive_fast(head, len, body + wire::kRcSendOffset);
  }
  return head.op == static_cast<uint8_t>(RcOp::write) &&
         head.len.bounded(ring::kBodyBytes - wire::kRcWriteOffset, len) && len != 0 &&
         write_fast(head, len, body);
}

// Payload into the next receive, and its completion.
bool RcResponder::receive_fast(const WildHead& head, uint16_t len,
                               const std::byte* payload) noexcept {
  if (!may_complete()) return false;
  const Sge* piece = q_.receiving_.own()->only_piece();
  if (piece == nullptr || len > piece->length || piece->lkey == kNullLkey) return false;
  const protect::Checked checked =
      q_.memory_.check(piece->lkey, piece->addr, len, Rights::local_write);
  if (!checked || !checked.grant().copy_in(payload, len)) return false;
  complete_fast(head, WcOpcode::recv, len);
  return true;
}

// Payload into the region, and the completion of the next receive if there is immediate data.
bool RcResponder::write_fast(const WildHead& head, uint16_t len, const std::byte* body) noexcept {
  const bool has_imm = (head.flags & wire::kRcImm) != 0;
  if (!q_.allows(kAllowRemoteWrite) || (has_imm && !may_complete()) ||
      q_.lane_.may_execute() != ClaimVerdict::execute) {
    return false;
  }
  const wire::RcTarget f = wire::load_rc_target(body);
  const protect::Checked checked = q_.spec_.keys->access().check(
      execution_.ask(f.rkey, f.addr, len, Rights::remote_write), &execution_.access().hint());
  if (!checked || !checked.grant().copy_in(body + wire::kRcWriteOffset, len)) return false;
  if (has_imm) complete_fast(head, WcOpcode::recv_write_with_imm, len);
  return true;
}

bool RcResponder::may_complete() const noexcept {
  return !q_.receiving_.own()->empty() && q_.receiving_.cq()->has_room();
}

// The next receive is taken, and complete.
void RcResponder::complete_fast(const WildHead& head, WcOpcode opcode, uint16_t len) noexcept {
  ReceiveQueue& queue = *q_.receiving_.own();
  CompletionQueue& cq = *q_.receiving_.cq();
  uint64_t id = 0;
  const uint32_t release = queue.take_oldest(id);
  APERTURE_DEBUG_ASSERT(cq.has_room());  // may_complete() has found it
  Cqe& cqe = cq.next_in_room();
  q_.receiving_.fill(cqe, &queue, id, release, opcode, len);
  say(cqe.wc, head.flags, head.imm);
  cq.push();
}

void RcResponder::begin_anew() noexcept {
  receiver_.begin_anew();
  execution_.access().begin_range();
  write_refused_ = false;
  turn_.forget();
}

void RcResponder::stop() noexcept {
  begin_anew();
  established_ = false;
  receiver_.stop();
}

// ---- the slow path ------------------------------------------------------------------------------

bool RcResponder::poll() noexcept {
  ring::ChannelRx& rx = q_.lane_->request_rx;
  bool any = take_fast();
  const uint64_t moved_before = q_.lane_.moved_for_peer();
  turn_.begin();
  if (!established_ && rx.cells.ready()) [[unlikely]] {
    established_ = true;
    if (q_.attr_.state == QpState::rtr) q_.raise(AsyncEvent::comm_est);
  }
  for (int budget = transport::kPollBudget; budget > 0 && rx.cells.ready() && q_.is_up();
       --budget) {
    if (q_.sq_.signaled_out != 0) {
      complete_answered_sends();
      if (!q_.is_up()) break;
    }
    RcMessage m;
    if (!wire::read_rc_head(rx.cells.body(), m)) [[unlikely]] {
      q_.break_protocol("an unknown request");
      return true;
    }
    if (budget != transport::kPollBudget) rx.cells.prefetch(transport::kPrefetchCells);
    if (!execute(m)) {
      any = turn_.leave(rx.cells) || any;
      break;
    }
    receiver_.step();
    rx.cells.advance(m.n_cells);
    any = true;
    // pieces of a large message at once: who sends them waits for room
    const bool is_piece = m.op == RcOp::write_bytes || m.op == RcOp::send_bytes;
    if (is_piece || rx.unpublished() >= transport::kAckCells) q_.lane_.acknowledge_requests();
    if (!is_piece && m.op != RcOp::read) continue;
    if (q_.lane_.moved_for_peer() - moved_before >= transport::kPollBytes) break;
  }
  q_.lane_.acknowledge_requests();
  return any;
}

// False: it stays at the head of the ring.
bool RcResponder::execute(const RcMessage& m) noexcept {
  // whatever becomes of it, there is room to refuse it
  if (!q_.lane_->response_tx.room(1)) return false;
  if (q_.spec_.type == QpType::xrc_recv && !receiver_.serve_xrc(m)) [[unlikely]] {
    return execution_.refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
  }
  switch (m.op) {
    case RcOp::send: return receiver_.on_send(m);
    case RcOp::send_bytes: return receiver_.on_send_bytes(m);
    case RcOp::write: return on_write(m);
    case RcOp::write_bytes: return on_write_bytes(m);
    case RcOp::notice: return on_notice(m);
    case RcOp::read: return on_read();
    case RcOp::atomic: return words_.on_atomic();
    case RcOp::atomic_write: return words_.on_atomic_write();
    case RcOp::flush: return words_.on_flush();
    case RcOp::wake: q_.spec_.keys->accessors().wake(q_.lane_->direct.watched); return true;
    default: q_.break_protocol("a response among the requests"); return false;
  }
}

bool RcResponder::on_write(const RcMessage& m) noexcept {
  const ring::CellReader& cells = q_.lane_->request_rx.cells;
  const wire::RcTarget f = wire::load_rc_target(cells.body());
  const AccessAsk ask = execution_.ask(f.rkey, f.addr, m.len, Rights::remote_write);
  const bool has_imm = m.has(wire::kRcImm);
  const ClaimVerdict verdict = q_.lane_.may_execute();
  if (verdict == ClaimVerdict::wait) return false;
  if (!q_.allows(kAllowRemoteWrite) && (verdict == ClaimVerdict::execute || has_imm)) {
    return execution_.refuse(WcStatus::rem_inv_req_err, &ask, Denial::none);
  }
  if (has_imm) {
    if (const Receive r = receiver_.take(m); r != Receive::taken) return r != Receive::waits;
  }
  if (verdict == ClaimVerdict::execute && m.len != 0) {  // without bytes no key is looked at
    const Denial denial = execution_.access().write_cells(
        ask, cells, wire::rc_payload_offset(RcOp::write, m.flags), m.len);
    if (denial != Denial::none) return execution_.refuse(WcStatus::rem_access_err, &ask, denial);
  }
  return !has_imm || receiver_.deliver(m, m.len, WcOpcode::recv_write_with_imm);
}

bool RcResponder::on_write_bytes(const RcMessage& m) noexcept {
  ring::ChannelRx& rx = q_.lane_->request_rx;
  const auto f = wire::load_rc<wire::RcWriteBytesFields>(rx.cells.body());
  RcPart part;
  BytesIn bytes;
  if (read_part(f, part)) {
    bytes = q_.lane_.payload().take_piece(rx, f.byte_pos, part.len, q_.lane_->piece_bytes);
  }
  if (!bytes) {
    q_.break_protocol("payload outside its ring or its operation");
    return false;
  }
  const AccessAsk whole = execution_.ask(f.rkey, f.addr, part.total, Rights::remote_write);
  const bool delivers = m.has(wire::kRcImm) && part.is_last();
  const ClaimVerdict verdict = q_.lane_.may_execute();
  if (verdict == ClaimVerdict::wait) return false;
  if (!q_.allows(kAllowRemoteWrite) && (verdict == ClaimVerdict::execute || delivers)) {
    return execution_.refuse(WcStatus::rem_inv_req_err, &whole, Denial::none);
  }
  if (delivers && !write_refused_) {
    const Receive r = receiver_.take(m);
    if (r == Receive::waits || r == Receive::refused) return r == Receive::refused;
  }
  if (part.offset == 0) {
    execution_.access().begin_range();
    write_refused_ = false;
  }
  if (verdict == ClaimVerdict::execute && !write_refused_) {
    const Denial denial = execution_.access().write_piece(whole, part.offset, bytes);
    if (denial != Denial::none) {
      write_refused_ = true;
      execution_.refuse(WcStatus::rem_access_err, &whole, denial);
    }
  }
  q_.lane_.payload().done_with(rx, bytes);
  if (!delivers || !q_.is_up() || write_refused_ || !receiver_.has_begun()) return true;
  return receiver_.deliver(m, part.total, WcOpcode::recv_write_with_imm);
}

bool RcResponder::on_notice(const RcMessage& m) noexcept {
  const auto f = wire::load_rc<wire::RcNoticeFields>(q_.lane_->request_rx.cells.body());
  uint64_t len = 0;
  if (!m.has(wire::kRcImm) || !f.len.bounded(kMaxMessageBytes, len)) {
    q_.break_protocol("a notice of nothing");
    return false;
  }
  if (const Receive r = receiver_.take(m); r != Receive::taken) return r != Receive::waits;
  return receiver_.deliver(m, len, WcOpcode::recv_write_with_imm);
}

bool RcResponder::on_read() noexcept {
  ring::ChannelTx& tx = q_.lane_->response_tx;
  if (!tx.room(wire::kRcMaxCells)) return false;
  const auto f = wire::load_rc<wire::RcReadFields>(q_.lane_->request_rx.cells.body());
  const ClaimVerdict verdict = q_.lane_.may_execute();
  if (verdict == ClaimVerdict::wait) return false;
  transport::RemoteAccess& access = execution_.access();
  RcPart part;
  const bool is_sound = read_part(f, part);
  if (part.offset == 0 && !access.is_streaming()) access.begin_range();
  if (verdict == ClaimVerdict::skip) {
    access.end_read();
    return true;
  }
  // Wild again in there
  const AccessAsk whole = execution_.ask(f.rkey, f.addr, f.total.unchecked(), Rights::remote_read);
  if (!q_.is_reliable() || !q_.allows(kAllowRemoteRead) || q_.attr_.max_dest_rd_atomic == 0 ||
      !is_sound) {
    return execution_.refuse(WcStatus::rem_inv_req_err, &whole, Denial::none);
  }
  const uint64_t pos = q_.lane_->request_rx.cells.pos();
  Denial denial = Denial::none;
  if (part.total > wire::kRcMaxInline || access.is_streaming()) {
    // the first part that we execute; the one life of its region that it meets serves all
    if (access.region().generation == 0) denial = access.check_whole(whole);
    if (denial != Denial::none) return execution_.refuse(WcStatus::rem_access_err, &whole, denial);
    const auto streamed =
        access.stream_read(q_.lane_, whole, part.offset, part.len, denial,
                           [&](std::byte* body, uint64_t done, uint64_t byte_pos, uint32_t n) {
                             const auto offset = static_cast<uint32_t>(part.offset + done);
                             wire::store_rc(body, {static_cast<uint8_t>(RcOp::read_data), 0, 0, 0},
                                            wire::RcReadData{pos, byte_pos, offset, n});
                           });
    if (streamed == transport::RemoteAccess::Streamed::denied) {
      return execution_.refuse(WcStatus::rem_access_err, &whole, denial);
    }
    if (streamed == transport::RemoteAccess::Streamed::changed) {
      q_.break_protocol("a read that became shorter while it was answered");
    }
    if (streamed == transport::RemoteAccess::Streamed::turn_over) turn_.end();
    return streamed == transport::RemoteAccess::Streamed::all;
  }
  std::byte flat[wire::kRcMaxInline];
  if (part.total != 0) denial = access.read_once(whole, flat, part.total);
  if (denial != Denial::none) return execution_.refuse(WcStatus::rem_access_err, &whole, denial);
  const auto n = static_cast<uint16_t>(part.total);
  ring::BodyWriter(tx.cells, wire::rc_payload_offset(RcOp::read_inline, 0)).copy_in(flat, n);
  execution_.respond({static_cast<uint8_t>(RcOp::read_inline), 0, n, 0}, wire::RcAnswer{pos},
                     wire::rc_cells_of(RcOp::read_inline, 0, n));
  return true;
}

}  // namespace aperture::ib
