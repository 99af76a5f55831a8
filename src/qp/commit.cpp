// Writes that are in a file when they complete (FI_COMMIT_COMPLETE, fi_mr(3) FI_RMA_PMEM), both
// halves. Such a write goes through the ring whatever the link; behind its pieces come requests
// that let the owner pass each range to the file, and behind those what tells the owner of it. The
// system call is the owner's, under its engine's lock: the price of the level. Guarded by the
// engine's lock.
#include <cstring>

#include "qp/qp.hpp"

namespace aperture::qp {

using protect::Denial;
using wire::Head;
using wire::Op;

// False: no room now.
bool Qp::put_commits(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  while (wqe.committed < wqe.range_count) {
    if (!room_for_piece(1)) return false;
    const RemoteRange& range = wqe.ranges[wqe.committed];
    note_piece(wqe, 1, range, 0);
    Piece& noted = pieces_[(piece_tail_ - 1) % pieces_.size()];
    noted.range_at = wqe.committed;
    noted.check_only = true;
    const bool last = wqe.committed + 1 == wqe.range_count && !wqe.has_imm;
    const ShownKey key = shown(range.key);
    const auto flags = static_cast<uint8_t>((last ? wire::kLast : 0) | key.flags);
    const Head head = Head::make(Op::commit, flags, 0, range.addr);
    std::byte* body = tx.cells.body();
    std::memcpy(body, &head, sizeof head);
    wire::store_fields(body, wire::CheckFields{key.key, range.len, 1});
    wire::store_secret(body, Op::commit, flags, key.secret);
    tx.cells.publish(1);
    published_request();
    ++wqe.committed;
  }
  return true;
}

bool Qp::on_commit(const Head& head) noexcept {
  if (!lane_->response_tx.room(1)) return wait_for_peer();
  if (may_execute() == ClaimVerdict::wait) return wait_for_peer();
  const bool last = (head.flags & wire::kLast) != 0;
  if (!op_refused_) {
    const std::byte* body = lane_->request_rx.cells.body();
    const auto f = wire::load_fields<wire::CheckFields>(body);
    const protect::AccessAsk ask = ask_of(f.key, head.word(), f.len, protect::Rights::remote_write,
                                          wire::load_secret(body, Op::commit, head.flags));
    const Denial denial = port_.keys.commit(ask);
    if (denial != Denial::none) {
      op_refused_ = true;
      refuse(ask, denial);
    }
  }
  if (last && !op_refused_ && port_.remote_write_counter != nullptr) {
    port_.remote_write_counter->add(1);
  }
  return true;
}

}  // namespace aperture::qp
