// Atomics into the request ring: see atomic_requester.hpp.
#include "qp/atomic_requester.hpp"

#include <array>
#include <cstring>

namespace aperture::qp {

using wire::Head;
using wire::Op;

namespace {

wire::AtomicCode code_of(const AtomicWr& wr) noexcept {
  return {static_cast<uint8_t>(wr.op), static_cast<uint8_t>(wr.type), static_cast<uint8_t>(wr.kind),
          static_cast<uint8_t>(wr.range_count)};
}

// Bytes of the operands that travel with it.
uint64_t payload_of(const AtomicWr& wr) noexcept {
  return wr.len * transport::operands_of(wr.kind, wr.op);
}

uint8_t copy_iov(const iovec* from, size_t count, std::array<iovec, kIovLimit>& to) noexcept {
  assert(count <= to.size());
  copy_members(from, count, to.data());
  return static_cast<uint8_t>(count);
}

}  // namespace

Status AtomicRequester::post(const AtomicWr& wr) noexcept {
  if (const Status s = core_.may_post(wr.ranges, wr.range_count, wr.completion); !s) return s;
  const bool begin_now = core_.may_begin(wr.fence);
  const auto kind = wr.kind == transport::AtomicKind::base ? WqeKind::atomic : WqeKind::fetch;
  Wqe* wqe = core_.take_wqe(kind, wr, begin_now);
  if (wqe == nullptr) return Errc::again;
  wqe->reads_only = wr.op == transport::AtomicOp::read;
  core_.keep_ranges(*wqe, wr.ranges, wr.range_count);
  wqe->iov_count = copy_iov(wr.result, wr.result_count, wqe->iov);
  if (!begin_now || !put(wr, *wqe)) {
    if (!keep(wr, *wqe)) {
      if ((wqe->reserved & kEntry) != 0) core_.port.tx_cq->unreserve();
      core_.port.tx.wqes.give(wqe);
      return Errc::again;
    }
    core_.enqueue(*wqe);
  }
  core_.update_pending();
  return {};
}

// Copies what it needs of a work request that has to wait. False: no memory.
bool AtomicRequester::keep(const AtomicWr& wr, Wqe& wqe) noexcept {
  WaitingAtomic* w = core_.port.tx.atomics.take();
  if (w == nullptr) return false;
  wqe.atomic = w;
  w->kind = wr.kind;
  w->op = wr.op;
  w->type = wr.type;
  const unsigned operands = transport::operands_of(wr.kind, wr.op);
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

bool AtomicRequester::put(Wqe& wqe) noexcept {
  assert(wqe.atomic != nullptr);
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
  return put(wr, wqe);
}

bool AtomicRequester::put(const AtomicWr& wr, Wqe& wqe) noexcept {
  const bool fits = wr.range_count == 1 && payload_of(wr) <= wire::kMaxInline;
  if (!(fits ? put_in_cells(wr, wqe) : put_in_bytes(wr, wqe))) return false;
  wqe.end_pos = core_.lane->request_tx.cells.pos();
  pending_.add(wqe);
  return true;
}

bool AtomicRequester::put_in_cells(const AtomicWr& wr, Wqe& wqe) noexcept {
  ring::ChannelTx& tx = core_.lane->request_tx;
  const RemoteRange& range = wqe.ranges[0];
  const ShownKey key = core_.shown(range.key);
  const auto payload = static_cast<uint16_t>(payload_of(wr));
  const uint32_t n_cells = wire::cells_of(Op::atomic, key.flags, payload);
  if (!responses_.room_for_piece(n_cells)) return false;
  core_.note_piece(wqe, n_cells, range, 0);
  const size_t size = transport::atomic_size(wr.type);
  assert(size != 0);
  const auto count = static_cast<uint32_t>(wr.len / size);
  wire::store(tx.cells.body(), Head::make(Op::atomic, key.flags, payload, range.addr),
              wire::AtomicFields{key.key, code_of(wr), count}, key.secret);
  ring::BodyWriter cursor(tx.cells, wire::payload_offset(Op::atomic, key.flags));
  const auto put = [&](const std::byte* piece, size_t n) { cursor.copy_in(piece, n); };
  if (payload != 0) each_iov_piece(wr.operand, wr.operand_count, 0, wr.len, put);
  if (payload > wr.len) each_iov_piece(wr.compare, wr.compare_count, 0, wr.len, put);
  core_.lane.publish_request(n_cells);
  return true;
}

bool AtomicRequester::put_in_bytes(const AtomicWr& wr, Wqe& wqe) noexcept {
  const uint64_t payload = payload_of(wr);
  std::array<ShownKey, kRmaIovLimit> keys;
  uint8_t flags = 0;
  for (size_t i = 0; i < wr.range_count; ++i) {
    keys[i] = core_.shown(wr.ranges[i].key);
    flags |= keys[i].flags;
  }
  const size_t secrets_at = wr.range_count * sizeof(wire::AtomicRange);
  const size_t list = secrets_at + (flags != 0 ? wr.range_count * sizeof(uint64_t) : 0);
  const auto len = static_cast<uint32_t>(list + payload);
  if (!responses_.room_for_piece(1)) return false;
  uint64_t pos = 0;
  const transport::Put put = core_.lane.payload().put_request_bytes(len, pos, [&](std::byte* to) {
    const size_t size = transport::atomic_size(wr.type);
    assert(size != 0);
    for (size_t i = 0; i < wr.range_count; ++i) {
      const wire::AtomicRange range{wr.ranges[i].addr, keys[i].key, wr.ranges[i].len / size};
      std::memcpy(to + i * sizeof range, &range, sizeof range);
      if (flags != 0) std::memcpy(to + secrets_at + i * 8, &keys[i].secret, 8);
    }
    if (payload != 0) gather(to + list, wr.operand, wr.operand_count, 0, wr.len);
    if (payload > wr.len) gather(to + list + wr.len, wr.compare, wr.compare_count, 0, wr.len);
    return true;
  });
  if (put == transport::Put::no_room) return false;
  if (put != transport::Put::done) {
    wqe.error = Errc::no_memory;
    return true;
  }
  core_.note_piece(wqe, 1, {wr.ranges[0].addr, wr.len, wr.ranges[0].key}, 0);
  wire::store(core_.lane->request_tx.cells.body(), Head::make(Op::atomic_bytes, flags, 0, 0),
              wire::AtomicBytesFields{pos, code_of(wr), len});
  core_.lane.publish_request(1);
  return true;
}

}  // namespace aperture::qp
