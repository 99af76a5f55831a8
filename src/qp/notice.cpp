// Telling the owner of an access: immediate data (remote CQ data) and RMA events. fi_rma(3),
// FI_REMOTE_CQ_DATA; fi_getinfo(3), FI_RMA_EVENT; fi_endpoint(3), counters bound with
// FI_REMOTE_READ and FI_REMOTE_WRITE.
//
// Guarded by the engine's lock. What the owner executes it sees. What the initiator copied by its
// own hand is told with a notice through the ring, published after the copying call has returned,
// so whoever reads the event finds the bytes. A request that was claimed still lies in the ring:
// the owner tells of it as it steps over it, and an initiator that would be refused therefore gives
// such a request back to the owner (direct.cpp). Only endpoints that asked for events
// (ChannelWords' notices) and writes with immediate data pay for any of this.
#include <cstring>

#include "qp/qp.hpp"

namespace aperture::qp {

using wire::Head;
using wire::Op;

// The owner is to hear of it.
bool Qp::tells(const Wqe& wqe) const noexcept {
  const uint32_t kind = wqe.kind == WqeKind::read ? ring::kNoticeOfReads : ring::kNoticeOfWrites;
  return wqe.has_imm || (lane_->request_tx.notices_wanted() & kind) != 0;
}

// It was copied by our own hand, to the end, and the owner does not know.
bool Qp::must_tell(const Wqe& wqe) const noexcept {
  return wqe.denial == protect::Denial::none && wqe.error == Errc::ok && tells(wqe);
}

// False: no room now.
bool Qp::put_notice(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  // behind pieces of its own in the ring it belongs to them, and is dropped if they were refused
  const uint8_t flags = static_cast<uint8_t>(wire::kLast | (wqe.has_imm ? wire::kImm : 0) |
                                             (wqe.in_ring ? 0 : wire::kFirst));
  const uint16_t kind = wqe.kind == WqeKind::read ? wire::kNoticeRead : wire::kNoticeWrite;
  const uint32_t n_cells = wire::cells_of(Op::notice, flags, kind);
  if (!tx.room(n_cells)) return false;
  const Head head = Head::make(Op::notice, flags, kind, wqe.len);
  std::byte* body = tx.cells.body();
  std::memcpy(body, &head, sizeof head);
  if (wqe.has_imm) std::memcpy(body + wire::kHeadBytes, &wqe.imm, sizeof wqe.imm);
  tx.cells.publish(n_cells);
  wqe.imm_sent = true;
  published_request();
  return true;
}

bool Qp::on_notice(const Head& head) noexcept {
  if ((head.flags & wire::kFirst) != 0) begin_operation();
  if (op_refused_) {
    op_refused_ = false;
    return true;
  }
  const bool has_imm = (head.flags & wire::kImm) != 0;
  if (has_imm && !room_for_notice()) return false;
  if (has_imm) {
    uint64_t imm = 0;
    std::memcpy(&imm, lane_->request_rx.cells.body() + wire::kHeadBytes, sizeof imm);
    deliver_notice(head.word(), imm);
  }
  Counter* counter =
      head.len == wire::kNoticeRead ? port_.remote_read_counter : port_.remote_write_counter;
  if (counter != nullptr) counter->add(1);
  return true;
}

bool Qp::room_for_notice() const noexcept {
  return port_.rx_cq == nullptr || port_.rx_cq->has_room();
}

void Qp::deliver_notice(uint64_t len, uint64_t imm) noexcept {
  if (port_.rx_cq == nullptr) return;
  port_.rx_cq->push({.context = nullptr,
                     .flags = port_.remote_write_flags | port_.imm_flag(),
                     .len = len,
                     .imm = imm,
                     .source = port_.sink->source_to_report(*this)});
}

}  // namespace aperture::qp
