// Executing the peer's requests: see rc_responder.hpp.
//
// The claim of a write or read is looked at before what this queue pair allows: its initiator may
// have done it directly while it was allowed, and then there is nothing left to refuse.
#include "ib/rc_responder.hpp"

#include <algorithm>
#include <cstring>

#include "ib/rc_explain.hpp"

namespace aperture::ib {

using protect::AccessAsk;
using protect::Denial;
using protect::Rights;
using transport::BytesIn;
using transport::ClaimVerdict;
using transport::LaneEnd;
using wire::RcHead;
using wire::RcMessage;
using wire::RcOp;
using WildHead = wire::RcHeadFields<Wild>;

namespace {

constexpr size_t kSendOffset = wire::rc_payload_offset(RcOp::send, 0);
constexpr size_t kWriteOffset = wire::rc_payload_offset(RcOp::write, 0);

// A piece of a message or write, which lies inside it.
struct Part {
  uint32_t len = 0;
  uint32_t offset = 0;
  uint32_t total = 0;

  bool is_last() const noexcept { return len == total - offset; }
};
template <typename Fields>
bool read_part(const Fields& f, Part& out) noexcept {
  return f.total.bounded(kMaxMessageBytes, out.total) && f.offset.bounded(out.total, out.offset) &&
         f.len.bounded(out.total - out.offset, out.len);
}

Wild<uint64_t> address_of(const wire::RcWriteFields<Wild>& f) noexcept {
  return Wild<uint64_t>(uint64_t{f.addr_hi.unchecked()} << 32 | f.addr_lo.unchecked());
}

// What the sender says to the application: immediate data are its business alone.
void say(Wc& wc, uint8_t flags, Wild<uint32_t> imm) noexcept {
  wc.imm = imm.unchecked();
  wc.flags = (flags & wire::kRcImm) != 0 ? kWcWithImm : 0;
  wc.solicited = (flags & wire::kRcSolicited) != 0;
}

}  // namespace

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
  if (q_.spec_.type != QpType::rc || q_.spec_.srq != nullptr || !established_ || taken_ ||
      !q_.is_up() || q_.lost_until_ns_ != 0) {
    return false;
  }
  ring::ChannelRx& rx = q_.lane_->request_rx;
  int budget = transport::kPollBudget;
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
    if (rx.unpublished() >= transport::kAckCells) q_.lane_.acknowledge_requests();
  }
  if (budget == transport::kPollBudget) return false;
  rnr_told_ = waiting_ = false;
  q_.lane_.acknowledge_requests();
  return true;
}

// False: nothing was taken, and it goes the slow path.
bool RcResponder::take_one(const WildHead& head, const std::byte* body) noexcept {
  constexpr uint8_t kWhole = wire::kRcFirst | wire::kRcLast;
  if ((head.flags & ~(wire::kRcImm | wire::kRcSolicited)) != kWhole) return false;
  uint16_t len = 0;
  if (head.op == static_cast<uint8_t>(RcOp::send)) {
    return head.len.bounded(ring::kBodyBytes - kSendOffset, len) && len != 0 &&
           receive_fast(head, len, body + kSendOffset);
  }
  return head.op == static_cast<uint8_t>(RcOp::write) &&
         head.len.bounded(ring::kBodyBytes - kWriteOffset, len) && len != 0 &&
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
  const auto f = wire::load_rc<wire::RcWriteFields>(body);
  const protect::Checked checked = q_.spec_.keys->access().check(
      ask_of(f.rkey, address_of(f), len, Rights::remote_write), &access_.hint());
  if (!checked || !checked.grant().copy_in(body + kWriteOffset, len)) return false;
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
  Cqe* cqe = q_.receiving_.next(cq, &queue, id, release, opcode, len);
  say(cqe->wc, head.flags, head.imm);
  cq.push();
}

// ---- the slow path ------------------------------------------------------------------------------

bool RcResponder::poll() noexcept {
  ring::ChannelRx& rx = q_.lane_->request_rx;
  bool any = take_fast();
  const uint64_t moved_before = q_.lane_.moved_for_peer();
  turn_over_ = false;
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
      if (turn_over_) {
        any = true;
      } else {
        held_at_ = rx.cells.pos();
      }
      break;
    }
    rnr_told_ = waiting_ = false;
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
  if (q_.spec_.type == QpType::xrc_recv && !serve_xrc(m)) [[unlikely]] {
    return refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
  }
  switch (m.op) {
    case RcOp::send: return on_send(m);
    case RcOp::send_bytes: return on_send_bytes(m);
    case RcOp::write: return on_write(m);
    case RcOp::write_bytes: return on_write_bytes(m);
    case RcOp::notice: return on_notice(m);
    case RcOp::read: return on_read();
    case RcOp::atomic: return on_atomic();
    case RcOp::atomic_write: return on_atomic_write();
    case RcOp::flush: return on_flush();
    case RcOp::wake: q_.spec_.keys->accessors().wake(q_.lane_->direct.watched); return true;
    default: q_.break_protocol("a response among the requests"); return false;
  }
}

// An XRC request works for the receive queue that it names: in its domain, with its completions.
bool RcResponder::serve_xrc(const RcMessage& m) noexcept {
  if (m.op == RcOp::wake) return true;  // of the lane, and of no receive queue
  const ReceiveQueue* queue = queue_for(m);
  if (queue == nullptr || queue->cq() == nullptr) return false;
  q_.memory_.set_pd(queue->pd());
  q_.receiving_.complete_at(*queue->cq());
  return true;
}

// The receive queue that a message is for; nullptr: an XRC number that means nothing here.
ReceiveQueue* RcResponder::queue_for(const RcMessage& m) noexcept {
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

void RcResponder::forget_waiting() noexcept {
  if (!waiting_) return;
  waiting_ = false;
  if (q_.spec_.type != QpType::xrc_recv) return q_.receiving_.queue().forget(q_);
  ReceiveQueue* queue = q_.spec_.windows->find_srq(recv_srq_, q_.spec_.xrc_domain);
  if (queue != nullptr) queue->forget(q_);
}

// A receive for the message at the head; if none is posted, the peer is told once.
RcResponder::Receive RcResponder::take_receive(const RcMessage& m) noexcept {
  ReceiveQueue* queue = queue_for(m);
  if (queue == nullptr) {
    refuse(WcStatus::rem_inv_req_err, nullptr, Denial::none);
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
  waiting_ = true;
  queue->wait(q_);
  if (!rnr_told_) {
    rnr_told_ = true;
    respond({static_cast<uint8_t>(RcOp::rnr), 0, 0, q_.attr_.min_rnr_timer},
            wire::RcAnswer{q_.lane_->request_rx.cells.pos()});
  }
  return Receive::waits;
}

// The receive that was taken completes so.
void RcResponder::end_receive(WcStatus mine) noexcept {
  assert(taken_ && mine != WcStatus::success);
  taken_ = false;
  // XRC: the queue of the receive that was taken may be gone, and where it completes with it
  const bool has_queue = q_.spec_.type != QpType::xrc_recv ||
                         q_.spec_.windows->find_srq(recv_srq_, q_.spec_.xrc_domain) != nullptr;
  if (has_queue) q_.receiving_.fail(recv_, mine);
}

void RcResponder::fail_receive(WcStatus mine, WcStatus theirs) noexcept {
  end_receive(mine);
  if (theirs != WcStatus::success) refuse(theirs, nullptr, Denial::none);
  q_.fail();
}

// Both ends are told both lengths.
void RcResponder::fail_too_long(uint64_t len) noexcept {
  const uint64_t room = recv_.room;
  explain_too_long({q_.spec_, q_.remote_}, len, room);
  end_receive(WcStatus::loc_len_err);
  refuse(WcStatus::rem_inv_req_err, wire::kRcRoom,
         static_cast<uint32_t>(std::min<uint64_t>(room, ~0u)));
  q_.fail();
}

void RcResponder::begin_anew() noexcept {
  forget_waiting();
  windows_.begin_anew();
  access_.begin_range();
  rnr_told_ = dropping_ = placed_ = write_refused_ = false;
  got_ = 0;
  held_at_ = kNowhere;
}

void RcResponder::stop() noexcept {
  begin_anew();
  established_ = false;
  if (!taken_) return;
  if (q_.attr_.state == QpState::err) {
    fail_receive(WcStatus::wr_flush_err, WcStatus::success);
  } else {
    taken_ = false;
  }
}

// Its bytes are in place: what is left is the invalidation it asks for, and the completion. False:
// the invalidation is not over.
bool RcResponder::deliver(const RcMessage& m, uint64_t len, WcOpcode opcode) noexcept {
  assert(taken_);
  const bool invalidates = m.has(wire::kRcInv) && opcode == WcOpcode::recv;
  if (invalidates) {
    // a key of the peer's: protect/ checks that its window was bound to this queue pair
    const protect::WindowAnswer answer = windows_.invalidate_for_peer(m.imm.unchecked());
    placed_ = answer == protect::WindowAnswer::waits;
    if (placed_) return false;
    // unreliable: the receive is for the next message
    if (answer != protect::WindowAnswer::done) {
      return refuse(WcStatus::rem_access_err, nullptr, protect::denial_of(answer));
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

// Answers, if it is reliable, and takes nothing more: true, the request is over.
bool RcResponder::refuse(WcStatus status, const AccessAsk* ask, Denial denial) noexcept {
  if (ask != nullptr) explain_refusing({q_.spec_, q_.remote_}, *ask, denial);
  return refuse(status, 0, static_cast<uint32_t>(denial));
}

// imm: a denial, or as the flags say.
bool RcResponder::refuse(WcStatus status, uint8_t flags, uint32_t imm) noexcept {
  if (!q_.is_reliable()) return true;
  respond({static_cast<uint8_t>(RcOp::nak), flags, static_cast<uint16_t>(status), imm},
          wire::RcAnswer{q_.lane_->request_rx.cells.pos()});
  q_.lane_.acknowledge_requests();
  q_.fail();
  q_.raise(status == WcStatus::rem_access_err ? AsyncEvent::qp_access_err : AsyncEvent::qp_req_err);
  return true;
}

// Inline payload into the receive that was taken, which has room for it.
WcStatus RcResponder::place_inline(const RcMessage& m) noexcept {
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

bool RcResponder::on_send(const RcMessage& m) noexcept {
  if (placed_) return deliver(m, m.len, WcOpcode::recv);
  if (const Receive r = take_receive(m); r != Receive::taken) return r != Receive::waits;
  if (m.len > recv_.room) {
    fail_too_long(m.len);
    return true;
  }
  const WcStatus s = place_inline(m);
  if (s != WcStatus::success) {
    fail_receive(s, WcStatus::rem_op_err);
    return true;
  }
  return deliver(m, m.len, WcOpcode::recv);
}

bool RcResponder::on_send_bytes(const RcMessage& m) noexcept {
  if (placed_) return deliver(m, got_, WcOpcode::recv);
  ring::ChannelRx& rx = q_.lane_->request_rx;
  const auto f = wire::load_rc<wire::RcSendBytesFields>(rx.cells.body());
  const bool first = m.has(wire::kRcFirst);
  Part part;
  BytesIn bytes;
  if (read_part(f, part)) {
    bytes = LaneEnd::take_bytes(rx, f.byte_pos, part.len, transport::kPieceBytes);
  }
  if (!bytes || first != (part.offset == 0) || m.has(wire::kRcLast) != part.is_last()) {
    q_.break_protocol("payload outside its ring or its message");
    return false;
  }
  if (first) {
    const Receive r = take_receive(m);
    if (r == Receive::waits || r == Receive::refused) return r == Receive::refused;
    dropping_ = r == Receive::lost;
    got_ = 0;
  }
  if (dropping_) {
    LaneEnd::done_with(rx, bytes);
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
    s = q_.memory_.scatter(recv_.sge, recv_.sge_count, part.offset, bytes.from, part.len);
  }
  LaneEnd::done_with(rx, bytes);
  if (s != WcStatus::success) {
    fail_receive(s, WcStatus::rem_op_err);
    return true;
  }
  got_ += part.len;
  return !part.is_last() || deliver(m, got_, WcOpcode::recv);
}

bool RcResponder::on_write(const RcMessage& m) noexcept {
  const ring::CellReader& cells = q_.lane_->request_rx.cells;
  const auto f = wire::load_rc<wire::RcWriteFields>(cells.body());
  const AccessAsk ask = ask_of(f.rkey, address_of(f), m.len, Rights::remote_write);
  const bool has_imm = m.has(wire::kRcImm);
  const ClaimVerdict verdict = q_.lane_.may_execute();
  if (verdict == ClaimVerdict::wait) return false;
  if (!q_.allows(kAllowRemoteWrite) && (verdict == ClaimVerdict::execute || has_imm)) {
    return refuse(WcStatus::rem_inv_req_err, &ask, Denial::none);
  }
  if (has_imm) {
    if (const Receive r = take_receive(m); r != Receive::taken) return r != Receive::waits;
  }
  if (verdict == ClaimVerdict::execute && m.len != 0) {  // without bytes no key is looked at
    const Denial denial =
        access_.write_cells(ask, cells, wire::rc_payload_offset(RcOp::write, m.flags), m.len);
    if (denial != Denial::none) return refuse(WcStatus::rem_access_err, &ask, denial);
  }
  return !has_imm || deliver(m, m.len, WcOpcode::recv_write_with_imm);
}

bool RcResponder::on_write_bytes(const RcMessage& m) noexcept {
  ring::ChannelRx& rx = q_.lane_->request_rx;
  const auto f = wire::load_rc<wire::RcWriteBytesFields>(rx.cells.body());
  Part part;
  BytesIn bytes;
  if (read_part(f, part)) {
    bytes = LaneEnd::take_bytes(rx, f.byte_pos, part.len, transport::kPieceBytes);
  }
  if (!bytes) {
    q_.break_protocol("payload outside its ring or its operation");
    return false;
  }
  const AccessAsk whole = ask_of(f.rkey, f.addr, part.total, Rights::remote_write);
  const bool delivers = m.has(wire::kRcImm) && part.is_last();
  const ClaimVerdict verdict = q_.lane_.may_execute();
  if (verdict == ClaimVerdict::wait) return false;
  if (!q_.allows(kAllowRemoteWrite) && (verdict == ClaimVerdict::execute || delivers)) {
    return refuse(WcStatus::rem_inv_req_err, &whole, Denial::none);
  }
  if (delivers && !write_refused_) {
    const Receive r = take_receive(m);
    if (r == Receive::waits || r == Receive::refused) return r == Receive::refused;
  }
  if (part.offset == 0) {
    access_.begin_range();
    write_refused_ = false;
  }
  if (verdict == ClaimVerdict::execute && !write_refused_) {
    const Denial denial = access_.write_piece(whole, part.offset, bytes.from, part.len);
    if (denial != Denial::none) {
      write_refused_ = true;
      refuse(WcStatus::rem_access_err, &whole, denial);
    }
  }
  LaneEnd::done_with(rx, bytes);
  if (!delivers || !q_.is_up() || write_refused_ || !taken_) return true;
  return deliver(m, part.total, WcOpcode::recv_write_with_imm);
}

bool RcResponder::on_notice(const RcMessage& m) noexcept {
  const auto f = wire::load_rc<wire::RcNoticeFields>(q_.lane_->request_rx.cells.body());
  uint64_t len = 0;
  if (!m.has(wire::kRcImm) || !f.len.bounded(kMaxMessageBytes, len)) {
    q_.break_protocol("a notice of nothing");
    return false;
  }
  if (const Receive r = take_receive(m); r != Receive::taken) return r != Receive::waits;
  return deliver(m, len, WcOpcode::recv_write_with_imm);
}

bool RcResponder::on_read() noexcept {
  ring::ChannelTx& tx = q_.lane_->response_tx;
  if (!tx.room(wire::kRcMaxCells)) return false;
  const auto f = wire::load_rc<wire::RcReadFields>(q_.lane_->request_rx.cells.body());
  const ClaimVerdict verdict = q_.lane_.may_execute();
  if (verdict == ClaimVerdict::wait) return false;
  Part part;
  const bool is_sound = read_part(f, part);
  if (part.offset == 0 && !access_.is_streaming()) access_.begin_range();
  if (verdict == ClaimVerdict::skip) {
    access_.end_read();
    return true;
  }
  // Wild again in there
  const AccessAsk whole = ask_of(f.rkey, f.addr, f.total.unchecked(), Rights::remote_read);
  if (!q_.is_reliable() || !q_.allows(kAllowRemoteRead) || q_.attr_.max_dest_rd_atomic == 0 ||
      !is_sound) {
    return refuse(WcStatus::rem_inv_req_err, &whole, Denial::none);
  }
  const uint64_t pos = q_.lane_->request_rx.cells.pos();
  Denial denial = Denial::none;
  if (part.total > wire::kRcMaxInline || access_.is_streaming()) {
    // the first part that we execute; the one life of its region that it meets serves all
    if (access_.region().generation == 0) denial = access_.check_whole(whole);
    if (denial != Denial::none) return refuse(WcStatus::rem_access_err, &whole, denial);
    const auto streamed =
        access_.stream_read(q_.lane_, whole, part.offset, part.len, denial,
                            [&](std::byte* body, uint64_t done, uint64_t byte_pos, uint32_t n) {
                              const auto offset = static_cast<uint32_t>(part.offset + done);
                              wire::store_rc(body, {static_cast<uint8_t>(RcOp::read_data), 0, 0, 0},
                                             wire::RcReadData{pos, byte_pos, offset, n});
                            });
    if (streamed == transport::RemoteAccess::Streamed::denied) {
      return refuse(WcStatus::rem_access_err, &whole, denial);
    }
    if (streamed == transport::RemoteAccess::Streamed::changed) {
      q_.break_protocol("a read that became shorter while it was answered");
    }
    turn_over_ = streamed == transport::RemoteAccess::Streamed::turn_over;
    return streamed == transport::RemoteAccess::Streamed::all;
  }
  std::byte flat[wire::kRcMaxInline];
  if (part.total != 0) denial = access_.read_once(whole, flat, part.total);
  if (denial != Denial::none) return refuse(WcStatus::rem_access_err, &whole, denial);
  const auto n = static_cast<uint16_t>(part.total);
  ring::BodyWriter(tx.cells, wire::rc_payload_offset(RcOp::read_inline, 0)).copy_in(flat, n);
  respond({static_cast<uint8_t>(RcOp::read_inline), 0, n, 0}, wire::RcAnswer{pos},
          wire::rc_cells_of(RcOp::read_inline, 0, n));
  return true;
}

}  // namespace aperture::ib
