// Offered messages, as their sender sees them: see offer_sender.hpp.
#include "qp/offer_sender.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/log.hpp"
#include "transport/payload.hpp"

namespace aperture::qp {

using wire::Head;
using wire::Op;
using wire::SoundHead;

namespace {

constexpr uint32_t kSlotBits = 20;
constexpr uint32_t kSlotMask = (1u << kSlotBits) - 1;

}  // namespace

uint32_t OfferSender::take_id(Wqe& wqe) noexcept {
  uint32_t slot = 0;
  try {
    if (free_.empty()) {
      if (offers_.size() > kSlotMask) return 0;
      offers_.push_back(nullptr);
      free_.reserve(offers_.capacity());  // giving back never allocates
      slot = static_cast<uint32_t>(offers_.size() - 1);
    } else {
      slot = free_.back();
      free_.pop_back();
    }
  } catch (const std::bad_alloc&) {
    return 0;
  }
  assert(offers_[slot] == nullptr);
  offers_[slot] = &wqe;
  generation_ = (generation_ + 1) & 0x7ff;
  return (generation_ | 0x800) << kSlotBits | slot;  // never 0
}

Wqe* OfferSender::find(Wild<uint64_t> id) noexcept {
  const uint64_t wanted = id.unchecked();  // looked up
  const uint64_t slot = wanted & kSlotMask;
  if (slot >= offers_.size() || offers_[slot] == nullptr || offers_[slot]->id != wanted) {
    return nullptr;
  }
  return offers_[slot];
}

void OfferSender::take_claim_word(Wqe& wqe) noexcept {
  wqe.claim = wire::kNoClaim;
  std::atomic<uint64_t>* words = core_.lane->claims_out;
  // a peer without slots to pin in, of another user say, is not shown our addresses, and nobody
  // memory that is not filled yet
  const bool may_pull = words != nullptr && core_.lane->direct.watched != nullptr;
  const bool reachable = may_pull && wqe.iov_count == 1 && !wqe.inject &&
                         wqe.len <= kMaxMessageBytes && !filled_of(wqe).is_late;
  if (!reachable || claims_used_ == ~uint32_t{0}) return;
  static_assert(link::Lane::kClaims == 32);
  wqe.claim = static_cast<uint32_t>(__builtin_ctz(~claims_used_));
  claims_used_ |= 1u << wqe.claim;
  // relaxed: published with the offer
  words[wqe.claim].store(claim_base(wqe.id), std::memory_order_relaxed);
}

bool OfferSender::put(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = core_.lane->request_tx;
  const auto flags = static_cast<uint8_t>((wqe.tagged ? wire::kTagged : 0) | wqe.has_imm << 1 |
                                          (wqe.delivery ? wire::kDelivery : 0) |
                                          (is_invalidation(wqe) ? wire::kInvalidates : 0));
  const uint32_t n_cells = wire::cells_of(Op::send_offer, flags, 0);
  if (!tx.room(n_cells)) return false;
  wqe.id = take_id(wqe);
  if (wqe.id == 0) return false;
  take_claim_word(wqe);
  const uint64_t address =
      wqe.claim != wire::kNoClaim ? reinterpret_cast<uint64_t>(wqe.iov[0].iov_base) : 0;
  std::byte* body = tx.cells.body();
  wire::store(body, Head::make(Op::send_offer, flags, 0, wqe.tag),
              wire::SendOfferFields{wqe.len, address, wqe.id, wqe.claim});
  if (wqe.has_imm) {
    std::memcpy(body + wire::kHeadBytes + sizeof(wire::SendOfferFields), &wqe.imm, sizeof wqe.imm);
  }
  core_.lane.publish_request(n_cells);
  ++core_.offers_out;
  return true;
}

void OfferSender::on_grant(const SoundHead& head) noexcept {
  const auto f = wire::load_fields<wire::GrantFields>(core_.lane->response_rx.cells.body());
  Wqe* wqe = find(head.word());
  if (wqe == nullptr || wqe->granted_set || !f.len.bounded(wqe->len, wqe->granted)) {
    core_.break_protocol("a grant for nothing that was offered");
    return;
  }
  wqe->granted_set = true;
  wqe->preview = head.has(wire::kPreview);
  wqe->receive_id = f.receive_id.unchecked();  // only handed back
  granted_.push_back(wqe);
}

// The next chunk that is ours to push; false: none is left, or the protocol is broken.
bool OfferSender::next_chunk(Wqe& wqe) noexcept {
  uint64_t chunk = wqe.next_chunk;
  if (wqe.claim != wire::kNoClaim && !wqe.preview) {
    std::atomic<uint64_t>& word = core_.lane->claims_out[wqe.claim];
    // relaxed: the number itself is all that is shared; the bytes come by `data`
    chunk = chunk_number(word.fetch_add(1, std::memory_order_relaxed));
    // the word, which the peer can write, only grows: no chunk is pushed twice
    if (chunk < wqe.next_chunk) {
      core_.break_protocol("a claim of what was claimed before");
      return false;
    }
  }
  if (chunk >= chunks_of(wqe.granted)) return false;
  wqe.next_chunk = chunk + 1;
  wqe.chunk_at = chunk * transport::kClaimChunk;
  wqe.chunk_end = std::min(wqe.granted, wqe.chunk_at + transport::kClaimChunk);
  return true;
}

// Whether the bytes of the next piece are there. False: not yet, or it has failed.
bool OfferSender::is_filled(Wqe& wqe) noexcept {
  const Told::Filled filled = told_of(wqe).filled();
  if (!filled.is_late) return true;
  assert(wqe.claim == wire::kNoClaim);
  const uint64_t at =
      wqe.chunk_at != wqe.chunk_end ? wqe.chunk_at : wqe.next_chunk * transport::kClaimChunk;
  if (filled.covers(std::min(wqe.granted, at + core_.lane->piece_bytes))) return true;
  if (filled.has_failed) {
    fail(wqe, Errc::bad_buffer);
  } else {
    goes_on_ = true;
  }
  return false;
}

// As far as there is room, until `end` bytes have been moved for the peer. True: everything that is
// ours to push has been pushed.
bool OfferSender::push_chunks(Wqe& wqe, uint64_t end) noexcept {
  ring::ChannelTx& tx = core_.lane->response_tx;
  for (;;) {
    assert(wqe.pushed <= wqe.granted);
    // at once, not with the next piece's room: the receiver may answer already
    if (wqe.pushed == wqe.granted) return true;
    if (core_.lane.moved_for_peer() >= end) {
      goes_on_ = true;
      return false;
    }
    if (wqe.completion == kTold && !is_filled(wqe)) [[unlikely]]
      return false;
    // room first: a chunk that was claimed has to be pushed, nobody else will
    const auto piece = static_cast<uint32_t>(core_.lane->piece_bytes);
    if (!tx.room(2) || !core_.lane.payload().has_room_for_response_bytes(piece)) return false;
    if (wqe.chunk_at == wqe.chunk_end && !next_chunk(wqe)) return !core_.lane.broken();
    assert(wqe.chunk_at < wqe.chunk_end && wqe.chunk_end <= wqe.granted);
    const auto n =
        static_cast<uint32_t>(std::min(wqe.chunk_end - wqe.chunk_at, core_.lane->piece_bytes));
    const auto record = [&](std::byte* body, uint64_t at) {
      wire::store(body, Head::make(Op::data, 0, 0, wqe.receive_id),
                  wire::DataFields{wqe.chunk_at, at, n});
    };
    const transport::Put put =
        core_.lane.payload().put_response_piece(n, record, [&](transport::PieceOut out) {
          return put_payload(out, wqe.iov.data(), wqe.iov_count, wqe.chunk_at, n);
        });
    if (put == transport::Put::no_memory || put == transport::Put::no_source) {
      fail(wqe, put == transport::Put::no_memory ? Errc::no_memory : Errc::bad_buffer);
      return false;
    }
    assert(put == transport::Put::done);  // a piece had room, and this is one at most
    core_.lane.publish_response(1);
    wqe.chunk_at += n;
    wqe.pushed += n;
  }
}

// A chunk is ours and cannot be pushed, so the receiver never has all of the message, and it may be
// pulling others: the message ends with the connection, when the gate is shut and nobody reads its
// buffer any more.
void OfferSender::fail(Wqe& wqe, Errc why) noexcept {
  APERTURE_WARN("%s of a message to %s: the connection is closed",
                why == Errc::no_memory ? "there is no memory for the ring"
                                       : "the buffer is not mapped any more",
                core_.remote.print().c_str());
  wqe.error = why;
  core_.cease(why);
}

// A preview has been pushed: on offer as before.
void OfferSender::put_back(Wqe& wqe) noexcept {
  wqe.preview = wqe.granted_set = false;
  wqe.granted = wqe.pushed = wqe.next_chunk = 0;
  wqe.chunk_at = wqe.chunk_end = 0;
}

// Buffers are their owners' again with the completions: after the run, in which the link may still
// send from them.
bool OfferSender::push() noexcept {
  goes_on_ = false;
  if (granted_.empty()) return false;
  List<Wqe> pushed;
  bool any = false;
  {
    const transport::PieceRun run(*core_.lane.get());
    const uint64_t end =
        core_.lane.moved_for_peer() + std::max(transport::kPollBytes, core_.lane->run_bytes);
    while (Wqe* wqe = granted_.front()) {
      const uint64_t before = wqe->pushed;
      const bool all = push_chunks(*wqe, end);
      any = any || wqe->pushed != before;
      if (!all) break;
      granted_.remove(wqe);
      pushed.push_back(wqe);
    }
  }
  while (Wqe* wqe = pushed.pop_front()) {
    if (wqe->preview) {
      put_back(*wqe);
      continue;
    }
    // with chunks pulled by the receiver, or delivery asked for, `finished` tells the end
    if (wqe->pushed == wqe->granted && !wqe->delivery) end(*wqe, Errc::ok);
  }
  return any;
}

void OfferSender::on_finished(const SoundHead& head) noexcept {
  Wqe* wqe = find(head.word());
  if (wqe == nullptr) {
    core_.break_protocol("an end to nothing that was offered");
    return;
  }
  if (wqe->linked()) granted_.remove(wqe);  // pulled before we came to push
  end(*wqe, Errc::ok);
}

void OfferSender::end(Wqe& wqe, Errc err) noexcept {
  const uint32_t slot = wqe.id & kSlotMask;
  assert(offers_[slot] == &wqe && core_.offers_out > 0);
  offers_[slot] = nullptr;
  free_.push_back(slot);
  if (wqe.claim != wire::kNoClaim) {
    claims_used_ &= ~(1u << wqe.claim);
    // relaxed: nothing more is taken; who has taken a chunk before is waited for at the gate
    core_.lane->claims_out[wqe.claim].store(0, std::memory_order_relaxed);
  }
  --core_.offers_out;
  wqe.error = err;
  pending_.complete(wqe);
}

void OfferSender::end_all(Errc why) noexcept {
  while (granted_.pop_front() != nullptr) {
  }
  for (Wqe*& offer : offers_) {
    if (offer != nullptr) end(*offer, offer->error != Errc::ok ? offer->error : why);
  }
  assert(core_.offers_out == 0);
}

}  // namespace aperture::qp
