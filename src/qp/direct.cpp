// RMA by our own hand: process_vm_writev and process_vm_readv under the pin protocol of protect/,
// when nothing of ours stands before it in the ring and the target is not polling; and claiming the
// head of the ring from a target that has stopped. architecture.md, "The ordering rule", "Claims".
#include <algorithm>
#include <array>
#include <cstdio>

#include "base/clock.hpp"
#include "base/iov.hpp"
#include "base/log.hpp"
#include "protect/wording.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using protect::DirectResult;

namespace {

protect::Rights need_of(const Wqe& wqe) noexcept {
  switch (wqe.kind) {
    case WqeKind::write: return protect::Rights::remote_write;
    case WqeKind::atomic: return rights_for(AtomicKind::base, AtomicOp::write);
    case WqeKind::fetch:
      return rights_for(AtomicKind::fetch, wqe.reads_only ? AtomicOp::read : AtomicOp::write);
    default: return protect::Rights::remote_read;
  }
}

}  // namespace

protect::AccessorSlot* Qp::slot() noexcept {
  if (slot_ == nullptr && lane_->direct.slots != nullptr) {
    slot_ = static_cast<protect::SlotArray*>(lane_->direct.slots)->claim();
  }
  return slot_;
}

bool Qp::may_go_direct(const Wqe& wqe) noexcept {
  if (!lane_->direct.allowed || wqe.through_ring) return false;
  ring::ChannelTx& tx = lane_->request_tx;
  if (target_away_ && tx.consumer_polls() != away_polls_) {
    target_away_ = false;
    stall_since_ = 0;
  }
  if (!target_away_ && tx.consumer_hot()) return false;
  // The ordering rule: every earlier request executed. Pieces of this very operation count too.
  if (done_through_ != tx.cells.pos() && (port_.strict_rma_order || wqe.in_ring || wqe.fence)) {
    learn_executed();
    if (done_through_ != tx.cells.pos() || wqe.denial != protect::Denial::none) return false;
  }
  return slot() != nullptr;
}

// Copies (part of) range `range_at` of the operation; all of it from or to one life of its region.
DirectResult Qp::copy_direct(Wqe& wqe, uint8_t range_at, const RemoteRange& range,
                             uint64_t wqe_offset) noexcept {
  if (wqe.region_at != range_at) wqe.region = 0;
  wqe.region_at = range_at;
  std::array<iovec, kIovLimit> local;
  size_t count = 0;
  each_iov_piece(wqe.iov.data(), wqe.iov_count, wqe_offset, range.len,
                 [&](std::byte* piece, size_t n) {
                   local[count++] = {piece, n};
                 });
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  const protect::DirectAsk ask{
      lane_->remote_domain, shown(range.key).key, range.addr, local.data(), count, wqe.region};
  const DirectResult r = wqe.kind == WqeKind::write
                             ? keys->write(lane_->direct.pid, *slot_, ask, &direct_hint_)
                             : keys->read(lane_->direct.pid, *slot_, ask, &direct_hint_);
  wqe.region = r.generation;
  return r;
}

// A direct access to that key is likely: what it looks at first is fetched while it is prepared.
void Qp::foresee_direct(uint64_t key) noexcept {
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  keys->foresee(direct_hint_, shown(key).key);
}

protect::Denial Qp::would_refuse(const Wqe& wqe, const RemoteRange& range) const noexcept {
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  return keys->would_refuse(lane_->remote_domain, shown(range.key).key, range.addr, range.len,
                            need_of(wqe));
}

bool Qp::asks_owner(const RemoteRange& range) const noexcept {
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  return keys->asks_owner(lane_->remote_domain, shown(range.key).key);
}

// The rest goes through the ring, now and for ever. Always false.
bool Qp::leave_direct() noexcept {
  lane_->direct.allowed = false;
  return false;
}

// True: over, well or badly. False: more is to be done in a later poll.
bool Qp::put_direct(Wqe& wqe) noexcept {
  uint64_t budget = kDirectBudget;
  if (wqe.range_count > 1 && wqe.done == 0) {
    for (uint8_t i = 0; i < wqe.range_count; ++i) {
      wqe.through_ring = asks_owner(wqe.ranges[i]);
      if (wqe.through_ring) return false;
      wqe.denial = would_refuse(wqe, wqe.ranges[i]);
      if (wqe.denial != protect::Denial::none) return true;
    }
  }
  while (wqe.range_at < wqe.range_count) {
    const RemoteRange& whole = wqe.ranges[wqe.range_at];
    const uint64_t left = whole.len - wqe.range_done;
    const uint64_t n = std::min(left, protect::kChunkBytes);
    if (n > budget) return false;
    if (wqe.range_done == 0 && (whole.len > n || n == 0)) {
      // the whole range first: an operation that will be refused changes nothing
      wqe.denial = would_refuse(wqe, whole);
      if (wqe.denial != protect::Denial::none) return true;
    }
    const RemoteRange part{whole.addr + wqe.range_done, n, whole.key};
    const DirectResult r = copy_direct(wqe, wqe.range_at, part, wqe.done);
    wqe.done += r.bytes;
    wqe.range_done += r.bytes;
    budget -= n;
    switch (r.outcome) {
      case DirectResult::Outcome::done: break;
      case DirectResult::Outcome::denied: wqe.denial = r.denial; return true;
      case DirectResult::Outcome::faulted: wqe.denial = protect::Denial::not_backed; return true;
      case DirectResult::Outcome::peer_gone: wqe.error = Errc::peer_lost; return true;
      case DirectResult::Outcome::not_permitted:
        APERTURE_INFO("direct copies to %s are no longer permitted; the owner copies from now on",
                      remote_.text().c_str());
        return leave_direct();
      case DirectResult::Outcome::through_ring:
        wqe.through_ring = true;  // this one; the next may find the key file at rest
        return false;
    }
    if (wqe.range_done == whole.len) {
      ++wqe.range_at;
      wqe.range_done = 0;
    }
  }
  return true;
}

// Looks whether the first request that is not executed is an RMA of ours that has stood there for
// too long, and does it itself if the owner is not at it.
void Qp::claim_stalled_head() noexcept {
  if (piece_head_ == piece_tail_) return;
  const Piece piece = pieces_[piece_head_ % pieces_.size()];
  if (is_atomic(piece.wqe->kind) || piece.wqe->through_ring) {  // for its owner to execute
    ring_for_stalled_head(piece);
    return;
  }
  if (!lane_->direct.allowed) return;
  if (piece.pos != done_through_) return;
  if (!target_away_) {
    if (stall_since_ == 0 || stall_pos_ != piece.pos) {
      stall_pos_ = piece.pos;
      stall_since_ = ticks();
      return;
    }
    // a large piece takes the owner a while: at most about 2 ticks for 4 bytes
    static const uint64_t limit = ticks_from_ns(kStallNs);
    const uint64_t copying = std::min(piece.range.len, kPieceBytes) / 2;
    if (ticks() - stall_since_ < limit + copying) return;
  }
  if (slot() == nullptr) return;
  if (claim(piece)) {
    target_away_ = true;
    away_polls_ = lane_->request_tx.consumer_polls();
    retire(piece.pos + piece.cells);
  } else {
    stall_since_ = 0;
    target_away_ = false;
  }
}

bool Qp::claim(const Piece& piece) noexcept {
  ring::ChannelWords& words = lane_->request_tx.words();
  if (!claim_side_.begin(words, piece.pos)) return false;
  RemoteRange part = piece.range;
  uint64_t offset = piece.wqe_offset;
  Wqe& wqe = *piece.wqe;
  if (asks_owner(part)) {
    wqe.through_ring = true;
    claim_side_.retract(words);
    return false;
  }
  // refused as a whole or not at all
  const bool was_good = wqe.denial == protect::Denial::none;
  if (was_good) {
    wqe.denial = would_refuse(wqe, wqe.ranges[piece.range_at]);
  }
  if (piece.check_only) part.len = 0;
  while (wqe.denial == protect::Denial::none && wqe.error == Errc::ok && part.len > 0) {
    RemoteRange chunk = part;
    chunk.len = std::min(part.len, protect::kChunkBytes);
    const DirectResult r = copy_direct(wqe, piece.range_at, chunk, offset);
    part.addr += r.bytes;
    part.len -= r.bytes;
    offset += r.bytes;
    if (wqe.kind == WqeKind::read) wqe.done += r.bytes;
    if (r.outcome == DirectResult::Outcome::denied) wqe.denial = r.denial;
    if (r.outcome == DirectResult::Outcome::faulted) wqe.denial = protect::Denial::not_backed;
    if (r.outcome == DirectResult::Outcome::peer_gone) wqe.error = Errc::peer_lost;
    if (r.outcome == DirectResult::Outcome::not_permitted ||
        r.outcome == DirectResult::Outcome::through_ring) {
      if (r.outcome == DirectResult::Outcome::not_permitted) leave_direct();
      if (wqe.kind == WqeKind::read) wqe.done = piece.wqe_offset;  // all of it comes from the owner
      claim_side_.retract(words);
      return false;
    }
  }
  if (was_good && wqe.denial != protect::Denial::none && tells(wqe)) {
    // The owner tells of what it steps over, so it must not step over this: it refuses it itself.
    wqe.denial = protect::Denial::none;
    wqe.through_ring = true;
    if (wqe.kind == WqeKind::read) wqe.done = piece.wqe_offset;
    claim_side_.retract(words);
    return false;
  }
  claim_side_.finish(words, piece.pos);
  return true;
}

// The sentence `text`, and what of the owner's regions we may know. May throw bad_alloc.
std::string Qp::explain_region(const char* text, const Wqe& wqe) const {
  const RemoteRange& r = wqe.ranges[std::min<size_t>(wqe.range_at, wqe.range_count - 1u)];
  const protect::AccessAsk ask{lane_->remote_domain,
                               number_,
                               Wild<uint64_t>(shown(r.key).key),
                               Wild<uint64_t>(r.addr),
                               Wild<uint64_t>(r.len),
                               need_of(wqe),
                               port_.endpoint};
  if (lane_->to_self) return port_.keys.explain(ask, wqe.denial, *port_.wording);
  if (lane_->direct.keys == nullptr) {
    return text + protect::explain_unseen(wqe.denial, ask.need, *port_.wording);
  }
  const auto* keys = static_cast<const protect::PeerKeyView*>(lane_->direct.keys);
  return text + keys->explain(lane_->direct.pid, ask, wqe.denial, *port_.wording);
}

void Qp::explain(Wqe& wqe, CompletionError& e) const noexcept {
  char text[320];
  static constexpr const char* kWhat[] = {"send", "remote write", "remote read", "remote atomic",
                                          "remote fetching atomic"};
  const char* what = kWhat[static_cast<size_t>(wqe.kind)];
  // without a denial no region was met: there is no connection
  const bool refused = wqe.error == Errc::access_denied && wqe.denial != protect::Denial::none;
  if (refused && is_invalidation(wqe)) {
    std::snprintf(text, sizeof text,
                  "send of %llu bytes with invalidation of key 0x%llx was refused by %s, and not "
                  "delivered: %s",
                  static_cast<unsigned long long>(wqe.len),
                  static_cast<unsigned long long>(wqe.ranges[0].key), remote_.text().c_str(),
                  protect::rule(*port_.wording, wqe.denial));
  } else if (refused) {
    const RemoteRange& r = wqe.ranges[std::min<size_t>(wqe.range_at, wqe.range_count - 1u)];
    std::snprintf(text, sizeof text,
                  "%s of %llu bytes at 0x%llx with key 0x%llx was refused by %s: %s", what,
                  static_cast<unsigned long long>(r.len), static_cast<unsigned long long>(r.addr),
                  static_cast<unsigned long long>(r.key), remote_.text().c_str(),
                  protect::rule(*port_.wording, wqe.denial));
  } else {
    std::snprintf(text, sizeof text, "%s of %llu bytes to %s ended: %s%s", what,
                  static_cast<unsigned long long>(wqe.len), remote_.text().c_str(),
                  describe(wqe.error),
                  wqe.error == Errc::access_denied
                      ? ": the endpoint there has another authorization key than ours, or one of "
                        "the two has none; give both the same auth_key"
                      : "");
  }
  try {
    const bool by_region = refused && lane_ != nullptr;
    e.sentence =
        !by_region ? text
        : is_invalidation(wqe)
            ? text + protect::explain_unseen(wqe.denial, protect::Rights::none, *port_.wording)
            : explain_region(text, wqe);
    APERTURE_WARN("%s", e.sentence.c_str());
  } catch (...) {
    e.sentence.clear();  // out of memory: the code alone has to do
  }
}

}  // namespace aperture::qp
