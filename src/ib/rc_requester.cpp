// WQEs into the request ring: see rc_requester.hpp.
#include "ib/rc_requester.hpp"

#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "ib/rc_explain.hpp"

namespace aperture::ib {

using protect::Rights;
using wire::RcHead;
using wire::RcOp;

namespace {

// So many pieces are looked at before the first of them is copied directly.
constexpr size_t kOneCopy = protect::PeerKeyView::kMaxLocalSegments;
constexpr uint8_t kWhole = wire::kRcFirst | wire::kRcLast;
static_assert(ring::kBodyBytes <= kShortBytes);

RcHead head_of(RcOp op, uint8_t flags, uint16_t len, uint32_t imm) noexcept {
  return {static_cast<uint8_t>(op), flags, len, imm};
}

// The cell of a send or a write whose payload lies in it, but for the payload. `from` is its WR or
// its WQE.
template <typename From>
[[gnu::always_inline]] inline void lay_out(std::byte* body, RcOp op, uint8_t flags, uint16_t len,
                                           const From& from) noexcept {
  const RcHead head = head_of(op, flags, len, from.imm);
  std::memcpy(body, &head, sizeof head);
  if (op == RcOp::write) {
    const wire::RcWrite f{static_cast<uint32_t>(from.remote_addr),
                          static_cast<uint32_t>(from.remote_addr >> 32), from.rkey};
    std::memcpy(body + wire::kRcHeadBytes, &f, sizeof f);
  }
  if ((flags & wire::kRcXrc) != 0) wire::store_srq_number(body, op, from.srq_number);
}

}  // namespace

// ---- the fast path ------------------------------------------------------------------------------

// The state alone: nothing is in the way of a request that goes into the ring now.
inline bool RcRequester::is_clear() const noexcept {
  return q_.spec_.type == QpType::rc && q_.may_send() && q_.sq_.is_posted() && !q_.stopped_ &&
         q_.is_up() && q_.lost_until_ns_ == 0 && !q_.sq_.is_full();
}

bool RcRequester::post_fast(const SendWr& wr) noexcept {
  if (is_local(wr.op)) return windows_.post_fast(wr);
  if ((wr.flags & (kFence | kSolicited)) != 0 || wr.inline_parts != nullptr || wr.sge_count != 1 ||
      q_.spec_.max_send_sge == 0 || !is_clear()) {
    return false;
  }
  const bool send = wr.op == SendOp::send || wr.op == SendOp::send_with_imm;
  if (!send && !q_.target_.surely_polls()) {
    if ((wr.op != SendOp::write && wr.op != SendOp::read) || !direct_.post_fast(wr)) return false;
    q_.serve_peer();
    return true;
  }
  if ((wr.flags & kInline) == 0 || !(send || is_write(wr.op))) return false;
  SendQueue& sq = q_.sq_;
  ring::ChannelTx& tx = q_.lane_->request_tx;
  const uint64_t len = wr.sge[0].length;
  const size_t offset = send ? wire::kRcSendOffset : wire::kRcWriteOffset;
  if (len == 0 || len > q_.spec_.max_inline_bytes || offset + len > ring::kBodyBytes) return false;
  if (!tx.room(1) || !(send || q_.inflight_.has_place())) return false;
  const void* from = reinterpret_cast<const void*>(wr.sge[0].addr);
  if (!send) {
    // kept: should the target stop before it, it is done directly
    copy_short(sq.inline_of(sq.tail), from, len);
    from = sq.inline_of(sq.tail);
  }
  std::byte* body = tx.cells.body();
  copy_short(body + offset, from, len);
  const bool imm = has_imm(wr.op);
  lay_out(body, send ? RcOp::send : RcOp::write,
          static_cast<uint8_t>(imm ? kWhole | wire::kRcImm : kWhole), static_cast<uint16_t>(len),
          wr);
  // one with immediate data is for its owner alone to take from the ring
  if (!send && !imm) note_piece(sq.tail, 1, 0, len);
  // on its way first: what is noted is looked at under the engine lock alone, and so not before
  const uint64_t pos = tx.cells.pos();
  q_.lane_.publish_request(1);
  Wqe& w = sq.fill(wr, 0);
  w.stage = Wqe::Stage::posted;
  w.is_inline = w.in_ring = true;
  w.len = len;
  w.begin_pos = pos;
  w.end_pos = pos + 1;
  sq.next = ++sq.tail;
  q_.busy_ = q_.awaits_answers();
  return true;
}

// ---- the slow path ------------------------------------------------------------------------------

Status RcRequester::run() noexcept {
  SendQueue& sq = q_.sq_;
  if (sq.is_empty()) {  // all that had failed is flushed
    q_.stopped_ = false;
    windows_.forget_waiting();
  }
  for (; !sq.is_posted() && q_.may_go_on() && !q_.stopped_; ++sq.next) {
    if (!q_.lane_ && !is_local(sq.wqe(sq.next).op)) [[unlikely]] {
      if (q_.had_lane_) return Errc::peer_lost;
      q_.host_.want_lane();
      break;
    }
    if (!start(sq.next)) break;
  }
  assert(sq.next - sq.head <= sq.tail - sq.head);
  q_.busy_ = q_.awaits_answers();
  if (sq.head != sq.next && sq.wqe(sq.head).stage == Wqe::Stage::finished) answers_.retire();
  return {};
}

// What has to hold before the first byte of it moves. False: not yet.
bool RcRequester::begin(Wqe& w, uint32_t at) noexcept {
  if (w.fence && q_.results_out_ != 0) return false;
  const bool returns = returns_data(w.op);
  const bool counts = takes_place(w.op);
  if (counts && q_.attr_.max_rd_atomic == 0) {
    explain_no_place(q_.spec_, w);
    q_.fail_wqe(w, WcStatus::loc_qp_op_err);
    return true;
  }
  if (counts && q_.results_out_ >= q_.attr_.max_rd_atomic) return false;
  if (returns || w.len > wire::kRcMaxInline || w.sge_count > kOneCopy) {
    const WcStatus s = q_.memory_.check_all(q_.sq_.sges_of(at), w.sge_count, w.len,
                                            returns ? Rights::local_write : Rights::local_read);
    if (s != WcStatus::success) {
      q_.fail_wqe(w, s);
      return true;
    }
  }
  w.result_out = is_fenced(w.op);
  if (w.result_out) ++q_.results_out_;
  w.stage = Wqe::Stage::begun;
  // which regions XRC reaches depends on the receive queue that it names: for its owner to validate
  if (q_.spec_.type == QpType::xrc_send) w.owner_only = true;
  if (q_.lane_) w.begin_pos = q_.lane_->request_tx.cells.pos();
  return true;
}

bool RcRequester::start(uint32_t at) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  if (w.stage == Wqe::Stage::queued && !begin(w, at)) return false;
  if (w.stage == Wqe::Stage::finished) return true;
  if (is_local(w.op)) return windows_.carry_out(w);
  if (w.copied) return put_notice(at);
  if ((w.op == SendOp::read || is_write(w.op)) && w.len != 0 && direct_.may_go(w)) {
    return go_direct(at);
  }
  if (!w.in_ring) {  // from its beginning, whatever of it was copied directly
    w.in_ring = true;
    w.done = w.asked = w.region = 0;
  }
  if (w.op == SendOp::read) return put_read(at);
  if (is_atomic(w.op)) return put_atomic(at);
  if (w.op == SendOp::atomic_write) return put_atomic_write(at);
  if (w.op == SendOp::flush) return put_flush(at);
  if (w.len <= wire::kRcMaxInline) return put_inline(at, is_write(w.op) ? RcOp::write : RcOp::send);
  return put_pieces(at, is_write(w.op) ? RcOp::write_bytes : RcOp::send_bytes);
}

bool RcRequester::go_direct(uint32_t at) noexcept {
  switch (direct_.put(at)) {
    case RcDirect::Went::over: return true;
    case RcDirect::Went::later: return false;
    case RcDirect::Went::notice: return put_notice(at);
    case RcDirect::Went::ring: break;
  }
  assert(q_.sq_.wqe(at).owner_only);
  return start(at);
}

uint8_t RcRequester::flags_of(const Wqe& w) const noexcept {
  uint8_t flags = has_imm(w.op) ? wire::kRcImm : 0;
  if (w.op == SendOp::send_with_inv) flags |= wire::kRcInv;
  if (w.solicited && w.op != SendOp::write) flags |= wire::kRcSolicited;
  if (q_.spec_.type == QpType::xrc_send) flags |= wire::kRcXrc;
  return flags;
}

// All of it is in the ring: a reliable one waits to be executed, an unreliable one is done.
void RcRequester::posted(Wqe& w) noexcept {
  if (w.stage == Wqe::Stage::finished) return;  // refused while it was being put there
  w.end_pos = q_.lane_->request_tx.cells.pos();
  w.stage = q_.is_reliable() ? Wqe::Stage::posted : Wqe::Stage::finished;
}

inline void RcRequester::note_piece(uint32_t at, uint32_t cells, uint64_t offset,
                                    uint64_t len) noexcept {
  if (!q_.is_reliable()) return;  // its WQE is over, and its slot may be another's
  q_.inflight_.note({q_.lane_->request_tx.cells.pos(), cells, at, offset, len});
}

// Room in the ring, and among the pieces that are remembered.
bool RcRequester::room_for_piece(uint32_t n_cells) noexcept {
  if (!q_.inflight_.has_place()) answers_.learn_executed();
  return q_.inflight_.has_place() && q_.lane_->request_tx.room(n_cells);
}

// A send or a write whose payload lies in the cells.
bool RcRequester::put_inline(uint32_t at, RcOp op) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  ring::ChannelTx& tx = q_.lane_->request_tx;
  const auto flags = static_cast<uint8_t>(flags_of(w) | kWhole);
  const auto len = static_cast<uint16_t>(w.len);
  const uint32_t n_cells = wire::rc_cells_of(op, flags, len);
  if (op == RcOp::write ? !room_for_piece(n_cells) : !tx.room(n_cells)) return false;
  const size_t offset = wire::rc_payload_offset(op, flags);
  std::byte* body = tx.cells.body();
  std::byte flat[wire::kRcMaxInline];
  std::byte* to = n_cells == 1 ? body + offset : flat;
  if (len != 0 && q_.sq_.gather(q_.memory_, at, 0, to, len) != WcStatus::success) {
    q_.fail_wqe(w, WcStatus::loc_prot_err);
    return true;
  }
  if (n_cells != 1) ring::BodyWriter(tx.cells, offset).copy_in(flat, len);
  lay_out(body, op, flags, len, w);
  if (op == RcOp::write && len != 0) note_piece(at, n_cells, 0, len);
  q_.lane_.publish_request(n_cells);
  posted(w);
  return true;
}

// A send or a write that is longer than cells are for: pieces in the byte ring, a cell for each.
bool RcRequester::put_pieces(uint32_t at, RcOp op) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  const auto total = static_cast<uint32_t>(w.len);
  while (w.done < w.len) {
    const auto n = static_cast<uint32_t>(std::min(w.len - w.done, q_.lane_->piece_bytes));
    if (!room_for_piece(1)) return false;
    const auto offset = static_cast<uint32_t>(w.done);
    const auto flags = static_cast<uint8_t>(flags_of(w) | (offset == 0 ? wire::kRcFirst : 0) |
                                            (w.done + n == w.len ? wire::kRcLast : 0));
    const auto record = [&](std::byte* body, uint64_t pos) {
      if (op == RcOp::write_bytes) {
        lay_out_one_cell(body, w, op, flags,
                         wire::RcWriteBytes{w.remote_addr, pos, w.rkey, n, offset, total});
      } else {
        lay_out_one_cell(body, w, op, flags, wire::RcSendBytes{pos, n, offset, total, 0});
      }
    };
    const transport::Put put =
        q_.lane_.payload().put_request_piece(n, record, [&](transport::PieceOut out) {
          return q_.sq_.put_piece(q_.memory_, at, w.done, n, out) == WcStatus::success;
        });
    if (put == transport::Put::no_source) {
      q_.fail_wqe(w, WcStatus::loc_prot_err);  // the other side is told by the end of the lane
      return true;
    }
    if (put != transport::Put::done) return false;
    w.done += n;
    if (op == RcOp::write_bytes) note_piece(at, 1, offset, n);
    q_.lane_.publish_request(1);
    if (w.stage == Wqe::Stage::finished) return true;  // refused meanwhile
  }
  posted(w);
  return true;
}

// A request of one cell, for which there is room.
template <typename Fields>
void RcRequester::put_one_cell(Wqe& w, RcOp op, uint8_t flags, const Fields& f) noexcept {
  lay_out_one_cell(q_.lane_->request_tx.cells.body(), w, op, flags, f);
  q_.lane_.publish_request(1);
}
template <typename Fields>
void RcRequester::lay_out_one_cell(std::byte* body, const Wqe& w, RcOp op, uint8_t flags,
                                   const Fields& f) noexcept {
  wire::store_rc(body, head_of(op, flags, 0, w.imm), f);
  wire::store_srq_number(body, op, w.srq_number);
}

// False: no room now, or enough is under way.
bool RcRequester::put_read(uint32_t at) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  const auto total = static_cast<uint32_t>(w.len);
  w.asked = std::max(w.asked, w.done);  // after a part that was copied directly
  do {
    const auto n = static_cast<uint32_t>(std::min(w.len - w.asked, transport::kClaimChunk));
    if (n != 0 && w.asked - w.done >= transport::kReadAheadBytes) return false;
    if (!room_for_piece(1)) return false;
    const auto offset = static_cast<uint32_t>(w.asked);
    note_piece(at, 1, offset, n);
    w.asked += n;
    put_one_cell(w, RcOp::read, flags_of(w) & wire::kRcXrc,
                 wire::RcRead{w.remote_addr, w.rkey, n, offset, total});
    if (w.stage == Wqe::Stage::finished) return true;  // refused meanwhile
  } while (w.asked < w.len);
  posted(w);
  return true;
}

bool RcRequester::put_atomic(uint32_t at) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  if (!room_for_piece(1)) return false;
  w.begin_pos = q_.lane_->request_tx.cells.pos();
  note_piece(at, 1, 0, 0);
  put_one_cell(w, RcOp::atomic, flags_of(w) & wire::kRcXrc,
               wire::RcAtomic{w.remote_addr, w.rkey, w.op == SendOp::cmp_swap ? 1u : 0u,
                              w.compare_add, w.swap});
  posted(w);
  return true;
}

bool RcRequester::put_atomic_write(uint32_t at) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  if (!room_for_piece(1)) return false;
  std::byte bytes[sizeof(uint64_t)];
  if (q_.sq_.gather(q_.memory_, at, 0, bytes, sizeof bytes) != WcStatus::success) {
    q_.fail_wqe(w, WcStatus::loc_prot_err);
    return true;
  }
  uint64_t value;
  std::memcpy(&value, bytes, sizeof value);
  w.begin_pos = q_.lane_->request_tx.cells.pos();
  note_piece(at, 1, 0, 0);
  put_one_cell(w, RcOp::atomic_write, flags_of(w) & wire::kRcXrc,
               wire::RcAtomicWrite{w.remote_addr, value, w.rkey, 0});
  posted(w);
  return true;
}

bool RcRequester::put_flush(uint32_t at) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  if (!room_for_piece(1)) return false;
  w.begin_pos = q_.lane_->request_tx.cells.pos();
  note_piece(at, 1, 0, 0);
  put_one_cell(w, RcOp::flush, flags_of(w) & wire::kRcXrc,
               wire::RcFlush{w.remote_addr, w.compare_add, w.rkey, static_cast<uint32_t>(w.swap)});
  posted(w);
  return true;
}

// The immediate data of a write whose bytes are in place already.
bool RcRequester::put_notice(uint32_t at) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  assert(w.copied && w.op == SendOp::write_with_imm);
  if (!q_.lane_->request_tx.room(1)) return false;
  w.in_ring = true;
  put_one_cell(w, RcOp::notice, flags_of(w), wire::RcNotice{w.len});
  posted(w);
  return true;
}

}  // namespace aperture::ib
