// Acknowledgements, refusals, results and completions: see pending.hpp.
#include "qp/pending.hpp"

#include <utility>

#include "qp/explain.hpp"
#include "transport/payload.hpp"

namespace aperture::qp {

using protect::Denial;
using wire::Op;
using wire::SoundHead;

void Pending::add(Wqe& wqe) noexcept {
  core_.pending.push_back(&wqe);
  if (awaits_ack(wqe)) ++core_.awaited;
  if (returns_data(wqe.kind)) ++core_.returning;
  // it may be over already: all its pieces were claimed, or it never got into the ring
  if (wqe.end_pos <= done_through()) retire(done_through());
}

void Pending::remove(Wqe& wqe) noexcept {
  core_.pending.remove(&wqe);
  assert(!awaits_ack(wqe) || core_.awaited > 0);
  assert(!returns_data(wqe.kind) || core_.returning > 0);
  if (awaits_ack(wqe)) --core_.awaited;
  if (returns_data(wqe.kind)) --core_.returning;
}

void Pending::retire(uint64_t done_through) noexcept {
  end_through(done_through, Errc::ok);
}

// What lies before that position ends, in the order of the ring; why: unless it has failed already.
void Pending::end_through(uint64_t position, Errc why) noexcept {
  core_.pieces.retire_through(position, [this, why](const Piece& piece) {
    if (piece.wqe != nullptr) return;
    end_wqes(piece.pos, why);
    end_line(piece, why);
  });
  end_wqes(position, why);
}

void Pending::end_wqes(uint64_t position, Errc why) noexcept {
  while (Wqe* wqe = core_.pending.front()) {
    if (wqe->end_pos > position) break;
    remove(*wqe);
    if (wqe->error == Errc::ok) wqe->error = why;
    if (returns_data(wqe->kind) && wqe->denial == Denial::none && wqe->error == Errc::ok &&
        wqe->done != wqe->len) {
      wqe->error = Errc::protocol;  // acknowledged without its data
    }
    complete(*wqe);
  }
}

void Pending::end_line(const Piece& line, Errc why) noexcept {
  assert(line.wqe == nullptr && !returns_data(line.kind));
  Port& port = core_.port;
  const bool has_entry = (line.with & Piece::kWithEntry) != 0;
  const bool is_awaited = core_.awaits_ack(line.kind, has_entry);
  assert(!is_awaited || core_.awaited > 0);
  if (is_awaited) --core_.awaited;
  if (port.tx_cq != nullptr) port.tx_cq->unreserve();
  if (line.is_lost) why = Errc::peer_lost;
  if (why == Errc::ok && line.denial == Denial::none) [[likely]] {
    const Completion entry{.context = line.context, .flags = line.flags, .len = line.range.len};
    succeed(entry, has_entry, port.counter_of(line.kind));
    return;
  }
  Wqe wqe;
  describe(line, wqe);
  wqe.error = why != Errc::ok ? why : Errc::access_denied;
  fail(wqe);
}

void Pending::on_nak(const SoundHead& head) noexcept {
  const uint64_t pos = head.word().unchecked();  // looked up
  Piece* piece = core_.pieces.find([&](const Piece& p) { return p.pos == pos; });
  if (piece == nullptr) {
    core_.break_protocol("a refusal of a request that is not under way");
    return;
  }
  Denial& denial = piece->wqe != nullptr ? piece->wqe->denial : piece->denial;
  if (denial != Denial::none) return;
  const unsigned code = head.code().unchecked();  // bounded
  const unsigned why = code & 0xffu;
  const bool known = why > 0 && why < protect::kDenials;
  denial = known ? static_cast<Denial>(why) : Denial::unknown_key;
  if (is_atomic(piece->kind) && piece->wqe != nullptr) {
    Wqe& wqe = *piece->wqe;
    wqe.range_at = static_cast<uint8_t>(std::min(code >> 8, wqe.range_count - 1u));
  }
}

void Pending::on_result(const SoundHead& head) noexcept {
  ring::ChannelRx& rx = core_.lane->response_rx;
  const uint64_t pos = head.word().unchecked();  // looked up
  const Piece* piece =
      core_.pieces.find([&](const Piece& p) { return p.pos == pos && returns_data(p.kind); });
  if (piece == nullptr) {
    core_.break_protocol("a result that nobody asked for");
    return;
  }
  Wqe& wqe = *piece->wqe;
  const bool in_cells = head.op() == Op::read_inline;
  transport::BytesIn bytes;
  uint64_t offset = 0;
  if (!in_cells) {
    const auto f = wire::load_fields<wire::DataFields>(rx.cells.body());
    bytes = core_.lane.payload().take_piece(rx, f.byte_pos, f.len, core_.lane->piece_bytes);
    offset = f.offset.unchecked();  // compared
  }
  const uint64_t len = in_cells ? head.len() : bytes.len;
  const bool is_there = in_cells || bytes;
  if (is_there && (wqe.denial != Denial::none || wqe.error != Errc::ok)) {
    if (bytes) core_.lane.payload().done_with(rx, bytes);
    return;  // another part of it was refused: the operation has failed already
  }
  // in order and never more than was asked for
  const uint64_t expected = wqe.done - piece->wqe_offset;
  if (!is_there || wqe.done < piece->wqe_offset || offset != expected ||
      len > piece->range.len - expected) {
    core_.break_protocol("a result longer than asked, or out of order");
    return;
  }
  if (in_cells) {
    uint64_t at = wqe.done;
    ring::BodyReader(rx.cells, wire::kHeadBytes).each_piece(len, [&](const std::byte* p, size_t n) {
      scatter(wqe.iov.data(), wqe.iov_count, at, p, n);
      at += n;
    });
  } else {
    if (!take_payload(bytes, wqe.iov.data(), wqe.iov_count, wqe.done)) wqe.error = Errc::bad_buffer;
    core_.lane.payload().done_with(rx, bytes);
  }
  wqe.done += len;
  assert(wqe.done <= wqe.len);
  if (wqe.completion == kTold && wqe.error == Errc::ok) [[unlikely]]
    told_of(wqe).on_arrived(wqe.done);
  core_.target.restart_clock();  // the owner is at it
  // In order: with the whole of this result, everything before it has been executed, and what was
  // refused of it has been told before.
  const uint64_t end = piece->pos + piece->cells;
  if (expected + len == piece->range.len && end > done_through()) retire(end);
}

// Of an operation that is not a Told.
inline void Pending::succeed(const Completion& entry, bool has_entry, Counter* counter) noexcept {
  assert(!has_entry || core_.port.tx_cq != nullptr);
  if (has_entry) core_.port.tx_cq->push(entry);
  if (counter != nullptr) counter->add(1);
}

void Pending::complete(Wqe& wqe) noexcept {
  assert(!wqe.linked());
  if (wqe.denial != Denial::none && wqe.error == Errc::ok) wqe.error = Errc::access_denied;
  Port& port = core_.port;
  if ((wqe.reserved & kEntry) != 0) port.tx_cq->unreserve();
  if (wqe.error != Errc::ok) {
    fail(wqe);
  } else if (wqe.completion == kTold) [[unlikely]] {
    told_of(wqe).on_done({.context = wqe.context, .flags = wqe.flags, .len = wqe.len});
  } else {
    succeed({.context = wqe.context, .flags = wqe.flags, .len = wqe.len}, wqe.completion == kEntry,
            port.counter_of(wqe.kind));
  }
  if (wqe.atomic != nullptr) [[unlikely]]
    port.tx.atomics.give(std::exchange(wqe.atomic, nullptr));
  port.tx.wqes.give(&wqe);
}

// An operation that has failed, and is accounted for in nothing any more.
[[gnu::cold]] void Pending::fail(const Wqe& wqe) noexcept {
  CompletionError e;
  e.entry = {.context = wqe.context, .flags = wqe.flags, .len = 0};
  e.entry.tag = wqe.kind == WqeKind::send ? wqe.tag : 0;
  e.err = wqe.error;
  e.vendor = static_cast<uint32_t>(wqe.denial);
  explain(core_, wqe, e);
  if (wqe.completion == kTold) {
    told_of(wqe).on_failed(std::move(e));
    return;
  }
  Port& port = core_.port;
  if (port.discards) return;
  if (port.tx_cq != nullptr) port.tx_cq->push_error(std::move(e));
  if (Counter* counter = port.counter_of(wqe.kind); counter != nullptr) counter->add_error(1);
}

void Pending::end_all(Errc why) noexcept {
  assert(core_.lane || core_.pieces.empty());
  if (core_.lane) end_through(core_.lane->request_tx.cells.pos(), why);
  assert(core_.pending.empty() && core_.pieces.empty());
  assert(core_.awaited == 0 && core_.returning == 0);
}

}  // namespace aperture::qp
