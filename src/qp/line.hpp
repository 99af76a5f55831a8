// The hot path of sending: one message in one cell, from the door's arguments to the ring. Inline,
// so that nothing is stored between the two but the cell itself. Guarded by the engine's lock.
#pragma once

#include "base/copy.hpp"
#include "qp/qp.hpp"

namespace aperture::qp {

[[gnu::always_inline]] inline bool Qp::send_line(const LineWr& wr) noexcept {
  Port& port = core_.port;
  if (core_.state != QpState::ready || !core_.queue.empty() ||
      wr.len > wire::line_room(wr.wire_flags))
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
    end_line();
  return true;
}

}  // namespace aperture::qp
