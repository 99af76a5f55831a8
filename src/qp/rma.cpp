// RMA through the request ring: writes inline or in pieces through the byte ring, reads, notices.
// Every piece is remembered until it is executed, so that it can be claimed (direct.cpp).
#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "base/iov.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using wire::Head;
using wire::Op;

namespace {

void store_imm(std::byte* body, size_t at, uint64_t imm) noexcept {
  std::memcpy(body + at, &imm, sizeof imm);
}

// All of it in one request. One that is to be persistent tells the owner in the end only.
bool is_small(const Wqe& wqe) noexcept {
  return wqe.range_count == 1 && wqe.len <= wire::kMaxInline && !wqe.commit;
}

}  // namespace

// True: everything of it is in the ring, or it is over.
bool Qp::put_rma(Wqe& wqe) noexcept {
  if (wqe.denial == protect::Denial::none && (wqe.direct_done || may_go_direct(wqe))) {
    if (!wqe.direct_done && !put_direct(wqe)) return false;
    wqe.direct_done = must_tell(wqe) && !put_notice(wqe);
    if (wqe.direct_done) return false;
    complete(wqe);  // and pieces of it that went through the ring were executed before
    return true;
  }
  if (wqe.denial == protect::Denial::none) {
    if (wqe.range_count > 1 && !put_checks(wqe)) return false;
    const bool all = wqe.kind == WqeKind::read ? put_read(wqe)
                     : is_small(wqe)           ? put_write_inline(wqe)
                                               : put_write_piece(wqe);
    if (!all) return false;
    if (wqe.commit && wqe.denial == protect::Denial::none && !put_commits(wqe)) return false;
    // it is complete once its bytes are in place: the notice may wait for the owner's next poll
    wqe.end_pos = lane_->request_tx.cells.pos();
    if (wqe.has_imm && !wqe.imm_sent && !put_notice(wqe)) return false;
  } else {
    wqe.end_pos = lane_->request_tx.cells.pos();
  }
  add_to_pending(wqe);
  if (wqe.end_pos <= done_through_) retire(done_through_);  // all its pieces were claimed meanwhile
  return true;
}

void Qp::note_piece(Wqe& wqe, uint32_t cells, const RemoteRange& range, uint64_t offset) noexcept {
  // room_for_piece() has seen to its place
  pieces_[piece_tail_ % pieces_.size()] = {
      lane_->request_tx.cells.pos(), cells, wqe.range_at, false, &wqe, range, offset};
  ++piece_tail_;
  wqe.in_ring = true;
}

// Room in the ring, and among the pieces that are remembered: cells may be free again whose pieces
// have not been retired.
bool Qp::room_for_piece(uint32_t n_cells) noexcept {
  if (piece_tail_ - piece_head_ == pieces_.size()) learn_executed();
  return piece_tail_ - piece_head_ < pieces_.size() && lane_->request_tx.room(n_cells);
}

// With several ranges, all are checked before the first byte moves: one that is bad changes
// nothing.
bool Qp::put_checks(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  while (wqe.checked < wqe.range_count) {
    if (!room_for_piece(1)) return false;
    const RemoteRange& range = wqe.ranges[wqe.checked];
    const ShownKey key = shown(range.key);
    const auto flags = static_cast<uint8_t>((wqe.checked == 0 ? wire::kFirst : 0) | key.flags);
    note_piece(wqe, 1, range, 0);
    Piece& noted = pieces_[(piece_tail_ - 1) % pieces_.size()];
    noted.range_at = wqe.checked;
    noted.check_only = true;
    const Head head = Head::make(Op::check, flags, 0, range.addr);
    std::byte* body = tx.cells.body();
    std::memcpy(body, &head, sizeof head);
    wire::store_fields(body, wire::CheckFields{key.key, range.len, wqe.kind == WqeKind::write});
    wire::store_secret(body, Op::check, flags, key.secret);
    tx.cells.publish(1);
    published_request();
    ++wqe.checked;
  }
  return true;
}

bool Qp::put_write_inline(Wqe& wqe) noexcept {
  if (wqe.in_ring) return true;
  ring::ChannelTx& tx = lane_->request_tx;
  const ShownKey key = shown(wqe.ranges[0].key);
  const auto flags =
      static_cast<uint8_t>(wire::kFirst | wire::kLast | (wqe.has_imm ? wire::kImm : 0) | key.flags);
  const auto len = static_cast<uint16_t>(wqe.len);
  const uint32_t n_cells = wire::cells_of(Op::write, flags, len);
  if (!room_for_piece(n_cells)) return false;
  note_piece(wqe, n_cells, wqe.ranges[0], 0);
  const Head head = Head::make(Op::write, flags, len, wqe.ranges[0].addr);
  std::byte* body = tx.cells.body();
  std::memcpy(body, &head, sizeof head);
  wire::store_fields(body, wire::WriteFields{key.key});
  wire::store_secret(body, Op::write, flags, key.secret);
  const size_t at = wire::payload_offset(Op::write, flags);
  if (wqe.has_imm) store_imm(body, at - sizeof wqe.imm, wqe.imm);
  if (n_cells == 1 && wqe.iov_count == 1) [[likely]] {
    copy_short(body + at, wqe.iov[0].iov_base, wqe.len);
  } else {
    ring::BodyWriter cursor(tx.cells, at);
    each_iov_piece(wqe.iov.data(), wqe.iov_count, 0, wqe.len,
                   [&](const std::byte* piece, size_t n) { cursor.copy_in(piece, n); });
  }
  tx.cells.publish(n_cells);
  wqe.done = wqe.len;
  wqe.imm_sent = wqe.has_imm;
  published_request();
  return true;
}

bool Qp::put_write_piece(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  bool any = false;
  while (wqe.range_at < wqe.range_count && wqe.denial == protect::Denial::none) {
    const RemoteRange& range = wqe.ranges[wqe.range_at];
    const uint64_t left = range.len - wqe.range_done;
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(left, kPieceBytes));
    uint64_t pos = 0;
    if (!room_for_piece(1) || !tx.reserve_bytes(n, pos)) break;
    if (!lane_->prepare_request_bytes()) {
      wqe.error = Errc::no_memory;
      break;
    }
    gather(tx.bytes.at(pos), wqe.iov.data(), wqe.iov_count, wqe.done, n);
    tx.bytes.commit(pos, n);
    const bool last = wqe.range_at + 1 == wqe.range_count && n == left;
    const ShownKey key = shown(range.key);
    const bool tells = last && !wqe.has_imm && !wqe.commit;
    const uint8_t flags = static_cast<uint8_t>((wqe.in_ring ? 0 : wire::kFirst) |
                                               (tells ? wire::kLast : 0) | key.flags);
    note_piece(wqe, 1, {range.addr + wqe.range_done, n, range.key}, wqe.done);
    const Head head = Head::make(Op::write_bytes, flags, 0, range.addr);
    std::byte* body = tx.cells.body();
    std::memcpy(body, &head, sizeof head);
    wire::store_fields(body, wire::WriteBytesFields{key.key, range.len, wqe.range_done, pos, n});
    wire::store_secret(body, Op::write_bytes, flags, key.secret);
    tx.cells.publish(1);
    any = true;
    wqe.done += n;
    wqe.range_done += n;
    if (wqe.range_done == range.len) {
      ++wqe.range_at;
      wqe.range_done = 0;
    }
  }
  if (any) published_request();
  return wqe.range_at == wqe.range_count || wqe.denial != protect::Denial::none ||
         wqe.error != Errc::ok;
}

bool Qp::put_read(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  // results come for whole ranges: what we have read of this one by our own hand is read again
  wqe.done -= wqe.range_done;
  wqe.range_done = 0;
  while (wqe.range_at < wqe.range_count) {
    const RemoteRange& range = wqe.ranges[wqe.range_at];
    if (!room_for_piece(1)) return false;
    uint64_t offset = 0;
    for (size_t i = 0; i < wqe.range_at; ++i) offset += wqe.ranges[i].len;
    const uint64_t id = tx.cells.pos();
    note_piece(wqe, 1, range, offset);
    const ShownKey key = shown(range.key);
    const uint8_t flags =
        static_cast<uint8_t>((wqe.range_count == 1 ? wire::kFirst : 0) |
                             (wqe.range_at + 1 == wqe.range_count ? wire::kLast : 0) | key.flags);
    const Head head = Head::make(Op::read, flags, 0, range.addr);
    std::byte* body = tx.cells.body();
    std::memcpy(body, &head, sizeof head);
    wire::store_fields(body, wire::ReadFields{key.key, range.len, id});
    wire::store_secret(body, Op::read, flags, key.secret);
    tx.cells.publish(1);
    published_request();
    ++wqe.range_at;
  }
  return true;
}

}  // namespace aperture::qp
