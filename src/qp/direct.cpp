// Direct writes and reads, and claims of requests in the ring: see direct.hpp.
#include "qp/direct.hpp"

#include <array>
#include <cstring>

namespace aperture::qp {

using protect::Denial;
using protect::DirectResult;
using transport::OneSided;

bool DirectRma::may_go(Wqe& wqe) noexcept {
  if (wqe.through_ring || !core_.one_sided.is_possible(permit_for(wqe))) return false;
  const auto reaches_device = [&] {
    return wqe.range_at < wqe.range_count &&
           core_.one_sided.reaches_device(core_.shown(wqe.ranges[wqe.range_at].key).key);
  };
  if (!core_.target.is_away(wqe.len) && !reaches_device()) return false;
  // The ordering rule: every earlier request executed. Pieces of this very operation count too.
  const uint64_t end = core_.lane->request_tx.cells.pos();
  const bool ordered = core_.port.strict_rma_order || wqe.in_ring || wqe.fence;
  if (pending_.done_through() != end && ordered) {
    responses_.learn_executed();
    if (pending_.done_through() != end || has_failed(wqe)) return false;
  }
  if (wqe.kind == WqeKind::read && wqe.done != asked_of(wqe)) {
    wqe.error = Errc::protocol;  // acknowledged without its data
    return false;
  }
  return core_.one_sided.has_slot();
}

Denial DirectRma::would_refuse(const Wqe& wqe, const RemoteRange& range) const noexcept {
  return core_.one_sided.would_refuse(core_.shown(range.key).key, range.addr, range.len,
                                      need_of(wqe));
}

// Copies a part of range `range_at`, a chunk at most; all of a range from or to one life of its
// region.
DirectRma::Step DirectRma::copy(Wqe& wqe, uint8_t range_at, const RemoteRange& part,
                                uint64_t wqe_offset, uint64_t& bytes) noexcept {
  assert(part.len <= protect::kDeviceChunkBytes && range_at < wqe.range_count);
  if (wqe.region_at != range_at) wqe.region = 0;
  wqe.region_at = range_at;
  std::array<iovec, kIovLimit> local;
  size_t count = 0;
  each_iov_piece(wqe.iov.data(), wqe.iov_count, wqe_offset, part.len,
                 [&](std::byte* piece, size_t n) {
                   local[count++] = {piece, n};
                 });
  const bool reads = wqe.kind == WqeKind::read;
  protect::DirectAsk ask;
  ask.key = core_.shown(part.key).key;
  ask.addr = part.addr;
  ask.local = local.data();
  ask.local_count = count;
  ask.generation = wqe.region;
  const DirectResult r = reads ? core_.one_sided.read(ask) : core_.one_sided.write(ask);
  wqe.region = r.generation;
  bytes = r.bytes;
  switch (r.outcome) {
    case DirectResult::Outcome::done: return Step::copied;
    case DirectResult::Outcome::denied: wqe.denial = r.denial; return Step::over;
    case DirectResult::Outcome::peer_gone: wqe.error = Errc::peer_lost; return Step::over;
    case DirectResult::Outcome::faulted:
      if (OneSided::side_of_fault(local.data(), count, reads) == transport::Fault::there) break;
      wqe.error = Errc::bad_buffer;
      return Step::over;
    case DirectResult::Outcome::not_permitted: core_.one_sided.give_up(); break;
    case DirectResult::Outcome::through_ring: break;  // the next may find the key file at rest
  }
  wqe.through_ring = true;
  return Step::for_owner;
}

// With several ranges all of them are looked at first. True: it is over, or for its owner.
bool DirectRma::is_refused(Wqe& wqe) noexcept {
  for (uint8_t i = 0; i < wqe.range_count; ++i) {
    const RemoteRange& range = wqe.ranges[i];
    wqe.through_ring = core_.one_sided.asks_owner(core_.shown(range.key).key);
    if (!wqe.through_ring) wqe.denial = would_refuse(wqe, range);
    if (wqe.through_ring || wqe.denial != Denial::none) return true;
  }
  return false;
}

bool DirectRma::put(Wqe& wqe) noexcept {
  uint64_t budget = transport::kDirectBudget;
  if (wqe.range_count > 1 && wqe.done == 0 && is_refused(wqe)) return !wqe.through_ring;
  while (wqe.range_at < wqe.range_count) {
    const RemoteRange& whole = wqe.ranges[wqe.range_at];
    assert(wqe.range_done <= whole.len);
    uint64_t n = whole.len - wqe.range_done;
    if (n > protect::kChunkBytes) {
      const bool in_device = core_.one_sided.reaches_device(core_.shown(whole.key).key);
      n = std::min(n, in_device ? protect::kDeviceChunkBytes : protect::kChunkBytes);
    }
    if (n > budget) return false;
    if (wqe.completion == kTold) [[unlikely]] {
      if (wqe.kind == WqeKind::read) {
        told_of(wqe).on_arrived(wqe.done);
      } else if (!is_filled(wqe, wqe.done + n)) {
        return has_failed(wqe);
      }
    }
    if (wqe.range_done == 0 && (whole.len > n || n == 0)) {
      // the whole range first: an operation that will be refused changes nothing
      wqe.denial = would_refuse(wqe, whole);
      if (wqe.denial != Denial::none) return true;
    }
    uint64_t bytes = 0;
    const Step step =
        copy(wqe, wqe.range_at, {whole.addr + wqe.range_done, n, whole.key}, wqe.done, bytes);
    wqe.done += bytes;
    wqe.range_done += bytes;
    budget -= n;
    if (step != Step::copied) return step == Step::over;
    if (wqe.range_done == whole.len) {
      ++wqe.range_at;
      wqe.range_done = 0;
    }
  }
  return true;
}

void DirectRma::claim_stalled_head() noexcept {
  if (core_.pieces.empty()) return;
  const Piece& piece = core_.pieces.oldest();
  if (piece.pos != pending_.done_through()) return;
  OneSided& path = core_.one_sided;
  if (is_for_owner(piece)) {
    // Its owner may have stopped polling without having gone to sleep: its doorbell then wakes the
    // control thread, if that may progress.
    if (core_.target.has_stalled(piece.pos, 0)) core_.target.ring_stalled();
    path.ask_to_wake(
        [](std::byte* body) { wire::store(body, wire::Head::make(wire::Op::wake, 0, 0, 0)); });
    return;
  }
  if (!path.is_possible(permit_for(piece))) return;
  transport::Target& target = core_.target;
  if (!target.is_known_away() && !target.has_stalled(piece.pos, piece.range.len)) return;
  const uint64_t last = OneSided::last_to_claim(
      core_.pieces, [this](const Piece& p) { return may_claim(p); },
      [](const Piece& p) { return p.check_only ? 0 : p.range.len; });
  uint64_t end = 0;
  const auto claimed =
      path.claim(core_.pieces, last, end, [this](Piece& p) { return copy_claimed(p); });
  if (claimed == OneSided::Claimed::done) pending_.retire(end);
}

bool DirectRma::may_claim_head() const noexcept {
  return core_.one_sided.may_claim_head(core_.pieces,
                                        [this](const Piece& p) { return may_claim(p); });
}

// True: it is executed by that, as far as it ever will be. False: it is for its owner after all.
bool DirectRma::copy_claimed(Piece& piece) noexcept {
  return piece.wqe != nullptr ? copy_claimed(*piece.wqe, piece) : copy_claimed_line(piece);
}

// Its bytes are had from its cell: they may be nowhere else any more. The owner of that memory
// could have written there, and so into its own.
bool DirectRma::copy_claimed_line(Piece& line) noexcept {
  Wqe wqe;
  describe(line, wqe);
  const std::byte* body = core_.lane->request_tx.cells.body_at(line.pos);
  const uint8_t flags = wqe.has_imm != 0 ? wire::kImm : 0;
  assert(wqe.len <= wire::line_room(wire::Op::write, flags));
  std::memcpy(wqe.injected.data(), body + wire::payload_offset(wire::Op::write, flags), wqe.len);
  wqe.iov[0] = {wqe.injected.data(), wqe.len};
  wqe.iov_count = 1;
  Piece piece = line;
  piece.wqe_offset = 0;
  const bool is_executed = copy_claimed(wqe, piece);
  assert(wqe.error == Errc::ok || wqe.error == Errc::peer_lost);
  line.denial = wqe.denial;
  line.is_lost = wqe.error != Errc::ok;
  line.through_ring = wqe.through_ring;
  return is_executed;
}

bool DirectRma::copy_claimed(Wqe& wqe, const Piece& piece) noexcept {
  RemoteRange part = piece.range;
  uint64_t offset = piece.wqe_offset;
  const bool reads = wqe.kind == WqeKind::read;
  const auto give_back = [&] {
    wqe.through_ring = true;
    if (reads) wqe.done = piece.wqe_offset;  // all of it comes from the owner
    return false;
  };
  if (core_.one_sided.asks_owner(core_.shown(part.key).key)) return give_back();
  if (has_failed(wqe)) return true;  // it was refused, as a whole or not at all
  wqe.denial = would_refuse(wqe, wqe.ranges[piece.range_at]);
  if (piece.check_only) part.len = 0;
  while (!has_failed(wqe) && part.len > 0) {
    RemoteRange chunk = part;
    chunk.len = std::min(part.len, protect::kChunkBytes);
    uint64_t bytes = 0;
    const Step step = copy(wqe, piece.range_at, chunk, offset, bytes);
    part.addr += bytes;
    part.len -= bytes;
    offset += bytes;
    if (reads) wqe.done += bytes;
    if (step == Step::for_owner) return give_back();
  }
  if (wqe.error == Errc::bad_buffer && !reads) {
    wqe.error = Errc::ok;  // its bytes are in the ring since long: the owner has them
    return give_back();
  }
  if (wqe.denial != Denial::none && core_.tells(wqe)) {
    // The owner tells of what it steps over, so it must not step over this: it refuses it itself.
    wqe.denial = Denial::none;
    return give_back();
  }
  return true;
}

}  // namespace aperture::qp
