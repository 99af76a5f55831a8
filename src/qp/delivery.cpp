// Sends that complete when the other side has dealt with them: FI_DELIVERY_COMPLETE of fi_cq(3),
// "COMPLETION EVENT SEMANTICS".
//
// Guarded by the engine's lock. The executed index acknowledges: a message leaves the request ring
// once it lies in its posted buffer, or with the unexpected ones if there was none. So a small one
// goes through the ring like any other and its WQE waits in `pending`. What has to be matched
// first (FI_MATCH_COMPLETE), is large, or meets a receiver under pressure is offered, and ends with
// `finished` (rendezvous.cpp).
#include <cstring>

#include "base/iov.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using wire::Head;
using wire::Op;

// True: it needs the send queue no longer.
bool Qp::put_acknowledged(Wqe& wqe) noexcept {
  const bool invalidates = (wqe.delivery & kInvalidating) != 0;
  if (wqe.delivery != kDelivered) {
    if (!invalidates) return put_offer(wqe);
    if (wqe.in_ring || (wqe.delivery & kMatched) != 0) return put_invalidate_alone(wqe);
  }
  if (wqe.len > kEagerBytes || peer_pressure_) {
    return invalidates ? put_invalidate_alone(wqe) : put_offer(wqe);
  }
  ring::ChannelTx& tx = lane_->request_tx;
  const bool in_cells = wqe.len <= wire::kMaxInline;
  const Op op = in_cells ? Op::send : Op::send_bytes;
  const uint8_t flags =
      static_cast<uint8_t>((wqe.tagged ? wire::kTagged : 0) | (wqe.has_imm ? wire::kImm : 0) |
                           (invalidates ? wire::kInvalidates : 0));
  const uint16_t head_len = in_cells ? static_cast<uint16_t>(wqe.len) : uint16_t{0};
  const uint32_t n_cells = wire::cells_of(op, flags, head_len);
  if (invalidates ? !room_for_piece(n_cells + 1) : !tx.room(n_cells)) return false;
  uint64_t pos = 0;
  if (!in_cells) {
    if (!tx.reserve_bytes(static_cast<uint32_t>(wqe.len), pos)) return false;
    if (!lane_->prepare_request_bytes()) {
      return invalidates ? put_invalidate_alone(wqe) : put_offer(wqe);
    }
  }
  if (invalidates) put_invalidate(wqe);
  const Head head = Head::make(op, flags, head_len, wqe.tag);
  std::byte* body = tx.cells.body();
  if (!in_cells) {
    gather(tx.bytes.at(pos), wqe.iov.data(), wqe.iov_count, 0, wqe.len);
    tx.bytes.commit(pos, static_cast<uint32_t>(wqe.len));
    wire::store_fields(body, wire::SendBytesFields{pos, wqe.len});
  }
  std::memcpy(body, &head, sizeof head);
  if (wqe.has_imm) {
    std::memcpy(body + wire::kHeadBytes + wire::field_bytes(op), &wqe.imm, sizeof wqe.imm);
  }
  if (in_cells) {
    ring::BodyWriter cursor(tx.cells, wire::payload_offset(op, flags));
    each_iov_piece(wqe.iov.data(), wqe.iov_count, 0, wqe.len,
                   [&](const std::byte* piece, size_t n) { cursor.copy_in(piece, n); });
  }
  tx.cells.publish(n_cells);
  wqe.end_pos = tx.cells.pos();
  add_to_pending(wqe);
  published_request();
  return true;
}

}  // namespace aperture::qp
