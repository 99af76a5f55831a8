// Atomics, both halves. Always executed by the owner, whatever the link: so they are atomic with
// one another and with the owner's own CPU atomics. One request, in order with all others, and for
// a fetching or comparing one the former values in the response ring; acknowledged as everything
// else. Guarded by the engine's lock. man 3 fi_atomic; architecture.md, "Atomics".
#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.hpp"
#include "base/iov.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using protect::AccessAsk;
using protect::Denial;
using wire::Head;
using wire::Op;

namespace {

wire::AtomicCode code_of(const AtomicWr& wr) noexcept {
  return {static_cast<uint8_t>(wr.op), static_cast<uint8_t>(wr.type), static_cast<uint8_t>(wr.kind),
          static_cast<uint8_t>(wr.range_count)};
}

// Bytes of the operands that travel with it.
uint64_t payload_of(const AtomicWr& wr) noexcept {
  return wr.len * operands_of(wr.kind, wr.op);
}

constexpr uintptr_t kSmallPage = 4096;  // the smallest there is

// Beyond the check: whole elements in each run of the region, aligned, in memory that is there. It
// is touched here because the operation itself must not fault in its middle; once for each page in
// one look at the ring, which takes microseconds.
Denial judge(const protect::Checked& checked, AtomicOp op, AtomicType type,
             uintptr_t& touched) noexcept {
  if (!checked) return checked.denial();
  Denial denial = Denial::none;
  (void)checked.grant().each_piece([&](std::byte* piece, size_t n) {
    const auto at = reinterpret_cast<uintptr_t>(piece);
    if (at % atomic_alignment(type) != 0 || n % atomic_size(type) != 0) {
      denial = Denial::misaligned;
      return false;
    }
    const uintptr_t page = at / kSmallPage;
    const bool one_page = (at + n - 1) / kSmallPage == page;
    if (one_page && page == touched && op != AtomicOp::read) return true;
    if (!guarded_touch(piece, n, op != AtomicOp::read)) {
      denial = Denial::not_backed;
    } else if (one_page && op != AtomicOp::read) {
      touched = page;
    }
    return denial == Denial::none;
  });
  return denial;
}

uint8_t copy_iov(const iovec* from, size_t count, std::array<iovec, kIovLimit>& to) noexcept {
  std::copy_n(from, count, to.begin());
  return static_cast<uint8_t>(count);
}

}  // namespace

// ---- the initiator ------------------------------------------------------------------------------

Status Qp::atomic(const AtomicWr& wr) noexcept {
  if (port_.raw_keys != nullptr && !names_mapped_keys(wr.ranges, wr.range_count)) [[unlikely]]
    return Errc::no_key;
  if (state_ != QpState::ready && state_ != QpState::connecting) return Errc::again;
  if (port_.tx_cq == nullptr ? wr.completion : !port_.tx_cq->has_room()) return Errc::again;
  const bool begin_now = state_ == QpState::ready && queue_.empty() && !(wr.fence && under_way());
  if (!begin_now && port_.queued >= port_.tx_size) return Errc::again;
  Wqe* wqe = port_.wqes.take();
  if (wqe == nullptr) return Errc::again;
  *static_cast<ListHook*>(wqe) = {};
  wqe->kind = wr.kind == AtomicKind::base ? WqeKind::atomic : WqeKind::fetch;
  wqe->tagged = wqe->has_imm = false;
  wqe->delivery = 0;
  wqe->inject = wr.inject;
  wqe->completion = wr.completion;
  wqe->fence = wr.fence;
  wqe->reads_only = wr.op == AtomicOp::read;
  wqe->len = wr.len;
  wqe->context = wr.context;
  wqe->flags = wr.flags;
  wqe->done = 0;
  wqe->range_at = 0;
  wqe->in_ring = false;
  wqe->denial = Denial::none;
  wqe->error = Errc::ok;
  std::copy_n(wr.ranges, wr.range_count, wqe->ranges.begin());
  wqe->range_count = static_cast<uint8_t>(wr.range_count);
  wqe->iov_count = copy_iov(wr.result, wr.result_count, wqe->iov);
  wqe->reserved = port_.tx_cq != nullptr;  // an error is told even where success is not
  if (wqe->reserved) port_.tx_cq->reserve();
  if (!begin_now || !put_atomic(wr, *wqe)) {
    if (!keep_atomic(wr, *wqe)) {
      if (wqe->reserved) port_.tx_cq->unreserve();
      port_.wqes.give(wqe);
      return Errc::again;
    }
    queue_.push_back(wqe);
    ++port_.queued;
  }
  update_pending();
  return {};
}

// Copies what it needs of a work request that has to wait. False: no memory.
bool Qp::keep_atomic(const AtomicWr& wr, Wqe& wqe) noexcept {
  WaitingAtomic* w = port_.atomics.take();
  if (w == nullptr) return false;
  wqe.atomic = w;
  w->kind = wr.kind;
  w->op = wr.op;
  w->type = wr.type;
  const unsigned operands = operands_of(wr.kind, wr.op);
  w->operand_count = w->compare_count = 0;
  if (operands > 0) w->operand_count = copy_iov(wr.operand, wr.operand_count, w->operand);
  if (operands > 1) w->compare_count = copy_iov(wr.compare, wr.compare_count, w->compare);
  if (wr.inject && operands > 0) {
    gather(wqe.injected.data(), wr.operand, wr.operand_count, 0, wr.len);
    w->operand[0] = {wqe.injected.data(), wr.len};
    w->operand_count = 1;
  }
  if (wr.inject && operands > 1) {
    gather(w->injected_compare.data(), wr.compare, wr.compare_count, 0, wr.len);
    w->compare[0] = {w->injected_compare.data(), wr.len};
    w->compare_count = 1;
  }
  return true;
}

bool Qp::put_waiting_atomic(Wqe& wqe) noexcept {
  const WaitingAtomic& w = *wqe.atomic;
  AtomicWr wr;
  wr.kind = w.kind;
  wr.op = w.op;
  wr.type = w.type;
  wr.len = wqe.len;
  wr.operand = w.operand.data();
  wr.operand_count = w.operand_count;
  wr.compare = w.compare.data();
  wr.compare_count = w.compare_count;
  wr.ranges = wqe.ranges.data();
  wr.range_count = wqe.range_count;
  return put_atomic(wr, wqe);
}

// True: it is in the ring, or over.
bool Qp::put_atomic(const AtomicWr& wr, Wqe& wqe) noexcept {
  const bool fits = wr.range_count == 1 && payload_of(wr) <= wire::kMaxInline;
  if (!(fits ? put_atomic_inline(wr, wqe) : put_atomic_bytes(wr, wqe))) return false;
  wqe.end_pos = lane_->request_tx.cells.pos();
  add_to_pending(wqe);
  if (wqe.end_pos <= done_through_) retire(done_through_);  // it never got into the ring
  return true;
}

bool Qp::put_atomic_inline(const AtomicWr& wr, Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  const uint64_t payload = payload_of(wr);
  const ShownKey key = shown(wqe.ranges[0].key);
  const uint32_t n_cells = wire::cells_of(Op::atomic, key.flags, static_cast<uint16_t>(payload));
  if (!room_for_piece(n_cells)) return false;
  note_piece(wqe, n_cells, wqe.ranges[0], 0);
  const Head head =
      Head::make(Op::atomic, key.flags, static_cast<uint16_t>(payload), wqe.ranges[0].addr);
  std::byte* body = tx.cells.body();
  std::memcpy(body, &head, sizeof head);
  const auto count = static_cast<uint32_t>(wr.len / atomic_size(wr.type));
  wire::store_fields(body, wire::AtomicFields{key.key, code_of(wr), count});
  wire::store_secret(body, Op::atomic, key.flags, key.secret);
  ring::BodyWriter cursor(tx.cells, wire::payload_offset(Op::atomic, key.flags));
  const auto put = [&](const std::byte* piece, size_t n) { cursor.copy_in(piece, n); };
  if (payload != 0) each_iov_piece(wr.operand, wr.operand_count, 0, wr.len, put);
  if (payload > wr.len) each_iov_piece(wr.compare, wr.compare_count, 0, wr.len, put);
  tx.cells.publish(n_cells);
  published_request();
  return true;
}

bool Qp::put_atomic_bytes(const AtomicWr& wr, Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  const uint64_t payload = payload_of(wr);
  std::array<ShownKey, kRmaIovLimit> keys;
  uint8_t flags = 0;
  for (size_t i = 0; i < wr.range_count; ++i) {
    keys[i] = shown(wr.ranges[i].key);
    flags |= keys[i].flags;
  }
  const size_t secrets_at = wr.range_count * sizeof(wire::AtomicRange);
  const size_t list = secrets_at + (flags != 0 ? wr.range_count * sizeof(uint64_t) : 0);
  const auto len = static_cast<uint32_t>(list + payload);
  uint64_t pos = 0;
  if (!room_for_piece(1) || !tx.reserve_bytes(len, pos)) return false;
  if (!lane_->prepare_request_bytes()) {
    wqe.error = Errc::no_memory;
    return true;
  }
  std::byte* at = tx.bytes.at(pos);
  const size_t size = atomic_size(wr.type);
  for (size_t i = 0; i < wr.range_count; ++i) {
    const wire::AtomicRange range{wr.ranges[i].addr, keys[i].key, wr.ranges[i].len / size};
    std::memcpy(at + i * sizeof range, &range, sizeof range);
    if (flags != 0) std::memcpy(at + secrets_at + i * 8, &keys[i].secret, 8);
  }
  if (payload != 0) gather(at + list, wr.operand, wr.operand_count, 0, wr.len);
  if (payload > wr.len) gather(at + list + wr.len, wr.compare, wr.compare_count, 0, wr.len);
  tx.bytes.commit(pos, len);
  note_piece(wqe, 1, {wr.ranges[0].addr, wr.len, wr.ranges[0].key}, 0);
  const Head head = Head::make(Op::atomic_bytes, flags, 0, 0);
  std::byte* body = tx.cells.body();
  std::memcpy(body, &head, sizeof head);
  wire::store_fields(body, wire::AtomicBytesFields{pos, code_of(wr), len});
  tx.cells.publish(1);
  published_request();
  return true;
}

// The first request that is not executed is an atomic. Its owner may have stopped polling without
// having gone to sleep: its doorbell then wakes the control thread, if that may drive.
void Qp::ring_for_stalled_head(const Piece& piece) noexcept {
  if (piece.pos != done_through_) return;
  const uint64_t now = ticks();
  if (stall_since_ == 0 || stall_pos_ != piece.pos) {
    stall_pos_ = piece.pos;
    stall_since_ = now;
    return;
  }
  static const uint64_t limit = ticks_from_ns(kStallNs);
  static const uint64_t pause = ticks_from_ns(kRingEveryNs);
  if (now - stall_since_ < limit || (rung_at_ != 0 && now - rung_at_ < pause)) return;
  rung_at_ = now;
  lane_->ring_doorbell();
}

// ---- the owner ----------------------------------------------------------------------------------

struct Qp::AtomicRequest {
  AtomicOp op;
  AtomicType type;
  AtomicKind kind;
  size_t size;         // of an element
  uint64_t count = 0;  // elements of all ranges
  size_t range_count = 1;
  std::array<wire::AtomicRange, kRmaIovLimit> ranges;
  std::array<uint64_t, kRmaIovLimit> secrets;  // of raw keys, else 0
  const std::byte* operand = nullptr;  // as many as `count`, and to compare with behind them

  uint64_t len() const noexcept { return count * size; }
  uint64_t payload() const noexcept { return len() * operands_of(kind, op); }

  // False: no sound peer asks for that.
  bool decode(const wire::AtomicCode& code) noexcept {
    op = static_cast<AtomicOp>(code.op);
    type = static_cast<AtomicType>(code.type);
    kind = static_cast<AtomicKind>(code.kind);
    size = atomic_size(type);
    range_count = code.ranges;
    return code.kind < kAtomicKinds && atomic_offered(kind, op, type) && range_count >= 1 &&
           range_count <= kRmaIovLimit;
  }
  // Adds up the ranges; each is bounded before it is added.
  bool measure() noexcept {
    count = 0;
    for (size_t i = 0; i < range_count; ++i) {
      const uint64_t n = ranges[i].count;
      if (n == 0 || n > kAtomicBytes / size) return false;
      count += n;
    }
    return count <= kAtomicBytes / size;
  }
};

bool Qp::on_atomic(const Head& head) noexcept {
  const ring::CellReader& cells = lane_->request_rx.cells;
  const auto f = wire::load_fields<wire::AtomicFields>(cells.body());
  AtomicRequest r;
  r.ranges[0] = {head.word(), f.key, f.count};
  r.secrets[0] = wire::load_secret(cells.body(), Op::atomic, head.flags);
  if (!r.decode(f.code) || r.range_count != 1 || !r.measure() || r.payload() != head.len) {
    break_protocol("an atomic that does not exist");
    return false;
  }
  std::array<std::byte, wire::kMaxInline> operands;
  ring::BodyReader(cells, wire::payload_offset(Op::atomic, head.flags))
      .copy_out(operands.data(), head.len);
  r.operand = operands.data();
  return execute_atomic(r);
}

bool Qp::on_atomic_bytes(const Head& head) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  const auto f = wire::load_fields<wire::AtomicBytesFields>(rx.cells.body());
  const std::byte* from = rx.bytes.view(f.byte_pos, f.len);
  AtomicRequest r;
  const bool raw = (head.flags & wire::kRaw) != 0;
  const size_t secrets_at = f.code.ranges * sizeof(wire::AtomicRange);
  const size_t list = secrets_at + (raw ? f.code.ranges * sizeof(uint64_t) : 0);
  if (from == nullptr || !r.decode(f.code) || f.len < list) {
    break_protocol("an atomic that does not exist, or outside its ring");
    return false;
  }
  std::memcpy(r.ranges.data(), from, secrets_at);
  r.secrets = {};
  if (raw) std::memcpy(r.secrets.data(), from + secrets_at, list - secrets_at);
  if (!r.measure() || r.payload() != f.len - list) {
    break_protocol("an atomic whose operands do not fit its ranges");
    return false;
  }
  // Operands stay where they are: each is read once, and whatever it then is, it is only a number.
  r.operand = from + list;
  if (!execute_atomic(r)) return false;
  rx.free_bytes_before(rx.bytes.after(f.byte_pos, f.len));
  return true;
}

AccessAsk Qp::ask_of(const AtomicRequest& r, size_t range_at) const noexcept {
  const wire::AtomicRange& range = r.ranges[range_at];
  return ask_of(range.key, range.addr, range.count * r.size, rights_for(r.kind, r.op),
                r.secrets[range_at]);
}

// All ranges are looked at before anything changes. True: one was refused.
bool Qp::refuse_any(const AtomicRequest& r) noexcept {
  for (size_t i = 0; i < r.range_count; ++i) {
    const AccessAsk ask = ask_of(r, i);
    const Denial denial = judge(port_.keys.check(ask, &hint_), r.op, r.type, touched_page_);
    if (denial == Denial::none) continue;
    refuse(ask, denial, static_cast<uint8_t>(i));
    return true;
  }
  return false;
}

// False: no room for its answer now; it is shown again, and nothing has changed.
bool Qp::execute_atomic(const AtomicRequest& r) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  const bool answers = r.kind != AtomicKind::base;
  const bool in_bytes = answers && r.len() > wire::kMaxInline;
  uint64_t pos = 0;
  if (!tx.room(wire::kMaxCells)) return wait_for_peer();
  if (in_bytes && !tx.reserve_bytes(static_cast<uint32_t>(r.len()), pos)) return wait_for_peer();
  if (in_bytes && !lane_->prepare_response_bytes()) {
    refuse(ask_of(r, 0), Denial::not_backed);
    return true;
  }
  if (r.range_count > 1) {
    if (refuse_any(r)) return true;
    noted_.count = 0;
  }
  std::array<std::byte, wire::kMaxInline> small;
  std::byte* result = !answers ? nullptr : in_bytes ? tx.bytes.at(pos) : small.data();
  const std::byte* operand = r.operand;
  const std::byte* compare = r.kind == AtomicKind::compare ? r.operand + r.len() : nullptr;
  for (size_t i = 0; i < r.range_count; ++i) {
    const AccessAsk ask = ask_of(r, i);
    const protect::Checked checked = port_.keys.check(ask, &hint_);
    if (const Denial denial = judge(checked, r.op, r.type, touched_page_); denial != Denial::none) {
      refuse(ask, denial, static_cast<uint8_t>(i));  // the only range: nothing has changed
      return true;
    }
    (void)checked.grant().each_piece([&](std::byte* piece, size_t n) {
      qp::execute_atomic(r.op, r.type, piece, operand, compare, result, n / r.size);
      if (has_operand(r.op)) operand += n;
      if (compare != nullptr) compare += n;
      if (result != nullptr) result += n;
      return true;
    });
    if (r.op != AtomicOp::read) {
      const protect::RegionRef region = checked.grant().region();
      r.range_count == 1 ? note_write(region, r.len()) : note_write(region, r.len(), noted_);
    }
  }
  if (in_bytes) {
    answer_atomic_bytes(pos, static_cast<uint32_t>(r.len()));
  } else if (answers) {
    answer_atomic_inline(small.data(), static_cast<uint16_t>(r.len()));
  }
  Counter* counter = answers ? port_.remote_read_counter : port_.remote_write_counter;
  if (counter != nullptr) counter->add(1);
  return true;
}

void Qp::answer_atomic_inline(const std::byte* result, uint16_t len) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  const Head head = Head::make(Op::read_inline, 0, len, lane_->request_rx.cells.pos());
  std::memcpy(tx.cells.body(), &head, sizeof head);
  ring::BodyWriter(tx.cells, wire::kHeadBytes).copy_in(result, len);
  tx.cells.publish(wire::cells_of(Op::read_inline, 0, len));
  published_response();
}

void Qp::answer_atomic_bytes(uint64_t pos, uint32_t len) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  tx.bytes.commit(pos, len);
  const Head head = Head::make(Op::read_data, 0, 0, lane_->request_rx.cells.pos());
  std::memcpy(tx.cells.body(), &head, sizeof head);
  wire::store_fields(tx.cells.body(), wire::DataFields{0, pos, len});
  tx.cells.publish(1);
  published_response();
}

}  // namespace aperture::qp
