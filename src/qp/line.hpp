// The hot path of posting: a line, which is a message or an operation in one cell, from the door's
// arguments to the ring. Inline, so that nothing is stored between the two but the cell itself and,
// of an operation, what its end needs. That is more than the instructions: between distant cores
// the sender's store buffer holds what it does until a line of the ring has come, and a WQE is most
// of one. Guarded by the engine's lock.
#pragma once

#include "base/copy.hpp"
#include "qp/qp.hpp"

namespace aperture::qp {

// Of one queue pair, for one call: it is as good as its core, and nothing of it is stored.
class Line {
 public:
  explicit Line(QpCore& core) noexcept : core_(core) {}

  // A message that may go at once. False: nothing was done, take Requester::send(). Here, at no
  // distance from the lane.
  bool send(const LineWr& wr) noexcept;
  // The same for a write, and for an atomic that returns nothing: until it is executed, its piece
  // is all that is kept of it. Take the requester if false. count: elements, together wr.len bytes.
  bool write(const LineRmaWr& wr, const void* bytes) noexcept;
  bool atomic(const LineRmaWr& wr, wire::AtomicCode code, uint32_t count,
              const void* operand) noexcept;

 private:
  // Null: nothing was done. Else the body of its cell.
  std::byte* begin_rma(WqeKind kind, const LineRmaWr& wr) noexcept;
  void end_rma(WqeKind kind, const LineRmaWr& wr) noexcept;
  // What is left to do for few of them, at their end: whatever lives across a call is kept on the
  // stack from the beginning on, by all of them.
  static void end(QpCore& core) noexcept;
  static void tell(QpCore& core) noexcept;

  QpCore& core_;
};

inline Line Qp::line() noexcept {
  return Line(core_);
}

[[gnu::always_inline]] inline bool Line::send(const LineWr& wr) noexcept {
  Port& port = core_.port;
  if (core_.state != QpState::ready || !core_.queue.empty() ||
      wr.len > wire::line_room(wire::Op::send, wr.wire_flags))
    return false;
  ring::ChannelTx& tx = core_.lane->request_tx;
  if (!tx.cells.has_room(1)) [[unlikely]]
    return false;
  if (wr.completion && !port.tx_cq->has_room()) [[unlikely]]
    return false;
  std::byte* body = tx.cells.body();
  wire::store(
      body, wire::Head::make(wire::Op::send, wr.wire_flags, static_cast<uint16_t>(wr.len), wr.tag));
  size_t at = wire::kHeadBytes;
  if ((wr.wire_flags & wire::kImm) != 0) {
    std::memcpy(body + at, &wr.imm, sizeof wr.imm);
    at += sizeof wr.imm;
  }
  copy_short(body + at, wr.bytes, wr.len);
  const bool is_rung_for = core_.lane.put_request(1);
  if (wr.completion) {
    port.tx_cq->push({.context = wr.context, .flags = wr.flags, .len = wr.len});
  }
  if (is_rung_for || port.send_counter != nullptr) [[unlikely]]
    end(core_);
  return true;
}

[[gnu::always_inline]] inline std::byte* Line::begin_rma(WqeKind kind,
                                                         const LineRmaWr& wr) noexcept {
  if (!core_.may_begin(false) || core_.port.raw_keys != nullptr) return nullptr;
  if (!core_.may_post(nullptr, 0, wr.completion ? kEntry : kCounted)) [[unlikely]]
    return nullptr;
  ring::ChannelTx& tx = core_.lane->request_tx;
  if (!core_.pieces.has_place() || !tx.cells.has_room(1)) [[unlikely]]
    return nullptr;
  Piece& piece = core_.pieces.note();
  piece.pos = tx.cells.pos();
  piece.cells = 1;
  piece.range_at = 0;
  piece.kind = kind;
  piece.check_only = false;
  piece.through_ring = false;
  piece.is_lost = false;
  piece.denial = protect::Denial::none;
  piece.with = static_cast<uint8_t>((wr.has_imm ? Piece::kWithImm : 0) |
                                    (wr.completion ? Piece::kWithEntry : 0));
  piece.wqe = nullptr;
  piece.range.addr = wr.addr;
  piece.range.len = wr.len;
  piece.range.key = wr.key;
  piece.context = wr.context;
  piece.flags = wr.flags;
  return tx.cells.body();
}

[[gnu::always_inline]] inline void Line::end_rma(WqeKind kind, const LineRmaWr& wr) noexcept {
  // an error is told even where success is not
  if (core_.port.tx_cq != nullptr) core_.port.tx_cq->reserve();
  if (core_.awaits_ack(kind, wr.completion)) {
    ++core_.awaited;
    core_.busy = true;
  }
  core_.lane.note_pending(true);
  if (core_.lane.put_request(1)) [[unlikely]]
    tell(core_);
}

[[gnu::always_inline]] inline bool Line::write(const LineRmaWr& wr, const void* bytes) noexcept {
  const auto flags =
      static_cast<uint8_t>(wire::kFirst | wire::kLast | (wr.has_imm ? wire::kImm : 0));
  if (wr.len > wire::line_room(wire::Op::write, flags)) return false;
  // what may go directly is for the requester, which looks closer
  const transport::OneSided& path = core_.one_sided;
  if (core_.state == QpState::ready && path.is_possible(transport::kPermitWrites) &&
      (!core_.target.seems_there() || path.reaches_device(wr.key)))
    return false;
  std::byte* body = begin_rma(WqeKind::write, wr);
  if (body == nullptr) return false;
  wire::store(body,
              wire::Head::make(wire::Op::write, flags, static_cast<uint16_t>(wr.len), wr.addr),
              wire::WriteFields{wr.key});
  const size_t at = wire::payload_offset(wire::Op::write, flags);
  if (wr.has_imm) std::memcpy(body + at - sizeof wr.imm, &wr.imm, sizeof wr.imm);
  copy_short(body + at, bytes, wr.len);
  end_rma(WqeKind::write, wr);
  return true;
}

[[gnu::always_inline]] inline bool Line::atomic(const LineRmaWr& wr, wire::AtomicCode code,
                                                uint32_t count, const void* operand) noexcept {
  if (wr.len > wire::kLineAtomicBytes) return false;
  std::byte* body = begin_rma(WqeKind::atomic, wr);
  if (body == nullptr) return false;
  wire::store(body, wire::Head::make(wire::Op::atomic, 0, static_cast<uint16_t>(wr.len), wr.addr),
              wire::AtomicFields{wr.key, code, count});
  copy_short(body + wire::payload_offset(wire::Op::atomic, 0), operand, wr.len);
  end_rma(WqeKind::atomic, wr);
  return true;
}

}  // namespace aperture::qp
