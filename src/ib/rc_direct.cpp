// Direct copies and claims: see rc_direct.hpp.
#include "ib/rc_direct.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace aperture::ib {

using protect::Denial;
using protect::DirectResult;
using protect::Rights;

namespace {

constexpr Rights need_of(SendOp op) noexcept {
  return op == SendOp::read ? Rights::remote_read : Rights::remote_write;
}
constexpr Rights local_need_of(SendOp op) noexcept {
  return op == SendOp::read ? Rights::local_write : Rights::local_read;
}
// The queue pair there may take less than its keys do.
constexpr uint16_t permit_for(SendOp op) noexcept {
  return op == SendOp::read ? transport::kPermitReads : transport::kPermitWrites;
}

}  // namespace

DirectResult RcDirect::access(SendOp op, protect::DirectAsk& ask) noexcept {
  return op == SendOp::read ? q_.one_sided_.read(ask) : q_.one_sided_.write(ask);
}

bool RcDirect::would_be_refused(const Wqe& w) const noexcept {
  return q_.one_sided_.would_refuse(w.rkey, w.remote_addr, w.len, need_of(w.op)) != Denial::none;
}

bool RcDirect::post_fast(const SendWr& wr) noexcept {
  const Sge& sge = wr.sge[0];
  const bool reads = wr.op == SendOp::read;
  const bool is_inline = (wr.flags & kInline) != 0;
  transport::OneSided& one_sided = q_.one_sided_;
  if (!q_.sq_.is_empty() || !q_.is_ring_done() || !one_sided.is_possible(permit_for(wr.op)) ||
      !one_sided.has_slot() || !q_.spec_.send_cq->has_room() ||
      sge.length - 1 >= protect::kChunkBytes ||
      (reads ? is_inline || q_.attr_.max_rd_atomic == 0
             : is_inline && sge.length > q_.spec_.max_inline_bytes) ||
      !(q_.target_.is_away(sge.length) || one_sided.reaches_device(wr.rkey))) {
    return false;
  }
  one_sided.foresee(wr.rkey);
  iovec local{reinterpret_cast<void*>(sge.addr), sge.length};
  if (!is_inline) {
    const protect::Checked checked =
        q_.memory_.check(sge.lkey, sge.addr, sge.length, local_need_of(wr.op));
    // under the engine lock, in which regions are closed: it stays until the copy is over
    const bool one_run = checked && checked.grant().each_piece([&](std::byte* piece, size_t size) {
      local.iov_base = piece;
      return size == local.iov_len;
    });
    if (!one_run) return false;
  }
  protect::DirectAsk ask{0, wr.rkey, wr.remote_addr, &local, 1, 0};
  if (access(wr.op, ask).outcome != DirectResult::Outcome::done) return false;
  q_.sq_.complete_fast(wr, sge.length);
  return true;
}

bool RcDirect::may_go(const Wqe& w) noexcept {
  if (w.owner_only || q_.stopped_ || !q_.one_sided_.is_possible(permit_for(w.op)) ||
      !(q_.target_.is_away(w.len) || q_.one_sided_.reaches_device(w.rkey))) {
    return false;
  }
  q_.one_sided_.foresee(w.rkey);
  if (!q_.is_ring_done()) answers_.learn_executed();
  return q_.is_ring_done() && !q_.stopped_ && q_.one_sided_.has_slot();
}

// [offset, offset + n) of the operation, n at most a chunk.
RcDirect::Copied RcDirect::copy(uint32_t at, uint64_t offset, uint64_t n) noexcept {
  assert(n <= protect::kChunkBytes);
  Wqe& w = q_.sq_.wqe(at);
  std::array<iovec, protect::PeerKeyView::kMaxLocalSegments> local;
  std::array<const Sge*, local.size()> belongs_to{};  // null: inline bytes, which are ours
  size_t count = 0;
  uint64_t skip = offset;
  uint64_t left = n;
  if (w.is_inline) {
    local[count++] = {q_.sq_.inline_of(at) + offset, n};
    left = 0;
  }
  const Rights need = local_need_of(w.op);
  for (uint32_t i = 0; i < w.sge_count && left > 0 && count < local.size(); ++i) {
    const Sge& sge = q_.sq_.sges_of(at)[i];
    if (skip >= sge.length) {
      skip -= sge.length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(left, sge.length - skip);
    const protect::Checked checked = q_.memory_.check(sge.lkey, sge.addr + skip, part, need);
    if (!checked) {
      return {.failed = q_.memory_.refuse(sge.lkey, sge.addr + skip, part, need, checked.denial())};
    }
    if (checked.grant().is_in_device()) return copy_by_stand_in(at, offset, n, checked.grant());
    // under the engine lock, in which regions are closed: it stays until the copy is over
    checked.grant().each_piece([&](std::byte* piece, size_t size) {
      if (count == local.size()) return false;
      belongs_to[count] = &sge;
      local[count++] = {piece, size};
      left -= size;
      return true;
    });
    skip = 0;
  }
  protect::DirectAsk ask{0, w.rkey, w.remote_addr + offset, local.data(), count, w.region};
  const DirectResult r = access(w.op, ask);
  w.region = r.generation;
  if (r.outcome == DirectResult::Outcome::faulted) {
    for (size_t i = 0; i < count; ++i) {
      const Sge* sge = belongs_to[i];
      if (sge == nullptr || transport::OneSided::side_of_fault(
                                &local[i], 1, w.op == SendOp::read) == transport::Fault::there) {
        continue;
      }
      return {
          .failed = q_.memory_.refuse(sge->lkey, sge->addr, sge->length, need, Denial::not_backed),
          .bytes = r.bytes};
    }
  }
  return came_to(r);
}

// What is no fault of our buffers. What is neither done nor failed is for the owner: one that has
// denied it has to know, and to say why, and the next may find the key file at rest.
RcDirect::Copied RcDirect::came_to(const DirectResult& r) noexcept {
  if (r.outcome == DirectResult::Outcome::peer_gone)
    return {.failed = WcStatus::retry_exc_err, .bytes = r.bytes};
  if (r.outcome == DirectResult::Outcome::not_permitted) q_.one_sided_.give_up();
  return {.done = r.outcome == DirectResult::Outcome::done, .bytes = r.bytes};
}

// A piece of it lies in a device, which no system call reaches: pinned memory stands in for all of
// them.
RcDirect::Copied RcDirect::copy_by_stand_in(uint32_t at, uint64_t offset, uint64_t n,
                                            const protect::Grant& in_device) noexcept {
  std::byte* const flat = q_.one_sided_.stand_in(in_device);
  if (flat == nullptr) return {};
  Wqe& w = q_.sq_.wqe(at);
  const Sge* const sges = q_.sq_.sges_of(at);
  const bool reads = w.op == SendOp::read;
  if (!reads) {
    const WcStatus s = q_.memory_.gather(sges, w.sge_count, offset, flat, n);
    if (s != WcStatus::success) return {.failed = s};
  }
  const iovec local{flat, n};
  protect::DirectAsk ask{0, w.rkey, w.remote_addr + offset, &local, 1, w.region};
  const DirectResult r = access(w.op, ask);
  w.region = r.generation;
  if (reads && r.bytes != 0) {
    const WcStatus s = q_.memory_.scatter(sges, w.sge_count, offset, flat, r.bytes);
    if (s != WcStatus::success) return {.failed = s};
  }
  return came_to(r);
}

RcDirect::Went RcDirect::put(uint32_t at) noexcept {
  Wqe& w = q_.sq_.wqe(at);
  assert(w.stage == Wqe::Stage::begun && w.done <= w.len);
  // the whole range first: an operation that will be refused changes nothing
  w.owner_only = w.done == 0 && w.len > protect::kChunkBytes && would_be_refused(w);
  uint64_t budget = transport::kDirectBudget;
  while (w.done < w.len) {
    if (w.owner_only) return Went::ring;
    const uint64_t n = std::min(w.len - w.done, protect::kChunkBytes);
    if (n > budget) return Went::later;
    const Copied copied = copy(at, w.done, n);
    w.done += copied.bytes;
    budget -= n;
    if (copied.failed != WcStatus::success) {
      q_.fail_wqe(w, copied.failed);
      return Went::over;
    }
    w.owner_only = !copied.done;
  }
  w.copied = true;
  if (w.op == SendOp::write_with_imm) return Went::notice;
  w.end_pos = q_.lane_->request_tx.cells.pos();
  w.stage = Wqe::Stage::finished;
  return Went::over;
}

void RcDirect::claim_stalled_head() noexcept {
  assert(!q_.is_ring_done());
  transport::OneSided& one_sided = q_.one_sided_;
  const uint64_t head = q_.inflight_.done_through();
  const RcPiece piece = q_.inflight_.empty() ? RcPiece{} : q_.inflight_.oldest();
  const uint64_t len = piece.pos == head ? piece.len : 0;
  const bool claimable = len != 0 && one_sided.is_allowed() && !q_.sq_.wqe(piece.at).owner_only;
  if (!claimable) {
    one_sided.ask_to_wake([](std::byte* body) {
      wire::store_rc(body, wire::RcHead{static_cast<uint8_t>(wire::RcOp::wake), 0, 0, 0});
    });
  }
  if (!(claimable && q_.target_.is_known_away()) && !q_.target_.has_stalled(head, len)) return;
  if (!claimable || !one_sided.has_slot()) return q_.target_.ring_stalled();
  if (!may_claim(piece)) {
    q_.sq_.wqe(piece.at).owner_only = true;
    return q_.target_.restart_clock();
  }
  const uint64_t last = transport::OneSided::last_to_claim(
      q_.inflight_, [this](const RcPiece& p) { return may_claim(p); },
      [](const RcPiece& p) { return p.len; });
  uint64_t end = 0;
  const auto claimed = one_sided.claim(q_.inflight_, last, end,
                                       [this](const RcPiece& p) { return copy_claimed(p); });
  if (claimed != transport::OneSided::Claimed::done) return;
  q_.inflight_.retire_through(end);
  answers_.retire();
}

bool RcDirect::may_claim_head() const noexcept {
  // the rest of may_claim() is asked once it has stalled
  return q_.one_sided_.may_claim_head(q_.inflight_, [this](const RcPiece& piece) {
    const Wqe& w = q_.sq_.wqe(piece.at);
    return piece.len != 0 && !w.owner_only && q_.one_sided_.is_possible(permit_for(w.op));
  });
}

// What would be refused, or is for the owner to validate, is left to it; so is immediate data,
// which it has to take from the ring, receive and all.
bool RcDirect::may_claim(const RcPiece& piece) noexcept {
  const Wqe& w = q_.sq_.wqe(piece.at);
  const bool tells = w.op == SendOp::write_with_imm && piece.offset + piece.len == w.len;
  return piece.len != 0 && !w.owner_only && !tells &&
         q_.one_sided_.is_permitted(permit_for(w.op)) && !q_.one_sided_.asks_owner(w.rkey) &&
         !would_be_refused(w);
}

// True: the request is executed by that. False: its owner executes it, and refuses it if that is
// right.
bool RcDirect::copy_claimed(const RcPiece& piece) noexcept {
  Wqe& w = q_.sq_.wqe(piece.at);
  for (uint64_t done = 0; done < piece.len;) {
    const uint64_t n = std::min(piece.len - done, protect::kChunkBytes);
    const Copied copied = copy(piece.at, piece.offset + done, n);
    done += copied.bytes;
    if (copied.done) continue;
    w.owner_only = true;
    return false;
  }
  if (w.op == SendOp::read) w.done = piece.offset + piece.len;
  return true;
}

}  // namespace aperture::ib
