// The requester: WQEs into the request ring, in order, and what becomes of them. IBTA vol. 1, 9.7.
#include <algorithm>
#include <cstring>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "ib/rc_qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::ib {

using protect::Rights;
using wire::RcHead;
using wire::RcOp;

namespace {

constexpr bool is_atomic(SendOp op) noexcept {
  return op == SendOp::cmp_swap || op == SendOp::fetch_add;
}
constexpr bool returns_data(SendOp op) noexcept {
  return op == SendOp::read || is_atomic(op);
}

// So many pieces are looked at before the first of them is copied by our own hand.
constexpr size_t kOneCopy = protect::PeerKeyView::kMaxLocalSegments;

RcHead head_of(RcOp op, uint8_t flags, uint64_t len, uint32_t imm) noexcept {
  return {static_cast<uint8_t>(op), flags, static_cast<uint16_t>(len), imm};
}

}  // namespace

void RcQp::run_send_queue() noexcept {
  if (lost_until_ns_ != 0) [[unlikely]]
    return;
  const Driving driving(*this);
  if (sq_head_ == sq_tail_) stopped_ = local_waits_ = false;  // all that had failed is flushed
  while (sq_next_ != sq_tail_ && may_go_on() && !stopped_) {
    Wqe& w = wqe(sq_next_);
    if (lane_ == nullptr && !is_local(w.op)) [[unlikely]] {
      if (had_lane_) return lane_failed(Errc::peer_lost);
      host_.want_lane();
      break;
    }
    if (!start(sq_next_)) break;
    ++sq_next_;
  }
  busy_ = awaits_answers();
  if (sq_head_ != sq_next_ && wqe(sq_head_).stage == Wqe::Stage::finished) retire();
}

// Whether the request at that position is a part of the WQE. One that has nothing in the ring holds
// no position, though it may begin where the next one does.
bool RcQp::holds(const Wqe& w, uint64_t pos) const noexcept {
  if (w.stage == Wqe::Stage::queued || !w.in_ring || pos < w.begin_pos) return false;
  return pos < (w.stage == Wqe::Stage::begun ? lane_->request_tx.cells.pos() : w.end_pos);
}

// A WQE has failed before its turn to complete: it does so when those before it have.
void RcQp::fail_wqe(Wqe& w, WcStatus status) noexcept {
  if (w.stage == Wqe::Stage::begun && w.in_ring) w.end_pos = lane_->request_tx.cells.pos();
  w.status = status;
  w.stage = Wqe::Stage::finished;
  stopped_ = true;
}

// What has to hold before the first byte of it moves. False: not yet.
bool RcQp::begin(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  if (w.fence && results_out_ != 0) return false;
  if (returns_data(w.op)) {
    if (attr_.max_rd_atomic == 0) {
      fail_wqe(w, WcStatus::loc_qp_op_err);
      return true;
    }
    if (results_out_ >= attr_.max_rd_atomic) return false;
    const WcStatus s = check_local(sges_of(at), w.sge_count, w.len, Rights::local_write);
    if (s != WcStatus::success) {
      fail_wqe(w, s);
      return true;
    }
    ++results_out_;
  }
  if (!returns_data(w.op) && (w.len > wire::kRcMaxInline || w.sge_count > kOneCopy)) {
    // a message that cannot be read as a whole is not begun
    const WcStatus s = check_local(sges_of(at), w.sge_count, w.len, Rights::local_read);
    if (s != WcStatus::success) {
      fail_wqe(w, s);
      return true;
    }
  }
  w.stage = Wqe::Stage::begun;
  // which regions XRC reaches depends on the receive queue that it names: for its owner to judge
  if (spec_.type == QpType::xrc_send) w.owner_only = true;
  if (lane_ != nullptr) w.begin_pos = lane_->request_tx.cells.pos();
  return true;
}

// Puts as much of it into the ring as there is room for. True: the next may be begun.
bool RcQp::start(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  if (w.stage == Wqe::Stage::queued && !begin(at)) return false;
  if (w.stage == Wqe::Stage::finished) return true;
  switch (w.op) {
    case SendOp::bind_mw: return put_bind(at);
    case SendOp::local_inv: return put_local_inv(at);
    case SendOp::cmp_swap:
    case SendOp::fetch_add: take_the_ring(w); return put_atomic(at);
    case SendOp::read:
      if (w.len != 0 && may_go_direct(w)) return put_direct(at);
      take_the_ring(w);
      return put_read(at);
    case SendOp::write:
    case SendOp::write_with_imm:
      if (w.copied) return put_notice(at);
      if (w.len != 0 && may_go_direct(w)) return put_direct(at);
      take_the_ring(w);
      return w.len <= wire::kRcMaxInline ? put_inline(at, RcOp::write)
                                         : put_pieces(at, RcOp::write_bytes);
    default:
      take_the_ring(w);
      return w.len <= wire::kRcMaxInline ? put_inline(at, RcOp::send)
                                         : put_pieces(at, RcOp::send_bytes);
  }
}

uint8_t RcQp::wire_flags(const Wqe& w) const noexcept {
  uint8_t flags = 0;
  if (w.op == SendOp::send_with_imm || w.op == SendOp::write_with_imm) flags |= wire::kRcImm;
  if (w.op == SendOp::send_with_inv) flags |= wire::kRcInv;
  if (w.solicited && w.op != SendOp::write) flags |= wire::kRcSolicited;
  if (spec_.type == QpType::xrc_send) flags |= wire::kRcXrc;
  return flags;
}

// It goes through the ring from its beginning, whatever of it was copied by our own hand.
void RcQp::take_the_ring(Wqe& w) noexcept {
  if (w.in_ring) return;
  w.in_ring = true;
  w.done = w.region = 0;
}

// All of it is in the ring: a reliable one waits to be executed, an unreliable one is done.
void RcQp::posted(Wqe& w) noexcept {
  if (w.stage == Wqe::Stage::finished) return;  // refused while it was being put there
  w.end_pos = lane_->request_tx.cells.pos();
  w.stage = is_reliable() ? Wqe::Stage::posted : Wqe::Stage::finished;
}

void RcQp::published_request() noexcept {
  if (lane_->fence_sends) [[unlikely]]
    full_fence();
  if (lane_->request_tx.must_ring()) [[unlikely]]
    lane_->ring_doorbell();
}

void RcQp::published_response() noexcept {
  if (lane_->fence_sends) [[unlikely]]
    full_fence();
  if (lane_->response_tx.must_ring()) [[unlikely]]
    lane_->ring_doorbell();
}

void RcQp::note_piece(uint32_t at, uint32_t cells, uint64_t offset, uint64_t len) noexcept {
  if (!is_reliable()) return;  // its WQE is over, and its slot may be another's
  // room_for_piece() has seen to its place
  pieces_[piece_tail_ % pieces_.size()] = {lane_->request_tx.cells.pos(), cells, at, offset, len};
  ++piece_tail_;
}

// Room in the ring, and among the pieces that are remembered: cells may be free again whose pieces
// have not been retired.
bool RcQp::room_for_piece(uint32_t n_cells) noexcept {
  if (!has_piece_slot()) learn_executed();
  return has_piece_slot() && lane_->request_tx.room(n_cells);
}

// A send or a write whose payload lies in the cells.
bool RcQp::put_inline(uint32_t at, RcOp op) noexcept {
  Wqe& w = wqe(at);
  ring::ChannelTx& tx = lane_->request_tx;
  const uint8_t flags = static_cast<uint8_t>(wire_flags(w) | wire::kRcFirst | wire::kRcLast);
  const auto len = static_cast<uint16_t>(w.len);
  const uint32_t n_cells = wire::rc_cells_of(op, flags, len);
  if (op == RcOp::write ? !room_for_piece(n_cells) : !tx.room(n_cells)) return false;
  const size_t offset = wire::rc_payload_offset(op, flags);
  std::byte* body = tx.cells.body();
  if (n_cells == 1) [[likely]] {
    if (len != 0 && gather(at, 0, body + offset, len) != WcStatus::success) {
      fail_wqe(w, WcStatus::loc_prot_err);
      return true;
    }
  } else {
    std::byte flat[wire::kRcMaxInline];
    if (gather(at, 0, flat, len) != WcStatus::success) {
      fail_wqe(w, WcStatus::loc_prot_err);
      return true;
    }
    ring::BodyWriter(tx.cells, offset).copy_in(flat, len);
  }
  const RcHead head = head_of(op, flags, len, w.imm);
  std::memcpy(body, &head, sizeof head);
  if (op == RcOp::write) {
    const wire::RcWrite f{static_cast<uint32_t>(w.remote_addr),
                          static_cast<uint32_t>(w.remote_addr >> 32), w.rkey};
    std::memcpy(body + wire::kRcHeadBytes, &f, sizeof f);
    if (len != 0) note_piece(at, n_cells, 0, len);
  }
  if ((flags & wire::kRcXrc) != 0) wire::store_srq_number(body, op, w.srq_number);
  tx.cells.publish(n_cells);
  published_request();
  posted(w);
  return true;
}

// Room for the next piece of an operation: one cell, and n <= left bytes at `pos` of the byte ring.
// nullptr: not now.
std::byte* RcQp::reserve_piece(uint64_t left, uint32_t& n, uint64_t& pos) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  n = static_cast<uint32_t>(std::min<uint64_t>(left, qp::kPieceBytes));
  if (!room_for_piece(1) || !tx.reserve_bytes(n, pos) || !lane_->prepare_request_bytes()) {
    return nullptr;
  }
  return tx.bytes.at(pos);
}

// A send or a write that is longer than cells are for: pieces in the byte ring, a cell for each.
bool RcQp::put_pieces(uint32_t at, RcOp op) noexcept {
  Wqe& w = wqe(at);
  ring::ChannelTx& tx = lane_->request_tx;
  const auto total = static_cast<uint32_t>(w.len);
  while (w.done < w.len) {
    uint32_t n = 0;
    uint64_t pos = 0;
    std::byte* to = reserve_piece(w.len - w.done, n, pos);
    if (to == nullptr) return false;
    if (gather(at, w.done, to, n) != WcStatus::success) {
      fail_wqe(w, WcStatus::loc_prot_err);  // the other side is told by the end of the lane
      return true;
    }
    tx.bytes.commit(pos, n);
    const auto offset = static_cast<uint32_t>(w.done);
    const auto flags = static_cast<uint8_t>(wire_flags(w) | (offset == 0 ? wire::kRcFirst : 0) |
                                            (w.done + n == w.len ? wire::kRcLast : 0));
    const RcHead head = head_of(op, flags, 0, w.imm);
    std::byte* body = tx.cells.body();
    if (op == RcOp::write_bytes) {
      wire::store_rc(body, head, wire::RcWriteBytes{w.remote_addr, pos, w.rkey, n, offset, total});
      note_piece(at, 1, w.done, n);
    } else {
      wire::store_rc(body, head, wire::RcSendBytes{pos, n, offset, total, 0});
    }
    wire::store_srq_number(body, op, w.srq_number);
    tx.cells.publish(1);
    published_request();
    w.done += n;
    if (w.stage == Wqe::Stage::finished) return true;  // refused meanwhile
  }
  posted(w);
  return true;
}

bool RcQp::put_read(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  ring::ChannelTx& tx = lane_->request_tx;
  if (!room_for_piece(1)) return false;
  w.begin_pos = tx.cells.pos();
  note_piece(at, 1, 0, w.len);
  wire::store_rc(tx.cells.body(), head_of(RcOp::read, wire_flags(w) & wire::kRcXrc, 0, 0),
                 wire::RcRead{w.remote_addr, w.rkey, static_cast<uint32_t>(w.len)});
  wire::store_srq_number(tx.cells.body(), RcOp::read, w.srq_number);
  tx.cells.publish(1);
  published_request();
  posted(w);
  return true;
}

bool RcQp::put_atomic(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  ring::ChannelTx& tx = lane_->request_tx;
  if (!room_for_piece(1)) return false;
  w.begin_pos = tx.cells.pos();
  note_piece(at, 1, 0, 0);
  wire::store_rc(tx.cells.body(), head_of(RcOp::atomic, wire_flags(w) & wire::kRcXrc, 0, 0),
                 wire::RcAtomic{w.remote_addr, w.rkey, w.op == SendOp::cmp_swap ? 1u : 0u,
                                w.compare_add, w.swap});
  wire::store_srq_number(tx.cells.body(), RcOp::atomic, w.srq_number);
  tx.cells.publish(1);
  published_request();
  posted(w);
  return true;
}

// The immediate data of a write whose bytes are in place already.
bool RcQp::put_notice(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  ring::ChannelTx& tx = lane_->request_tx;
  if (!tx.room(1)) return false;
  w.in_ring = true;
  std::byte* body = tx.cells.body();
  wire::store_rc(body, head_of(RcOp::notice, wire_flags(w), 0, w.imm), wire::RcNotice{w.len});
  wire::store_srq_number(body, RcOp::notice, w.srq_number);
  tx.cells.publish(1);
  published_request();
  posted(w);
  return true;
}

// Refusals and results were stored before `consumed`: all of them are taken first, or a refused
// WQE would end as a success. They are a ring full at most.
void RcQp::learn_executed() noexcept {
  const uint64_t consumed = lane_->request_tx.refresh();
  const ring::CellReader& responses = lane_->response_rx.cells;
  const uint64_t at_most = responses.pos() + lane_->response_tx.cells.capacity();
  while (!broken_ && responses.ready() && responses.pos() <= at_most) poll_responses();
  if (broken_ || consumed <= done_through_) return;
  done_through_ = consumed;
  while (piece_head_ != piece_tail_ && pieces_[piece_head_ % pieces_.size()].pos < consumed) {
    ++piece_head_;
  }
}

// Completes, in order, what is over.
void RcQp::retire() noexcept {
  while (sq_head_ != sq_next_) {
    Wqe& w = wqe(sq_head_);
    if (w.stage == Wqe::Stage::posted) {
      if (w.end_pos > done_through_) break;
      if (returns_data(w.op) && w.done != w.len) {
        w.status = WcStatus::bad_resp_err;  // acknowledged without its data
      }
    } else if (w.stage != Wqe::Stage::finished) {
      break;
    }
    if (returns_data(w.op) && w.stage != Wqe::Stage::queued && results_out_ != 0) --results_out_;
    complete_head();
    if (attr_.state == QpState::err) return;
  }
  // a WQE that has failed while it was being put into the ring
  if (sq_head_ == sq_next_ && sq_next_ != sq_tail_ && wqe(sq_next_).stage == Wqe::Stage::finished &&
      stopped_) {
    complete_head();
    return;
  }
  check_drained();
}

}  // namespace aperture::ib
