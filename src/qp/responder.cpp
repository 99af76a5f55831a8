// Executing the peer's requests: see responder.hpp.
#include "qp/responder.hpp"

#include <array>
#include <cstring>

namespace aperture::qp {

using protect::AccessAsk;
using protect::Denial;
using protect::Rights;
using transport::BytesIn;
using transport::ClaimVerdict;
using transport::RemoteAccess;
using wire::Head;
using wire::Op;
using wire::SoundHead;

bool Responder::poll() noexcept {
  ring::ChannelRx& rx = core_.lane->request_rx;
  bool any = false;
  atomics_.begin_look();
  const uint64_t moved_before = core_.lane.moved_for_peer();
  turn_.begin();
  for (int budget = transport::kPollBudget; budget > 0 && rx.cells.ready(); --budget) {
    if (core_.awaits_end()) {  // as in Qp::poll_lines()
      responses_.learn_executed();
      if (core_.lane.broken()) return true;
    }
    SoundHead head;
    const uint32_t n_cells = wire::read_head(rx.cells.body(), head);
    if (n_cells == 0) [[unlikely]] {
      core_.break_protocol("an unknown request");
      return true;
    }
    rx.cells.prefetch(n_cells);
    if (!execute(head)) {
      any = turn_.leave(rx.cells) || any;
      break;
    }
    rx.cells.advance(n_cells);
    any = true;
    // pieces of a large write at once: their initiator waits for room, and must not think us away
    if (rx.unpublished() >= transport::kAckCells || head.op() == Op::write_bytes) {
      core_.lane.acknowledge_requests();
    }
    if (core_.state == QpState::dead) return true;
    if (core_.lane.moved_for_peer() - moved_before >= transport::kPollBytes) break;
  }
  core_.lane.acknowledge_requests();
  return any;
}

// False: it stays at the head of the ring.
bool Responder::execute(const SoundHead& head) noexcept {
  switch (head.op()) {
    case Op::send:
    case Op::send_bytes:
    case Op::send_offer: return on_send(head);
    case Op::write: return on_write(head);
    case Op::write_bytes: return on_write_bytes(head);
    case Op::read: return on_read(head);
    case Op::notice: return on_notice(head);
    case Op::check: return on_check(head);
    case Op::commit: return on_commit(head);
    case Op::atomic: return atomics_.on_atomic(head);
    case Op::atomic_bytes: return atomics_.on_atomic_bytes(head);
    case Op::invalidate: return invalidations_.on_invalidate(head);
    case Op::wake: core_.port.keys.accessors().wake(core_.lane->direct.watched); return true;
    default: core_.break_protocol("a response among the requests"); return false;
  }
}

// What is beside a message is no immediate data. False: the message stays in the ring, or the
// protocol is broken.
bool Responder::is_sound_beside(const SoundHead& head, Arrival& a, bool& is_dropped) noexcept {
  if (!head.has(wire::kGroup)) {
    a.beside = Beside::invalidated_key;
    return invalidations_.precedes(a.imm, is_dropped);
  }
  a.beside = Beside::group_key;
  if (core_.port.takes_groups && !head.has(wire::kInvalidates)) return true;
  core_.break_protocol("a message of a group to an endpoint that is in none");
  return false;
}

bool Responder::on_send(const SoundHead& head) noexcept {
  ring::ChannelRx& rx = core_.lane->request_rx;
  const std::byte* body = rx.cells.body();
  Arrival a;
  a.tagged = head.has(wire::kTagged);
  a.beside = beside_of(head.flags());
  a.delivery = head.has(wire::kDelivery);
  a.tag = head.word().unchecked();  // matched
  a.imm = 0;
  bool is_dropped = false;
  if (a.beside != Beside::nothing) {
    std::memcpy(&a.imm, body + wire::kHeadBytes + wire::field_bytes(head.op()), sizeof a.imm);
    if ((head.flags() & (wire::kInvalidates | wire::kGroup)) != 0) [[unlikely]] {
      if (!is_sound_beside(head, a, is_dropped)) return false;
    }
  }
  BytesIn bytes;
  if (head.op() == Op::send) [[likely]] {
    const size_t at = wire::payload_offset(head.op(), head.flags());
    a.len = head.len();
    if (at + head.len() <= ring::kBodyBytes) [[likely]] {
      a.where = Arrival::Where::flat;
      a.bytes = body + at;
    } else {
      a.where = Arrival::Where::cells;
      a.cells = &rx.cells;
      a.cells_offset = at;
    }
  } else if (head.op() == Op::send_bytes) {
    const auto f = wire::load_fields<wire::SendBytesFields>(body);
    bytes = core_.lane.payload().take_bytes(rx, f.byte_pos, f.len, transport::kEagerBytes);
    if (!bytes) {
      core_.break_protocol("payload outside its ring");
      return false;
    }
    if (!may_come_unasked(bytes.len)) [[unlikely]]
      return false;
    a.where = Arrival::Where::flat;
    a.len = bytes.len;
    a.bytes = bytes.from();
  } else {
    if (!has_room_for_answer()) return execution_.wait_for_peer();
    const auto f = wire::load_fields<wire::SendOfferFields>(body);
    if (is_dropped || !f.len.bounded(kMaxVariableBytes, a.len)) {
      core_.break_protocol(is_dropped ? "an offer after an invalidation that was refused"
                                      : "a message above the limit");
      return false;
    }
    a.where = Arrival::Where::offered;
    a.offer_address = f.address.unchecked();  // these three: see Arrival
    a.offer_id = f.id.unchecked();
    a.offer_claim = f.claim.unchecked();
    ++core_.offers_in;  // it may be over in the call below
  }
  const uint64_t unasked_bytes = core_.unasked_bytes;
  if (!is_dropped && !core_.port.sink->on_message(core_.qp, a)) {
    if (a.where == Arrival::Where::offered) --core_.offers_in;
    return false;
  }
  if (bytes && core_.lane) {
    core_.lane.payload().done_with(rx, bytes);
    // unless this message was the one that changed it
    if (unasked_bytes != QpCore::kUnbounded && unasked_bytes == core_.unasked_bytes) {
      APERTURE_DEBUG_ASSERT(bytes.len <= core_.unasked_bytes);  // may_come_unasked()
      core_.unasked_bytes -= bytes.len;
    }
  }
  return true;
}

// A peer that was asked to offer its messages sends what was on its way, and no more. What it was
// not told yet keeps its payload where it lies.
bool Responder::may_come_unasked(uint64_t len) noexcept {
  if (len <= core_.unasked_bytes) [[likely]]
    return true;
  if (core_.replies_waiting) return execution_.wait_for_peer();
  core_.break_protocol("payload that it did not offer first, as it was asked to");
  return false;
}

// To an offer, now or when the application has a place for it: a peer that takes no answers makes
// no further offers, so those that wait are of the offers that there are.
bool Responder::has_room_for_answer() noexcept {
  return !core_.replies_waiting && core_.lane->response_tx.room(1);
}

bool Responder::on_write(const SoundHead& head) noexcept {
  const ring::CellReader& cells = core_.lane->request_rx.cells;
  const bool has_imm = head.has(wire::kImm);
  if (!core_.lane->response_tx.room(1)) return execution_.wait_for_peer();
  if (has_imm && !room_for_notice()) return false;
  const ClaimVerdict verdict = core_.lane.may_execute();
  if (verdict == ClaimVerdict::wait) return execution_.wait_for_peer();
  execution_.begin_operation();
  const size_t at = wire::payload_offset(Op::write, head.flags());
  if (verdict == ClaimVerdict::execute) {
    const auto f = wire::load_fields<wire::WriteFields>(cells.body());
    RemoteAccess& access = execution_.access();
    const AccessAsk ask =
        execution_.ask(f.key, head.word(), Wild<uint64_t>(head.len()), Rights::remote_write,
                       wire::load_secret(cells.body(), Op::write, head.flags()));
    const Denial denial = access.write_cells(ask, cells, at, head.len());
    if (denial != Denial::none) {
      execution_.refuse(ask, denial);
      return true;
    }
    execution_.note_write(access.region(), head.len());
  }
  // told of too when it was skipped: it is in its place, by the initiator's own copy
  if (has_imm) {
    uint64_t imm;
    std::memcpy(&imm, cells.body() + at - sizeof imm, sizeof imm);
    deliver_notice(head.len(), imm);
  }
  execution_.count_write();
  return true;
}

bool Responder::on_write_bytes(const SoundHead& head) noexcept {
  ring::ChannelRx& rx = core_.lane->request_rx;
  if (!core_.lane->response_tx.room(1)) return execution_.wait_for_peer();
  const auto f = wire::load_fields<wire::WriteBytesFields>(rx.cells.body());
  BytesIn bytes = core_.lane.payload().take_piece(rx, f.byte_pos, f.len, core_.lane->piece_bytes);
  const uint64_t total = f.total.unchecked();  // only compared with, and asked for as a whole
  uint64_t offset = 0;
  if (!bytes || !f.offset.bounded(total, offset) || bytes.len > total - offset) {
    core_.break_protocol("payload outside its ring or its operation");
    return false;
  }
  const ClaimVerdict verdict = core_.lane.may_execute();
  if (verdict == ClaimVerdict::wait) return execution_.wait_for_peer();
  begin_piece(head, f.key, offset);
  RemoteAccess& access = execution_.access();
  if (verdict == ClaimVerdict::execute && !execution_.is_refused()) {
    const AccessAsk whole =
        execution_.ask(f.key, head.word(), f.total, Rights::remote_write,
                       wire::load_secret(rx.cells.body(), Op::write_bytes, head.flags()));
    Denial denial = execution_.denial_so_far();
    if (denial == Denial::none) denial = access.write_piece(whole, offset, bytes);
    if (denial != Denial::none) {
      execution_.refuse(whole, denial);
    } else if (bytes.len == total - offset) {
      execution_.note_write(access.region(), total);
    }
  }
  core_.lane.payload().done_with(rx, bytes);
  if (head.has(wire::kLast) && !execution_.is_refused()) execution_.count_write();
  return true;
}

// The first piece that comes of a range need not be its first: what is before was copied directly.
void Responder::begin_piece(const SoundHead& head, Wild<uint64_t> wild_key,
                            uint64_t offset) noexcept {
  execution_.begin_request(head);
  const uint64_t addr = head.word().unchecked(), key = wild_key.unchecked();  // compared
  const bool first = offset == 0 || head.has(wire::kFirst);
  if (!first && addr == range_addr_ && key == range_key_) return;
  execution_.access().begin_range();
  range_addr_ = addr;
  range_key_ = key;
}

bool Responder::on_read(const SoundHead& head) noexcept {
  if (!core_.lane->response_tx.room(wire::kMaxCells)) return execution_.wait_for_peer();
  const ClaimVerdict verdict = core_.lane.may_execute();
  if (verdict == ClaimVerdict::wait) return execution_.wait_for_peer();
  const std::byte* body = core_.lane->request_rx.cells.body();
  const auto f = wire::load_fields<wire::ReadFields>(body);
  const uint64_t total = f.total.unchecked();  // only compared with, and asked for as a whole
  Part part;
  if (!f.offset.bounded(total, part.offset) || !f.len.bounded(total - part.offset, part.len)) {
    core_.break_protocol("a part outside its operation");
    return false;
  }
  RemoteAccess& access = execution_.access();
  if (!access.is_streaming()) begin_piece(head, f.key, part.offset);
  if (verdict == ClaimVerdict::skip || execution_.is_refused()) {
    access.end_read();
  } else {
    const AccessAsk whole = execution_.ask(f.key, head.word(), f.total, Rights::remote_read,
                                           wire::load_secret(body, Op::read, head.flags()));
    // Once a part of the answer has been sent, only the same life of the region will do.
    Denial denial = execution_.denial_so_far();
    if (denial == Denial::none && access.region().generation == 0) {
      denial = access.check_whole(whole);
    }
    if (denial != Denial::none) {
      access.end_read();
      execution_.refuse(whole, denial);
      return true;
    }
    if (!put_result(f, part, whole)) return turn_.is_over() ? false : execution_.wait_for_peer();
  }
  if (head.has(wire::kLast) && !execution_.is_refused()) execution_.count_read();
  return true;
}

// The whole of it was checked. False: the rest has to wait, for room or for another turn.
bool Responder::put_result(const wire::Loaded<wire::ReadFields>& f, const Part& part,
                           const AccessAsk& whole) noexcept {
  Denial denial = Denial::none;
  if (part.len <= wire::kMaxInline && !execution_.access().is_streaming()) {
    denial = put_small_result(whole, f.id, part);
  } else {
    const uint64_t id = f.id.unchecked();  // only handed back
    const auto streamed = execution_.access().stream_read(
        core_.lane, whole, part.offset, part.len, denial,
        [&](std::byte* body, uint64_t done, uint64_t pos, uint32_t n) {
          wire::store(body, Head::make(Op::read_data, 0, 0, id), wire::DataFields{done, pos, n});
        });
    if (streamed == RemoteAccess::Streamed::changed) {
      core_.break_protocol("a read that became shorter while it was answered");
    }
    if (streamed == RemoteAccess::Streamed::turn_over) turn_.end();
    if (streamed == RemoteAccess::Streamed::no_room || turn_.is_over() || core_.lane.broken()) {
      return false;
    }
  }
  if (denial != Denial::none) execution_.refuse(whole, denial);
  return true;
}

Denial Responder::put_small_result(const AccessAsk& whole, Wild<uint64_t> id,
                                   const Part& part) noexcept {
  const auto len = static_cast<uint16_t>(part.len);
  ring::CellWriter& cells = core_.lane->response_tx.cells;
  std::array<std::byte, wire::kMaxInline> flat;
  const bool one_cell = wire::kHeadBytes + len <= ring::kBodyBytes;
  std::byte* to = one_cell ? cells.body() + wire::kHeadBytes : flat.data();
  const Denial denial = execution_.access().read_piece(whole, part.offset, to, len);
  if (denial != Denial::none) return denial;
  if (!one_cell) ring::BodyWriter(cells, wire::kHeadBytes).copy_in(flat.data(), len);
  wire::store(cells.body(), Head::make(Op::read_inline, 0, len, id.unchecked()));
  core_.lane.publish_response(wire::cells_of(Op::read_inline, 0, len));
  return Denial::none;
}

bool Responder::on_check(const SoundHead& head) noexcept {
  if (!core_.lane->response_tx.room(1)) return execution_.wait_for_peer();
  const ClaimVerdict verdict = core_.lane.may_execute();
  if (verdict == ClaimVerdict::wait) return execution_.wait_for_peer();
  execution_.begin_request(head);
  if (execution_.is_refused()) return true;
  const std::byte* body = core_.lane->request_rx.cells.body();
  const auto f = wire::load_fields<wire::CheckFields>(body);
  const bool writes = f.write.unchecked() != 0;  // the one or the other
  const AccessAsk ask =
      execution_.ask(f.key, head.word(), f.len, writes ? Rights::remote_write : Rights::remote_read,
                     wire::load_secret(body, Op::check, head.flags()));
  const Denial denial = execution_.access().check_whole(ask);
  if (denial == Denial::none) return true;
  if (verdict == ClaimVerdict::execute) {
    execution_.refuse(ask, denial);
  } else {
    execution_.refuse_later(denial);
  }
  return true;
}

// The system call is ours, under the engine's lock: the price of the level.
bool Responder::on_commit(const SoundHead& head) noexcept {
  if (!core_.lane->response_tx.room(1)) return execution_.wait_for_peer();
  if (core_.lane.may_execute() == ClaimVerdict::wait) return execution_.wait_for_peer();
  if (!execution_.is_refused()) {
    const std::byte* body = core_.lane->request_rx.cells.body();
    const auto f = wire::load_fields<wire::CheckFields>(body);
    const AccessAsk ask = execution_.ask(f.key, head.word(), f.len, Rights::remote_write,
                                         wire::load_secret(body, Op::commit, head.flags()));
    const Denial denial = core_.port.keys.access().commit(ask);
    if (denial != Denial::none) execution_.refuse(ask, denial);
  }
  if (head.has(wire::kLast) && !execution_.is_refused()) execution_.count_write();
  return true;
}

bool Responder::on_notice(const SoundHead& head) noexcept {
  execution_.begin_request(head);
  if (execution_.is_refused()) {
    execution_.forget_refusal();
    return true;
  }
  if (head.has(wire::kImm)) {
    if (!room_for_notice()) return false;
    uint64_t imm = 0;
    std::memcpy(&imm, core_.lane->request_rx.cells.body() + wire::kHeadBytes, sizeof imm);
    deliver_notice(head.word().unchecked(), imm);  // the length is only reported
  }
  const bool of_read = head.code().unchecked() == wire::kNoticeRead;
  of_read ? execution_.count_read() : execution_.count_write();
  return true;
}

void Responder::deliver_notice(uint64_t len, uint64_t imm) noexcept {
  Port& port = core_.port;
  if (port.rx_cq == nullptr) return;
  assert(port.rx_cq->has_room());
  port.rx_cq->push({.context = nullptr,
                    .flags = port.remote_write_flags | port.imm_flag(),
                    .len = len,
                    .imm = imm,
                    .source = port.sink->source_to_report(core_.qp)});
}

}  // namespace aperture::qp
