// RDMA by our own hand: process_vm_writev and process_vm_readv under the pin protocol of protect/,
// when nothing of ours stands before it in the ring and the target is not polling; and claiming the
// head of the ring from a target that has stopped. architecture.md, "The ordering rule", "Claims".
#include <algorithm>
#include <array>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "ib/rc_qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::ib {

using protect::Denial;
using protect::DirectResult;
using protect::Rights;

namespace {

// A target that has let us wait so often in a row is not waited for any more: it looks at its
// memory and not at its queues. It is tried again after so many accesses: each try costs a stall,
// and the target's control thread lingers beside it for as long as some forty copies take.
constexpr uint32_t kSurelyAway = 4;
constexpr uint32_t kTryAgainAfter = 1024;

constexpr Rights need_of(SendOp op) noexcept {
  return op == SendOp::read ? Rights::remote_read : Rights::remote_write;
}
constexpr Rights local_need_of(SendOp op) noexcept {
  return op == SendOp::read ? Rights::local_write : Rights::local_read;
}

}  // namespace

protect::AccessorSlot* RcQp::slot() noexcept {
  if (slot_ == nullptr && lane_->direct.slots != nullptr) {
    slot_ = static_cast<protect::SlotArray*>(lane_->direct.slots)->claim();
  }
  return slot_;
}

// Its queue pair may take less than its keys do.
bool RcQp::peer_lets(SendOp op) noexcept {
  const uint32_t need = op == SendOp::read ? wire::kRcDirectReads : wire::kRcDirectWrites;
  return (lane_->request_tx.notices_wanted() & need) != 0;
}

// It does not look at its queues, or not often enough; every so often that is tried again.
bool RcQp::is_target_away() noexcept {
  const ring::ChannelTx& tx = lane_->request_tx;
  if (away_times_ < kSurelyAway) {
    if (target_away_ && tx.consumer_polls() != away_polls_) {
      target_away_ = false;
      stall_since_ = 0;
    }
    return target_away_ || !tx.consumer_hot();
  }
  if (++away_times_ <= kTryAgainAfter) return true;
  away_times_ = kSurelyAway - 1;
  return false;
}

bool RcQp::may_go_direct(const Wqe& w) noexcept {
  if (!lane_->direct.allowed || w.owner_only || !peer_lets(w.op) || !is_target_away()) return false;
  const ring::ChannelTx& tx = lane_->request_tx;
  // The ordering rule: every earlier request executed, and told.
  if (done_through_ != tx.cells.pos()) learn_executed();
  return done_through_ == tx.cells.pos() && !stopped_ && slot() != nullptr;
}

// Copies [offset, offset + n) of the operation, n at most a chunk.
DirectResult RcQp::copy_direct(uint32_t at, uint64_t offset, uint64_t n) noexcept {
  Wqe& w = wqe(at);
  std::array<iovec, protect::PeerKeyView::kMaxLocalSegments> local;
  size_t count = 0;
  uint64_t skip = offset;
  uint64_t left = n;
  if (w.is_inline) {
    local[count++] = {inline_of(at) + offset, n};
    left = 0;
  }
  const Rights need = local_need_of(w.op);
  for (uint32_t i = 0; i < w.sge_count && left > 0 && count < local.size(); ++i) {
    const Sge& sge = sges_of(at)[i];
    if (skip >= sge.length) {
      skip -= sge.length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(left, sge.length - skip);
    const protect::Checked checked =
        spec_.keys->check(local_ask(sge.lkey, sge.addr + skip, part, need), &hint_);
    if (!checked) {
      refuse_local(sge.lkey, sge.addr + skip, part, need);
      return {DirectResult::Outcome::denied, Denial::none, 0, w.region};
    }
    // under the engine lock, in which regions are closed: it stays until the copy is over
    checked.grant().each_piece([&](std::byte* piece, size_t size) {
      if (count == local.size()) return false;
      local[count++] = {piece, size};
      left -= size;
      return true;
    });
    skip = 0;
  }
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  const protect::DirectAsk ask{lane_->remote_domain, w.rkey, w.remote_addr + offset,
                               local.data(),         count,  w.region};
  const DirectResult r = w.op == SendOp::read
                             ? keys->read(lane_->direct.pid, *slot_, ask, &direct_hint_)
                             : keys->write(lane_->direct.pid, *slot_, ask, &direct_hint_);
  w.region = r.generation;
  return r;
}

// All of a read or a write that is one piece, when all before it is over. False: nothing is noted,
// and it goes the long way, which finds out why.
bool RcQp::put_direct_at_once(const SendWr& wr) noexcept {
  const Sge& sge = wr.sge[0];
  const bool reads = wr.op == SendOp::read;
  const bool is_inline = (wr.flags & kInline) != 0;
  if (sq_head_ != sq_tail_ || done_through_ != lane_->request_tx.cells.pos() || slot_ == nullptr ||
      !lane_->direct.allowed || !peer_lets(wr.op) || !spec_.send_cq->has_room() ||
      sge.length - 1 >= protect::kChunkBytes ||
      (reads ? is_inline || attr_.max_rd_atomic == 0
             : is_inline && sge.length > spec_.max_inline_bytes) ||
      !is_target_away()) {
    return false;
  }
  iovec local{reinterpret_cast<void*>(sge.addr), sge.length};
  if (!is_inline) {
    const protect::Checked checked =
        spec_.keys->check(local_ask(sge.lkey, sge.addr, sge.length, local_need_of(wr.op)), &hint_);
    // under the engine lock, in which regions are closed: it stays until the copy is over
    const bool one_run = checked && checked.grant().each_piece([&](std::byte* piece, size_t size) {
      local.iov_base = piece;
      return size == local.iov_len;
    });
    if (!one_run) return false;
  }
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  const protect::DirectAsk ask{lane_->remote_domain, wr.rkey, wr.remote_addr, &local, 1, 0};
  const DirectResult r = reads ? keys->read(lane_->direct.pid, *slot_, ask, &direct_hint_)
                               : keys->write(lane_->direct.pid, *slot_, ask, &direct_hint_);
  if (r.outcome != DirectResult::Outcome::done) return false;
  complete_now(wr, reads ? WcOpcode::read : WcOpcode::write, sge.length);
  return true;
}

// The rest goes through the ring, now and for ever. Always false.
bool RcQp::leave_direct() noexcept {
  lane_->direct.allowed = false;
  return false;
}

// False: the WQE is over, or goes on through the ring.
bool RcQp::take_outcome(Wqe& w, const DirectResult& r) noexcept {
  switch (r.outcome) {
    case DirectResult::Outcome::done: return true;
    case DirectResult::Outcome::denied:
      if (r.denial == Denial::none) {
        fail_wqe(w, WcStatus::loc_prot_err);
        return false;
      }
      // The owner refuses it itself: its queue pair has to know, and to say why.
      w.owner_only = true;
      return false;
    case DirectResult::Outcome::peer_gone: fail_wqe(w, WcStatus::retry_exc_err); return false;
    case DirectResult::Outcome::not_permitted:
      APERTURE_INFO("direct copies to %s are no longer permitted; the owner copies from now on",
                    remote_.text().c_str());
      return leave_direct();
    case DirectResult::Outcome::faulted:       // on one side: the ring tells which
    case DirectResult::Outcome::through_ring:  // this one; the next may find the key file at rest
      w.owner_only = true;
      return false;
  }
  return false;
}

// True: the next may be begun. It may be that the first pieces of a write went through the ring and
// are executed; should the rest have to go there too, it goes on where it was.
bool RcQp::put_direct(uint32_t at) noexcept {
  Wqe& w = wqe(at);
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  // the whole range first: an operation that will be refused changes nothing
  if (w.done == 0 && w.len > protect::kChunkBytes &&
      keys->would_refuse(lane_->remote_domain, w.rkey, w.remote_addr, w.len, need_of(w.op)) !=
          Denial::none) {
    w.owner_only = true;
    return start(at);
  }
  uint64_t budget = qp::kDirectBudget;
  while (w.done < w.len) {
    const uint64_t n = std::min(w.len - w.done, protect::kChunkBytes);
    if (n > budget) return false;
    const DirectResult r = copy_direct(at, w.done, n);
    w.done += r.bytes;
    budget -= n;
    if (take_outcome(w, r)) continue;
    if (w.stage == Wqe::Stage::finished) return true;
    return start(at);
  }
  w.copied = true;
  if (w.op == SendOp::write_with_imm) return put_notice(at);
  w.end_pos = lane_->request_tx.cells.pos();
  w.stage = Wqe::Stage::finished;
  return true;
}

// The head of the ring has stood at pos for longer than an owner that polls takes for that much.
bool RcQp::has_stalled(uint64_t pos, uint64_t len) noexcept {
  const uint64_t now = ticks();
  if (stall_since_ == 0 || stall_pos_ != pos) {
    stall_pos_ = pos;
    stall_since_ = now;
    return false;
  }
  static const uint64_t limit = ticks_from_ns(qp::kStallNs);
  // at most about 2 ticks for 4 bytes
  return now - stall_since_ >= limit + std::min(len, qp::kPieceBytes) / 2;
}

// Looks whether the first request that is not executed has stood there for too long: an RDMA of
// ours is done by our own hand if the owner is not at it; for all else its doorbell is rung.
void RcQp::claim_stalled_head() noexcept {
  if (done_through_ == lane_->request_tx.cells.pos()) return;
  const bool has_piece = piece_head_ != piece_tail_;
  const Piece piece = has_piece ? pieces_[piece_head_ % pieces_.size()] : Piece{};
  const bool is_head = has_piece && piece.pos == done_through_;
  const bool claimable =
      is_head && lane_->direct.allowed && piece.len != 0 && !wqe(piece.at).owner_only;
  if (!target_away_ || !claimable) {
    if (!has_stalled(done_through_, is_head ? piece.len : 0)) return;
  }
  if (!claimable || slot() == nullptr) {
    static const uint64_t pause = ticks_from_ns(qp::kRingEveryNs);
    const uint64_t now = ticks();
    if (rung_at_ != 0 && now - rung_at_ < pause) return;
    rung_at_ = now;
    lane_->ring_doorbell();
    return;
  }
  if (!claim(piece)) {
    stall_since_ = 0;
    target_away_ = false;
    return;
  }
  target_away_ = true;
  if (away_times_ < kSurelyAway) ++away_times_;
  away_polls_ = lane_->request_tx.consumer_polls();
  done_through_ = piece.pos + piece.cells;
  ++piece_head_;
  retire();
}

bool RcQp::claim(const Piece& piece) noexcept {
  Wqe& w = wqe(piece.at);
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  // What would be refused, or is for the owner to judge, is left to it; so is immediate data, which
  // it has to take from the ring, receive and all.
  const bool tells = w.op == SendOp::write_with_imm && piece.offset + piece.len == w.len;
  if (tells || !peer_lets(w.op) || keys->asks_owner(lane_->remote_domain, w.rkey) ||
      keys->would_refuse(lane_->remote_domain, w.rkey, w.remote_addr, w.len, need_of(w.op)) !=
          Denial::none) {
    w.owner_only = true;
    return false;
  }
  ring::ChannelWords& words = lane_->request_tx.words();
  if (!claim_side_.begin(words, piece.pos)) {
    away_times_ = 0;
    return false;
  }
  uint64_t done = 0;
  while (done < piece.len) {
    const uint64_t n = std::min(piece.len - done, protect::kChunkBytes);
    const DirectResult r = copy_direct(piece.at, piece.offset + done, n);
    done += r.bytes;
    if (r.outcome == DirectResult::Outcome::done) continue;
    if (r.outcome == DirectResult::Outcome::not_permitted) leave_direct();
    w.owner_only = true;  // its owner executes it, and refuses it if that is right
    claim_side_.retract(words);
    return false;
  }
  if (w.op == SendOp::read) w.done = w.len;
  claim_side_.finish(words, piece.pos);
  return true;
}

}  // namespace aperture::ib
