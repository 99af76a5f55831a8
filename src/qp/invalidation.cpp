// Sends that complete only once a memory window of the peer's is invalidated, both halves: the
// libfabric door's send with invalidate (docs/man/aperture_fi_window.3; IBTA vol. 1, 9.4.1.1.3 and
// 10.6.7.2.3 say the same of InfiniBand's).
//
// Guarded by the engine's lock. The invalidation is a request of its own, right before the message
// in the same ring; both are executed by the owner, never claimed. Windows that a peer may
// invalidate are reached by the owner's hand alone, under this lock, so one is over at once. The
// message carries the key: it is dropped if the invalidation before it was refused, and the send
// ends with that refusal. What cannot be put whole into the ring is offered, once the invalidation
// is known to be done.
#include <cstring>

#include "base/log.hpp"
#include "protect/wording.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using protect::AccessAsk;
using protect::Denial;
using wire::Head;
using wire::Op;

// ---- the sender ---------------------------------------------------------------------------------

// room_for_piece() has been asked. Whoever calls this tells the peer.
void Qp::put_invalidate(Wqe& wqe) noexcept {
  wqe.through_ring = true;  // for its owner to execute
  wqe.range_at = 0;
  wqe.range_count = 1;
  wqe.ranges[0] = {0, 0, wqe.imm};
  wqe.imm = shown(wqe.imm).key;  // what the message shows
  note_piece(wqe, 1, wqe.ranges[0], 0);
  pieces_[(piece_tail_ - 1) % pieces_.size()].check_only = true;
  const Head head = Head::make(Op::invalidate, 0, 0, wqe.imm);
  std::memcpy(lane_->request_tx.cells.body(), &head, sizeof head);
  lane_->request_tx.cells.publish(1);
}

// Of a message that will be offered. True: it needs the send queue no longer.
bool Qp::put_invalidate_alone(Wqe& wqe) noexcept {
  if (!wqe.in_ring) {
    if (!room_for_piece(1)) return false;
    put_invalidate(wqe);
    wqe.end_pos = lane_->request_tx.cells.pos();
    published_request();
    return false;
  }
  if (done_through_ < wqe.end_pos) learn_executed();
  if (done_through_ < wqe.end_pos || broken_) return false;
  if (wqe.denial == Denial::none) return put_offer(wqe);
  complete(wqe);
  return true;
}

// ---- the receiver -------------------------------------------------------------------------------

bool Qp::on_invalidate(const Head& head) noexcept {
  if (!lane_->response_tx.room(1)) return wait_for_peer();
  if (may_execute() == ClaimVerdict::wait) return wait_for_peer();
  const AccessAsk ask = ask_of(head.word(), 0, 0, protect::Rights::none, 0);
  const Denial denial = port_.keys.invalidate(ask);
  invalidated_key_ = head.word();
  invalidation_ = denial == Denial::none ? After::done : After::refused;
  if (denial == Denial::none) return true;
  answer_nak(denial);
  if (log_level() < LogLevel::warn) return true;
  try {
    APERTURE_WARN("from %s: %s", remote_.text().c_str(),
                  port_.keys.explain_invalidation(ask, denial, *port_.wording).c_str());
  } catch (...) {
    APERTURE_WARN("from %s: %s", remote_.text().c_str(), protect::rule(*port_.wording, denial));
  }
  return true;
}

// What the message at the head of the ring, which names that key, has to expect.
Qp::After Qp::after_invalidation(uint64_t key) noexcept {
  if (invalidation_ != After::none && key == invalidated_key_) return invalidation_;
  break_protocol("a message after an invalidation that was not asked for");
  return After::broken;
}

// Its invalidation was refused: it is not delivered.
bool Qp::step_over_send(Op op) noexcept {
  ring::ChannelRx& rx = lane_->request_rx;
  if (op == Op::send) return true;
  if (op == Op::send_offer) {
    break_protocol("an offer after an invalidation that was refused");
    return false;
  }
  const auto f = wire::load_fields<wire::SendBytesFields>(rx.cells.body());
  if (f.len > kEagerBytes || rx.bytes.view(f.byte_pos, f.len) == nullptr) {
    break_protocol("payload outside its ring");
    return false;
  }
  rx.free_bytes_before(rx.bytes.after(f.byte_pos, f.len));
  return true;
}

}  // namespace aperture::qp
