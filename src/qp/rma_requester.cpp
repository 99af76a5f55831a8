// Remote writes and reads through the ring, and notices: see rma_requester.hpp.
#include "qp/rma_requester.hpp"

#include <cstring>

#include "base/copy.hpp"
#include "transport/payload.hpp"

namespace aperture::qp {

using protect::Denial;
using wire::Head;
using wire::Op;

namespace {

// All of it in one request. One that is to be persistent tells the owner in the end only.
bool is_small(const Wqe& wqe) noexcept {
  return wqe.range_count == 1 && wqe.len <= wire::kMaxInline && !wqe.commit;
}

bool has_failed(const Wqe& wqe) noexcept {
  return wqe.denial != Denial::none || wqe.error != Errc::ok;
}

}  // namespace

Status RmaRequester::post(WqeKind kind, const RmaWr& wr) noexcept {
  if (const Status s = core_.may_post(wr.ranges, wr.range_count, wr.completion); !s) return s;
  const bool begin_now = core_.may_begin(wr.fence);
  if (begin_now) direct_.foresee(wr.ranges[0].key);
  Wqe* wqe = core_.take_wqe(kind, wr, begin_now);
  if (wqe == nullptr) return Errc::again;
  wqe->has_imm = wr.has_imm;
  wqe->commit = wqe->through_ring = wr.commit;
  wqe->imm = wr.imm;
  core_.keep_ranges(*wqe, wr.ranges, wr.range_count);
  core_.keep_local(*wqe, wr);
  if (!begin_now || !put(*wqe)) core_.enqueue(*wqe);
  core_.update_pending();
  return {};
}

bool RmaRequester::put(Wqe& wqe) noexcept {
  assert(core_.lane && !is_atomic(wqe.kind));
  if (!has_failed(wqe) && (wqe.direct_done || direct_.may_go(wqe))) {
    if (!wqe.direct_done && !direct_.put(wqe)) return false;
    wqe.direct_done = !has_failed(wqe) && core_.tells(wqe) && !put_notice(wqe);
    if (wqe.direct_done) return false;
    pending_.complete(wqe);  // and pieces of it that went through the ring were executed before
    return true;
  }
  if (!has_failed(wqe) && !put_through_ring(wqe)) return false;
  if (has_failed(wqe)) wqe.end_pos = core_.lane->request_tx.cells.pos();
  pending_.add(wqe);
  return true;
}

// False: no room now.
bool RmaRequester::put_through_ring(Wqe& wqe) noexcept {
  if (wqe.range_count > 1 && !put_checks(wqe)) return false;
  const bool all = wqe.kind == WqeKind::read ? put_reads(wqe)
                   : is_small(wqe)           ? put_write_inline(wqe)
                                             : put_write_pieces(wqe);
  if (!all) return false;
  if (has_failed(wqe)) return true;
  if (wqe.commit && !put_commits(wqe)) return false;
  // it is complete once its bytes are in place: the notice may wait for the owner's next poll
  wqe.end_pos = core_.lane->request_tx.cells.pos();
  return !wqe.has_imm || wqe.imm_sent || put_notice(wqe);
}

// A request of one cell. There is room for it, and its piece is noted.
template <typename Fields>
void RmaRequester::put_request(Wqe& wqe, const Head& head, const Fields& fields,
                               uint64_t secret) noexcept {
  assert(wqe.in_ring && core_.pieces.newest().wqe == &wqe);
  wire::store(core_.lane->request_tx.cells.body(), head, fields, secret);
  core_.lane.publish_request(1);
}

bool RmaRequester::put_checks(Wqe& wqe) noexcept {
  while (wqe.checked < wqe.range_count) {
    if (!responses_.room_for_piece(1)) return false;
    const RemoteRange& range = wqe.ranges[wqe.checked];
    const ShownKey key = core_.shown(range.key);
    const auto flags = static_cast<uint8_t>((wqe.checked == 0 ? wire::kFirst : 0) | key.flags);
    Piece& noted = core_.note_piece(wqe, 1, range, 0);
    noted.range_at = wqe.checked;
    noted.check_only = true;
    put_request(wqe, Head::make(Op::check, flags, 0, range.addr),
                wire::CheckFields{key.key, range.len, wqe.kind == WqeKind::write}, key.secret);
    ++wqe.checked;
  }
  return true;
}

bool RmaRequester::put_commits(Wqe& wqe) noexcept {
  while (wqe.committed < wqe.range_count) {
    if (!responses_.room_for_piece(1)) return false;
    const RemoteRange& range = wqe.ranges[wqe.committed];
    const bool last = wqe.committed + 1 == wqe.range_count && !wqe.has_imm;
    const ShownKey key = core_.shown(range.key);
    const auto flags = static_cast<uint8_t>((last ? wire::kLast : 0) | key.flags);
    Piece& noted = core_.note_piece(wqe, 1, range, 0);
    noted.range_at = wqe.committed;
    noted.check_only = true;
    put_request(wqe, Head::make(Op::commit, flags, 0, range.addr),
                wire::CheckFields{key.key, range.len, 1}, key.secret);
    ++wqe.committed;
  }
  return true;
}

bool RmaRequester::put_write_inline(Wqe& wqe) noexcept {
  if (wqe.in_ring) return true;
  ring::ChannelTx& tx = core_.lane->request_tx;
  const ShownKey key = core_.shown(wqe.ranges[0].key);
  const auto flags =
      static_cast<uint8_t>(wire::kFirst | wire::kLast | (wqe.has_imm ? wire::kImm : 0) | key.flags);
  const auto len = static_cast<uint16_t>(wqe.len);
  const uint32_t n_cells = wire::cells_of(Op::write, flags, len);
  if (!responses_.room_for_piece(n_cells)) return false;
  core_.note_piece(wqe, n_cells, wqe.ranges[0], 0);
  std::byte* body = tx.cells.body();
  wire::store(body, Head::make(Op::write, flags, len, wqe.ranges[0].addr),
              wire::WriteFields{key.key}, key.secret);
  const size_t at = wire::payload_offset(Op::write, flags);
  if (wqe.has_imm) std::memcpy(body + at - sizeof wqe.imm, &wqe.imm, sizeof wqe.imm);
  if (n_cells == 1 && wqe.iov_count == 1) [[likely]] {
    copy_short(body + at, wqe.iov[0].iov_base, wqe.len);
  } else {
    ring::BodyWriter cursor(tx.cells, at);
    each_iov_piece(wqe.iov.data(), wqe.iov_count, 0, wqe.len,
                   [&](const std::byte* piece, size_t n) { cursor.copy_in(piece, n); });
  }
  core_.lane.publish_request(n_cells);
  wqe.done = wqe.len;
  wqe.imm_sent = wqe.has_imm;
  return true;
}

bool RmaRequester::put_write_pieces(Wqe& wqe) noexcept {
  const transport::PieceRun run(*core_.lane.get());
  while (wqe.range_at < wqe.range_count && !has_failed(wqe)) {
    const RemoteRange& range = wqe.ranges[wqe.range_at];
    assert(wqe.range_done <= range.len);
    const uint64_t left = range.len - wqe.range_done;
    const auto n = static_cast<uint32_t>(std::min(left, core_.lane->piece_bytes));
    if (wqe.completion == kTold && !is_filled(wqe, wqe.done + n)) [[unlikely]]
      return has_failed(wqe);
    if (!responses_.room_for_piece(1)) return has_failed(wqe);
    const bool last = wqe.range_at + 1 == wqe.range_count && n == left;
    const ShownKey key = core_.shown(range.key);
    const bool tells = last && !wqe.has_imm && !wqe.commit;
    const auto flags = static_cast<uint8_t>((wqe.in_ring ? 0 : wire::kFirst) |
                                            (tells ? wire::kLast : 0) | key.flags);
    const auto record = [&](std::byte* body, uint64_t pos) {
      wire::store(body, Head::make(Op::write_bytes, flags, 0, range.addr),
                  wire::WriteBytesFields{key.key, range.len, wqe.range_done, pos, n}, key.secret);
    };
    const transport::Put put =
        core_.lane.payload().put_request_piece(n, record, [&](transport::PieceOut out) {
          return put_payload(out, wqe.iov.data(), wqe.iov_count, wqe.done, n);
        });
    if (put == transport::Put::no_room) return has_failed(wqe);
    if (put != transport::Put::done) {
      wqe.error = put == transport::Put::no_source ? Errc::bad_buffer : Errc::no_memory;
      return true;
    }
    core_.note_piece(wqe, 1, {range.addr + wqe.range_done, n, range.key}, wqe.done);
    core_.lane.publish_request(1);
    wqe.done += n;
    wqe.range_done += n;
    if (wqe.range_done == range.len) {
      ++wqe.range_at;
      wqe.range_done = 0;
    }
  }
  return true;
}

// False: no room now, or enough is under way.
bool RmaRequester::put_reads(Wqe& wqe) noexcept {
  uint64_t asked = asked_of(wqe);  // done is what has come
  while (wqe.range_at < wqe.range_count) {
    const RemoteRange& range = wqe.ranges[wqe.range_at];
    assert(wqe.range_done <= range.len && asked >= wqe.done);
    const uint64_t left = range.len - wqe.range_done;
    const uint64_t n = std::min(left, transport::kClaimChunk);
    if (n != 0 && asked - wqe.done >= transport::kReadAheadBytes) return false;
    if (!responses_.room_for_piece(1)) return has_failed(wqe);
    const uint64_t id = core_.lane->request_tx.cells.pos();
    const bool last = wqe.range_at + 1 == wqe.range_count && n == left;
    const ShownKey key = core_.shown(range.key);
    const auto flags = static_cast<uint8_t>((wqe.in_ring ? 0 : wire::kFirst) |
                                            (last ? wire::kLast : 0) | key.flags);
    core_.note_piece(wqe, 1, {range.addr + wqe.range_done, n, range.key}, asked);
    put_request(wqe, Head::make(Op::read, flags, 0, range.addr),
                wire::ReadFields{key.key, range.len, wqe.range_done, n, id}, key.secret);
    asked += n;
    wqe.range_done += n;
    if (wqe.range_done == range.len) {
      ++wqe.range_at;
      wqe.range_done = 0;
    }
  }
  return true;
}

// False: no room now.
bool RmaRequester::put_notice(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = core_.lane->request_tx;
  // behind pieces of its own in the ring it belongs to them, and is dropped if they were refused
  const auto flags = static_cast<uint8_t>(wire::kLast | (wqe.has_imm ? wire::kImm : 0) |
                                          (wqe.in_ring ? 0 : wire::kFirst));
  const uint16_t kind = wqe.kind == WqeKind::read ? wire::kNoticeRead : wire::kNoticeWrite;
  const uint32_t n_cells = wire::cells_of(Op::notice, flags, kind);
  if (!tx.room(n_cells)) return false;
  std::byte* body = tx.cells.body();
  wire::store(body, Head::make(Op::notice, flags, kind, wqe.len));
  if (wqe.has_imm) std::memcpy(body + wire::kHeadBytes, &wqe.imm, sizeof wqe.imm);
  core_.lane.publish_request(n_cells);
  wqe.imm_sent = true;
  return true;
}

}  // namespace aperture::qp
