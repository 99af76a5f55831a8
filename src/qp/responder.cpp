// The responder: executes the peer's requests in order, and takes in its responses. Everything here
// is a peer's word; what cannot come from a sound peer ends the connection (break_protocol), what a
// sound peer may get wrong is refused by protect/ and answered with a nak.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/iov.hpp"
#include "base/log.hpp"
#include "protect/wording.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using protect::AccessAsk;
using protect::Denial;
using protect::Rights;
using wire::Head;
using wire::Op;

void Arrival::copy_to(void* to, uint64_t n) const noexcept {
  if (where == Where::flat) {
    std::memcpy(to, bytes, n);
  } else {
    ring::BodyReader(*cells, cells_offset).copy_out(to, n);
  }
}

void Arrival::scatter_to(const iovec* iov, size_t count, uint64_t n) const noexcept {
  if (count == 1) {
    copy_to(iov[0].iov_base, n);
    return;
  }
  if (where == Where::flat) {
    scatter(iov, count, 0, bytes, n);
    return;
  }
  uint64_t at = 0;
  ring::BodyReader(*cells, cells_offset).each_piece(n, [&](const std::byte* piece, size_t size) {
    scatter(iov, count, at, piece, size);
    at += size;
  });
}

// The messages of one cell at the head of the ring, and their acknowledgement. False: there are
// none.
bool Qp::poll_lines() noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  MessageSink& sink = *port_.sink;
  for (int budget = kPollBudget; budget > 0 && rx.cells.ready(); --budget) {
    const std::byte* body = rx.cells.body();
    const Head head = wire::load_head(body);
    // A stream: fetch what comes while this one is worked on. The first of a batch may be the only
    // one, and looking ahead of its sender would take the line away from it.
    if (budget != kPollBudget) rx.cells.prefetch(kPrefetchCells);
    if (!wire::is_line(head) || !sink.on_line(*this, head, body)) break;
    rx.cells.advance(1);
  }
  if (rx.unpublished() == 0) return false;
  rx.publish_consumed();
  // the requester may sleep until its operation is acknowledged
  published_response();
  return true;
}

bool Qp::poll_requests() noexcept {
  const bool lines = poll_lines();
  return poll_others() || lines;
}

// Requests of any kind, and their acknowledgement.
bool Qp::poll_others() noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  bool any = false;
  touched_page_ = kNoPage;
  for (int budget = kPollBudget; budget > 0 && rx.cells.ready(); --budget) {
    const Head head = wire::load_head(rx.cells.body());
    const Op op = static_cast<Op>(head.op);
    const uint32_t n_cells = wire::cells_of(op, head.flags, head.len);
    if (n_cells == 0) [[unlikely]] {
      break_protocol("an unknown request");
      return true;
    }
    rx.cells.prefetch(n_cells);
    if (!execute(head, op, n_cells)) break;
    any = true;
    // pieces of a large write at once: their initiator waits for room, and must not think us away
    if (rx.unpublished() >= kAckCells || op == Op::write_bytes) rx.publish_consumed();
    if (state_ == QpState::dead) return true;
  }
  if (rx.unpublished() != 0) {
    rx.publish_consumed();
    published_response();
  }
  return any;
}

bool Qp::execute(const Head& head, Op op, uint32_t n_cells) noexcept {
  bool executed = false;
  switch (op) {
    case Op::send:
    case Op::send_bytes:
    case Op::send_offer: executed = on_send(head, op); break;
    case Op::write: executed = on_write(head); break;
    case Op::write_bytes: executed = on_write_bytes(head); break;
    case Op::read: executed = on_read(head); break;
    case Op::notice: executed = on_notice(head); break;
    case Op::check: executed = on_check(head); break;
    case Op::commit: executed = on_commit(head); break;
    case Op::atomic: executed = on_atomic(head); break;
    case Op::atomic_bytes: executed = on_atomic_bytes(head); break;
    case Op::invalidate: executed = on_invalidate(head); break;
    default: break_protocol("a response among the requests"); return false;
  }
  if (executed) lane_->request_rx.cells.advance(n_cells);
  return executed;
}

bool Qp::on_send(const Head& head, Op op) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  const std::byte* body = rx.cells.body();
  Arrival a;
  a.tagged = (head.flags & wire::kTagged) != 0;
  a.beside = beside_of(head.flags);
  a.delivery = (head.flags & wire::kDelivery) != 0;
  a.tag = head.word();
  a.imm = 0;
  if (a.beside != Beside::nothing) {
    std::memcpy(&a.imm, body + wire::kHeadBytes + wire::field_bytes(op), sizeof a.imm);
    if ((head.flags & wire::kInvalidates) != 0) [[unlikely]] {
      const After after = after_invalidation(a.imm);
      if (after == After::broken) return false;
      if (after == After::refused) return step_over_send(op);
      a.beside = Beside::invalidated_key;
    }
  }
  uint64_t free_after = 0;
  if (op == Op::send) [[likely]] {
    const size_t at = wire::payload_offset(op, head.flags);
    a.len = head.len;
    if (at + head.len <= ring::kBodyBytes) [[likely]] {
      a.where = Arrival::Where::flat;
      a.bytes = body + at;
    } else {
      a.where = Arrival::Where::cells;
      a.cells = &rx.cells;
      a.cells_offset = at;
    }
  } else if (op == Op::send_bytes) {
    const auto f = wire::load_fields<wire::SendBytesFields>(body);
    a.where = Arrival::Where::flat;
    a.len = f.len;
    a.bytes = f.len <= kEagerBytes ? rx.bytes.view(f.byte_pos, f.len) : nullptr;
    if (a.bytes == nullptr) {
      break_protocol("payload outside its ring");
      return false;
    }
    free_after = rx.bytes.after(f.byte_pos, f.len);
  } else {
    const auto f = wire::load_fields<wire::SendOfferFields>(body);
    if (f.len > kMaxMessageBytes) {
      break_protocol("a message above the limit");
      return false;
    }
    a.where = Arrival::Where::offered;
    a.len = f.len;
    a.offer_address = f.address;
    a.offer_id = f.id;
    a.offer_claim = f.claim;
  }
  if (!port_.sink->on_message(*this, a)) return false;
  if (free_after != 0 && lane_ != nullptr) rx.free_bytes_before(free_after);
  return true;
}

AccessAsk Qp::ask_of(uint64_t key, uint64_t addr, uint64_t len, Rights need,
                     uint64_t secret) const noexcept {
  return {domain_, number_,        Wild<uint64_t>(key),   Wild<uint64_t>(addr), Wild<uint64_t>(len),
          need,    port_.endpoint, Wild<uint64_t>(secret)};
}

// Room for one nak must be there before an RMA request is looked at.
void Qp::answer_nak(Denial denial, uint8_t range_at) noexcept {
  const uint64_t pos = lane_->request_rx.cells.pos();
  const auto code = static_cast<uint16_t>(range_at << 8 | static_cast<uint16_t>(denial));
  const Head head = Head::make(Op::nak, 0, code, pos);
  std::memcpy(lane_->response_tx.cells.body(), &head, sizeof head);
  lane_->response_tx.cells.publish(1);
  published_response();
}

void Qp::refuse(const AccessAsk& ask, Denial denial, uint8_t range_at) noexcept {
  answer_nak(denial, range_at);
  if (log_level() >= LogLevel::warn) {
    try {
      APERTURE_WARN("from %s: %s", remote_.text().c_str(),
                    port_.keys.explain(ask, denial, *port_.wording).c_str());
    } catch (...) {
      APERTURE_WARN("from %s: %s", remote_.text().c_str(), protect::rule(*port_.wording, denial));
    }
  }
}

ClaimVerdict Qp::may_execute() noexcept {
  return claim_verdict(lane_->request_rx.words(), lane_->request_rx.cells.pos(),
                       lane_->fence_sends);
}

// The request stays at the head of the ring until the peer moves; false, for execute().
bool Qp::wait_for_peer() noexcept {
  waits_for_peer_ = true;
  return false;
}

bool Qp::on_write(const Head& head) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  const bool has_imm = (head.flags & wire::kImm) != 0;
  if (!lane_->response_tx.room(1)) return wait_for_peer();
  if (has_imm && !room_for_notice()) return false;
  const ClaimVerdict verdict = may_execute();
  if (verdict == ClaimVerdict::wait) return wait_for_peer();
  begin_operation();
  const auto f = wire::load_fields<wire::WriteFields>(rx.cells.body());
  const auto tell = [&] {
    if (has_imm) {
      uint64_t imm;
      const size_t imm_end = wire::payload_offset(Op::write, head.flags);
      std::memcpy(&imm, rx.cells.body() + imm_end - sizeof imm, sizeof imm);
      deliver_notice(head.len, imm);
    }
    if (port_.remote_write_counter != nullptr) port_.remote_write_counter->add(1);
  };
  if (verdict == ClaimVerdict::skip) {  // in its place, by the initiator's hand
    tell();
    return true;
  }
  const AccessAsk ask = ask_of(f.key, head.word(), head.len, Rights::remote_write,
                               wire::load_secret(rx.cells.body(), Op::write, head.flags));
  const protect::Checked checked = port_.keys.check(ask, &hint_);
  if (!checked) {
    refuse(ask, checked.denial());
    return true;
  }
  size_t at = 0;
  bool copied = true;
  ring::BodyReader(rx.cells, wire::payload_offset(Op::write, head.flags))
      .each_piece(head.len, [&](const std::byte* piece, size_t n) {
        copied = copied && checked.grant().copy_in(piece, n, at);
        at += n;
      });
  if (!copied) {
    refuse(ask, Denial::not_backed);
    return true;
  }
  note_write(checked.grant().region(), head.len);
  tell();
  return true;
}

bool Qp::on_write_bytes(const Head& head) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  if (!lane_->response_tx.room(1)) return wait_for_peer();
  const auto f = wire::load_fields<wire::WriteBytesFields>(rx.cells.body());
  const std::byte* from =
      f.len <= protect::kChunkBytes ? rx.bytes.view(f.byte_pos, f.len) : nullptr;
  if (from == nullptr || f.offset > f.total || f.len > f.total - f.offset) {
    break_protocol("payload outside its ring or its operation");
    return false;
  }
  const ClaimVerdict verdict = may_execute();
  if (verdict == ClaimVerdict::wait) return wait_for_peer();
  if ((head.flags & wire::kFirst) != 0) {
    begin_operation();
    noted_.count = 0;
  }
  if (f.offset == 0) whole_region_ = {};
  if (verdict == ClaimVerdict::execute && !op_refused_) {
    // The whole range is checked with its first piece that is ours, so one that leaves its region
    // changes nothing; from then on only that life of that region will do.
    const uint64_t secret = wire::load_secret(rx.cells.body(), Op::write_bytes, head.flags);
    const AccessAsk whole = ask_of(f.key, head.word(), f.total, Rights::remote_write, secret);
    AccessAsk part = whole;
    part.addr = Wild<uint64_t>(head.word() + f.offset);
    part.len = Wild<uint64_t>(f.len);
    Denial denial = check_denial_;
    if (denial == Denial::none && whole_region_.generation == 0) denial = check_whole(whole);
    if (denial == Denial::none) {
      const protect::Checked checked = port_.keys.recheck(part, whole_region_);
      denial = checked.denial();
      if (checked && !checked.grant().copy_in(from, f.len)) denial = Denial::not_backed;
    }
    if (denial == Denial::none && f.len == f.total - f.offset) {
      note_write(whole_region_, f.total, noted_);
    }
    if (denial != Denial::none) {
      op_refused_ = true;
      refuse(whole, denial);
    }
  }
  rx.free_bytes_before(rx.bytes.after(f.byte_pos, f.len));
  if ((head.flags & wire::kLast) != 0 && !op_refused_ && port_.remote_write_counter != nullptr) {
    port_.remote_write_counter->add(1);
  }
  return true;
}

// The first look at a range that takes several pieces; remembers which region it is.
Denial Qp::check_whole(const AccessAsk& ask) noexcept {
  const protect::Checked checked = port_.keys.check(ask, &hint_);
  whole_region_ = checked ? checked.grant().region() : protect::RegionRef{};
  return checked.denial();
}

bool Qp::on_read(const Head& head) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  if (!tx.room(wire::kMaxCells)) return wait_for_peer();
  const ClaimVerdict verdict = may_execute();
  if (verdict == ClaimVerdict::wait) return wait_for_peer();
  if ((head.flags & wire::kFirst) != 0) begin_operation();
  const bool last = (head.flags & wire::kLast) != 0 && port_.remote_read_counter != nullptr;
  if (verdict == ClaimVerdict::skip || op_refused_) {
    read_done_ = 0;
    if (last && !op_refused_) port_.remote_read_counter->add(1);
    return true;
  }
  const std::byte* body = lane_->request_rx.cells.body();
  const auto f = wire::load_fields<wire::ReadFields>(body);
  const AccessAsk whole = ask_of(f.key, head.word(), f.len, Rights::remote_read,
                                 wire::load_secret(body, Op::read, head.flags));
  // Once a part of the answer has been sent, only the same life of the region will do.
  const Denial denial = check_denial_ != Denial::none ? check_denial_
                        : read_done_ == 0             ? check_whole(whole)
                                                      : Denial::none;
  if (denial != Denial::none) {
    read_done_ = 0;
    op_refused_ = true;
    refuse(whole, denial);
    return true;
  }
  if (f.len <= wire::kMaxInline) {
    const protect::Checked checked = port_.keys.recheck(whole, whole_region_);
    if (!checked) {
      op_refused_ = true;
      refuse(whole, checked.denial());
      return true;
    }
    const auto len = static_cast<uint16_t>(f.len);
    const Head answer = Head::make(Op::read_inline, 0, len, f.id);
    if (!copy_result(checked.grant(), len)) {
      op_refused_ = true;
      refuse(whole, Denial::not_backed);
      return true;
    }
    std::memcpy(tx.cells.body(), &answer, sizeof answer);
    tx.cells.publish(wire::cells_of(Op::read_inline, 0, len));
    published_response();
  } else if (!stream_read(f, whole)) {
    return false;
  }
  read_done_ = 0;
  if (last && !op_refused_) port_.remote_read_counter->add(1);
  return true;
}

// The result of a small read, into the cells that are next. False: it cannot be read.
bool Qp::copy_result(const protect::Grant& grant, uint16_t len) noexcept {
  ring::CellWriter& cells = lane_->response_tx.cells;
  if (wire::kHeadBytes + len <= ring::kBodyBytes) {
    return grant.copy_out(cells.body() + wire::kHeadBytes, len);
  }
  std::array<std::byte, wire::kMaxInline> flat;
  if (!grant.copy_out(flat.data(), len)) return false;
  ring::BodyWriter(cells, wire::kHeadBytes).copy_in(flat.data(), len);
  return true;
}

bool Qp::on_check(const Head& head) noexcept {
  if (!lane_->response_tx.room(1)) return wait_for_peer();
  const ClaimVerdict verdict = may_execute();
  if (verdict == ClaimVerdict::wait) return wait_for_peer();
  if ((head.flags & wire::kFirst) != 0) {
    begin_operation();
    noted_.count = 0;
  }
  if (op_refused_) return true;
  const std::byte* body = lane_->request_rx.cells.body();
  const auto f = wire::load_fields<wire::CheckFields>(body);
  const AccessAsk ask =
      ask_of(f.key, head.word(), f.len, f.write != 0 ? Rights::remote_write : Rights::remote_read,
             wire::load_secret(body, Op::check, head.flags));
  const protect::Checked checked = port_.keys.check(ask, &hint_);
  if (checked) return true;
  if (verdict == ClaimVerdict::execute) {
    op_refused_ = true;
    refuse(ask, checked.denial());
  } else {
    // Claimed, so its initiator has its own answer, maybe from a moment before: should a piece of
    // this operation still come to us, that piece is refused.
    check_denial_ = checked.denial();
  }
  return true;
}

// Puts pieces of the result into the response ring. True: all of it, or refused in its middle.
bool Qp::stream_read(const wire::ReadFields& f, const AccessAsk& whole) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  while (read_done_ < f.len) {
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(f.len - read_done_, kPieceBytes));
    uint64_t pos = 0;
    if (!tx.room(2) || !tx.reserve_bytes(n, pos)) return wait_for_peer();
    AccessAsk part = whole;
    part.addr = Wild<uint64_t>(whole.addr.unchecked() + read_done_);
    part.len = Wild<uint64_t>(n);
    const protect::Checked checked = port_.keys.recheck(part, whole_region_);
    const Denial denial = !lane_->prepare_response_bytes() ? Denial::not_backed : checked.denial();
    if (denial != Denial::none) {
      op_refused_ = true;
      refuse(whole, denial);
      return true;
    }
    if (!checked.grant().copy_out(tx.bytes.at(pos), n)) {
      op_refused_ = true;
      refuse(whole, Denial::not_backed);
      return true;
    }
    tx.bytes.commit(pos, n);
    const Head answer = Head::make(Op::read_data, 0, 0, f.id);
    std::memcpy(tx.cells.body(), &answer, sizeof answer);
    wire::store_fields(tx.cells.body(), wire::DataFields{read_done_, pos, n});
    tx.cells.publish(1);
    published_response();
    read_done_ += n;
  }
  return true;
}

bool Qp::poll_responses() noexcept {
  ring::ChannelRx& rx = lane_->response_rx;
  int budget = kPollBudget;
  bool any = false;
  while (budget-- > 0 && rx.cells.ready() && !broken_) {
    const Head head = wire::load_head(rx.cells.body());
    const Op op = static_cast<Op>(head.op);
    const uint32_t n_cells = wire::cells_of(op, head.flags, head.len);
    if (n_cells == 0 || !on_response(head, op)) [[unlikely]] {
      break_protocol("an unknown response");
      return true;
    }
    rx.cells.advance(n_cells);
    any = true;
    if (rx.unpublished() >= kAckCells / 4) rx.publish_consumed();
  }
  if (any) {
    rx.publish_consumed();
    published_request();  // who waits for room in its response ring may sleep
  }
  return any;
}

bool Qp::on_response(const Head& head, Op op) noexcept {
  switch (op) {
    case Op::grant: on_grant(head); return true;
    case Op::data: on_data(head); return true;
    case Op::finished: on_finished(head.word()); return true;
    case Op::nak: on_nak(head.word(), head.len); return true;
    case Op::read_inline:
    case Op::read_data: on_read_result(head, op); return true;
    case Op::pressure: peer_pressure_ = head.word() != 0; return true;
    default: return false;
  }
}

void Qp::on_read_result(const Head& head, Op op) noexcept {
  ring::ChannelRx& rx = lane_->response_rx;
  const Piece* piece = nullptr;
  for (uint64_t i = piece_head_; i != piece_tail_ && piece == nullptr; ++i) {
    const Piece& p = pieces_[i % pieces_.size()];
    if (p.pos == head.word() && returns_data(p.wqe->kind)) piece = &p;
  }
  if (piece == nullptr) {
    break_protocol("a result that nobody asked for");
    return;
  }
  Wqe& wqe = *piece->wqe;
  uint64_t offset = 0;
  uint64_t len = head.len;
  const std::byte* from = nullptr;
  uint64_t byte_pos = 0;
  if (op == Op::read_data) {
    const auto f = wire::load_fields<wire::DataFields>(rx.cells.body());
    offset = f.offset;
    len = f.len;
    byte_pos = f.byte_pos;
    from = rx.bytes.view(byte_pos, len);
  }
  if (wqe.denial != Denial::none && from != nullptr) {
    rx.free_bytes_before(rx.bytes.after(byte_pos, len));
    return;  // another range of it was refused: the operation has failed already
  }
  if (wqe.denial != Denial::none && op == Op::read_inline) return;
  // in order and never more than was asked for
  const uint64_t expected = wqe.done - piece->wqe_offset;
  if ((op == Op::read_data && from == nullptr) || wqe.done < piece->wqe_offset ||
      offset != expected || len > piece->range.len - expected) {
    break_protocol("a result longer than asked, or out of order");
    return;
  }
  if (op == Op::read_data) {
    scatter(wqe.iov.data(), wqe.iov_count, wqe.done, from, len);
    rx.free_bytes_before(rx.bytes.after(byte_pos, len));
  } else {
    uint64_t at = wqe.done;
    ring::BodyReader(rx.cells, wire::kHeadBytes).each_piece(len, [&](const std::byte* p, size_t n) {
      scatter(wqe.iov.data(), wqe.iov_count, at, p, n);
      at += n;
    });
  }
  wqe.done += len;
  stall_since_ = 0;  // the owner is at it
  // In order: with the whole of this result, everything before it has been executed, and what was
  // refused of it has been told before.
  if (expected + len == piece->range.len && piece->pos + piece->cells > done_through_) {
    retire(piece->pos + piece->cells);
  }
}

void Qp::break_protocol(const char* what) noexcept {
  if (broken_) return;
  broken_ = busy_ = true;
  APERTURE_WARN("%s sent %s: the connection is closed; check that both sides run the same version",
                remote_.text().c_str(), what);
}

}  // namespace aperture::qp
