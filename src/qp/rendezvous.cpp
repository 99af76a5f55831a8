// Rendezvous: messages too large for the ring are offered, and move once the receiver knows where
// to.
//
//   sender                                  receiver
//   send_offer {id, len, address, claim} ->  matched: grant {id, receive id, wanted}
//   data {receive id, offset, place} ... ->  copies each piece into the posted buffer
//                                            everything there: done; `finished` if the sender waits
//
// Both cores copy, pipelined through the response byte ring. The message is cut in chunks of
// kClaimChunk; with a claim word in shared memory, whoever takes the next number from it moves that
// chunk: the sender by pushing it, or the receiver by CMA when nothing has come for kPullStallNs.
// The sender's buffer is free when all chunks are accounted for: pushed by itself, or `finished`.
#include <algorithm>
#include <array>
#include <cstring>

#include <sys/uio.h>

#include "base/clock.hpp"
#include "base/iov.hpp"
#include "base/log.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using wire::Head;
using wire::Op;

namespace {

constexpr uint32_t kSlotBits = 20;
constexpr uint32_t kSlotMask = (1u << kSlotBits) - 1;

// A claim word is the message's id and the number of its next chunk: a receiver that still looks at
// the word of a message that has ended finds another id there, and takes nothing.
uint64_t claim_base(uint32_t id) noexcept {
  return uint64_t{id} << 32;
}
uint64_t chunk_number(uint64_t word) noexcept {
  return static_cast<uint32_t>(word);
}

uint64_t chunks_of(uint64_t len) noexcept {
  return (len + kClaimChunk - 1) / kClaimChunk;
}

}  // namespace

// --- the sender's half ---

uint32_t Qp::take_offer_id(Wqe& wqe) noexcept {
  uint32_t slot = 0;
  try {
    if (free_offers_.empty()) {
      if (offers_.size() > kSlotMask) return 0;
      offers_.push_back(nullptr);
      free_offers_.reserve(offers_.capacity());  // giving back never allocates
      slot = static_cast<uint32_t>(offers_.size() - 1);
    } else {
      slot = free_offers_.back();
      free_offers_.pop_back();
    }
  } catch (const std::bad_alloc&) {
    return 0;
  }
  offers_[slot] = &wqe;
  offer_generation_ = (offer_generation_ + 1) & 0x7ff;
  return (offer_generation_ | 0x800) << kSlotBits | slot;  // never 0
}

Wqe* Qp::offer_by_id(uint64_t id) noexcept {
  const uint64_t slot = id & kSlotMask;
  if (slot >= offers_.size() || offers_[slot] == nullptr || offers_[slot]->id != id) return nullptr;
  return offers_[slot];
}

// False: no room now.
bool Qp::put_offer(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  const uint8_t flags =
      static_cast<uint8_t>((wqe.tagged ? wire::kTagged : 0) | (wqe.has_imm ? wire::kImm : 0) |
                           (wqe.delivery ? wire::kDelivery : 0) |
                           ((wqe.delivery & kInvalidating) != 0 ? wire::kInvalidates : 0));
  const uint32_t n_cells = wire::cells_of(Op::send_offer, flags, 0);
  if (!tx.room(n_cells)) return false;
  wqe.id = take_offer_id(wqe);
  if (wqe.id == 0) return false;
  wqe.granted_set = false;
  wqe.granted = wqe.pushed = wqe.next_chunk = wqe.chunk_at = wqe.chunk_end = 0;
  wqe.claim = wire::kNoClaim;
  const bool reachable = lane_->claims_out != nullptr && wqe.iov_count == 1 && !wqe.inject;
  if (reachable && claims_used_ != ~uint32_t{0}) {
    wqe.claim = static_cast<uint32_t>(__builtin_ctz(~claims_used_));
    claims_used_ |= 1u << wqe.claim;
    // relaxed: published with the offer
    lane_->claims_out[wqe.claim].store(claim_base(wqe.id), std::memory_order_relaxed);
  }
  const Head head = Head::make(Op::send_offer, flags, 0, wqe.tag);
  std::byte* body = tx.cells.body();
  std::memcpy(body, &head, sizeof head);
  const uint64_t address =
      wqe.claim != wire::kNoClaim ? reinterpret_cast<uint64_t>(wqe.iov[0].iov_base) : 0;
  wire::store_fields(body, wire::SendOfferFields{wqe.len, address, wqe.id, wqe.claim});
  if (wqe.has_imm) {
    std::memcpy(body + wire::kHeadBytes + sizeof(wire::SendOfferFields), &wqe.imm, sizeof wqe.imm);
  }
  tx.cells.publish(n_cells);
  ++offers_out_;
  published_request();
  return true;
}

void Qp::on_grant(const Head& head) noexcept {
  const auto f = wire::load_fields<wire::GrantFields>(lane_->response_rx.cells.body());
  Wqe* wqe = offer_by_id(head.word());
  if (wqe == nullptr || wqe->granted_set || f.len > wqe->len) {
    break_protocol("a grant for nothing that was offered");
    return;
  }
  wqe->granted_set = true;
  wqe->granted = f.len;
  wqe->receive_id = f.receive_id;
  granted_.push_back(wqe);
}

// The next chunk that is ours to push; false: none is left.
bool Qp::next_chunk(Wqe& wqe) noexcept {
  uint64_t chunk = 0;
  if (wqe.claim != wire::kNoClaim) {
    // relaxed: the number itself is all that is shared; the bytes come by `data`
    chunk = chunk_number(lane_->claims_out[wqe.claim].fetch_add(1, std::memory_order_relaxed));
  } else {
    chunk = wqe.next_chunk++;
  }
  if (chunk >= chunks_of(wqe.granted)) return false;
  wqe.chunk_at = chunk * kClaimChunk;
  wqe.chunk_end = std::min(wqe.granted, wqe.chunk_at + kClaimChunk);
  return true;
}

// True: everything that is ours to push has been pushed.
bool Qp::push_chunks(Wqe& wqe) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  for (;;) {
    // room first: a chunk that was claimed has to be pushed, nobody else will
    uint64_t pos = 0;
    if (!tx.room(2) || !tx.reserve_bytes(kPieceBytes, pos)) return false;
    if (!lane_->prepare_response_bytes()) {
      wqe.error = Errc::no_memory;
      return true;
    }
    if (wqe.chunk_at == wqe.chunk_end && !next_chunk(wqe)) return true;
    const auto n =
        static_cast<uint32_t>(std::min<uint64_t>(wqe.chunk_end - wqe.chunk_at, kPieceBytes));
    gather(tx.bytes.at(pos), wqe.iov.data(), wqe.iov_count, wqe.chunk_at, n);
    tx.bytes.commit(pos, n);
    const Head head = Head::make(Op::data, 0, 0, wqe.receive_id);
    std::memcpy(tx.cells.body(), &head, sizeof head);
    wire::store_fields(tx.cells.body(), wire::DataFields{wqe.chunk_at, pos, n});
    tx.cells.publish(1);
    published_response();
    wqe.chunk_at += n;
    wqe.pushed += n;
  }
}

bool Qp::push_offers() noexcept {
  bool any = false;
  while (Wqe* wqe = granted_.front()) {
    const uint64_t before = wqe->pushed;
    const bool all = push_chunks(*wqe);
    any = any || wqe->pushed != before;
    if (!all) break;
    granted_.remove(wqe);
    // with chunks pulled by the receiver, or delivery asked for, `finished` tells the end
    if (wqe->error != Errc::ok || (wqe->pushed == wqe->granted && !wqe->delivery)) {
      end_offer(*wqe, wqe->error);
    }
  }
  return any;
}

void Qp::on_finished(uint64_t id) noexcept {
  Wqe* wqe = offer_by_id(id);
  if (wqe == nullptr) {
    break_protocol("an end to nothing that was offered");
    return;
  }
  if (wqe->linked()) granted_.remove(wqe);  // pulled before we came to push
  end_offer(*wqe, Errc::ok);
}

void Qp::end_offer(Wqe& wqe, Errc err) noexcept {
  const uint32_t slot = wqe.id & kSlotMask;
  offers_[slot] = nullptr;
  free_offers_.push_back(slot);
  if (wqe.claim != wire::kNoClaim) claims_used_ &= ~(1u << wqe.claim);
  --offers_out_;
  wqe.error = err;
  complete(wqe);
}

// --- the receiver's half ---

Status Qp::begin_receive(const Arrival& offer, const Receive& receive) noexcept {
  if (state_ != QpState::ready) return Errc::peer_lost;
  uint32_t index = 0;
  while (index < incoming_.size() && incoming_[index].used) ++index;
  if (index == incoming_.size()) {
    try {
      incoming_.emplace_back();
    } catch (const std::bad_alloc&) {
      return Errc::no_memory;
    }
  }
  Incoming& in = incoming_[index];
  const uint32_t generation = in.generation + 1;
  in = {};
  in.used = true;
  in.generation = generation;
  in.receive = receive;
  in.delivery = offer.delivery;
  in.offer_id = offer.offer_id;
  in.claim = offer.offer_claim < link::Lane::kClaims && lane_->claims_in != nullptr
                 ? offer.offer_claim
                 : wire::kNoClaim;
  in.address = offer.offer_address;
  ++incoming_count_;
  busy_ = true;
  if (receive.want == 0) {
    in.pulled = 1;  // nothing will be pushed: the sender waits for `finished`
    finish_receive(index, Errc::ok);
    return {};
  }
  const wire::GrantFields grant{uint64_t{generation} << 32 | index, receive.want};
  reply(Head::make(Op::grant, 0, 0, offer.offer_id), &grant);
  return {};
}

void Qp::drop_offer(uint32_t offer_id) noexcept {
  if (state_ == QpState::ready) reply(Head::make(Op::finished, 0, 0, offer_id));
}

void Qp::on_data(const Head& head) noexcept {
  ring::ChannelRx& rx = lane_->response_rx;
  const auto f = wire::load_fields<wire::DataFields>(rx.cells.body());
  const auto index = static_cast<uint32_t>(head.word());
  const std::byte* from = rx.bytes.view(f.byte_pos, f.len);
  if (index >= incoming_.size() || !incoming_[index].used ||
      incoming_[index].generation != head.word() >> 32 || from == nullptr) {
    break_protocol("payload that was not granted");
    return;
  }
  Incoming& in = incoming_[index];
  const uint64_t want = in.receive.want;
  if (f.offset > want || f.len > want - f.offset || f.len > want - in.got) {
    break_protocol("more payload than was granted");
    return;
  }
  scatter(in.receive.iov, in.receive.iov_count, f.offset, from, f.len);
  rx.free_bytes_before(rx.bytes.after(f.byte_pos, f.len));
  in.got += f.len;
  last_data_ = ticks();
  if (in.got == want) finish_receive(index, Errc::ok);
}

void Qp::finish_receive(uint32_t index, Errc err) noexcept {
  Incoming& in = incoming_[index];
  in.used = false;
  --incoming_count_;
  void* cookie = in.receive.cookie;
  if (err == Errc::ok && (in.pulled > 0 || in.delivery)) {
    reply(Head::make(Op::finished, 0, 0, in.offer_id));
  }
  port_.sink->on_received(*this, cookie, err);
}

// The sender does not push: take a chunk ourselves, if it may be reached.
void Qp::pull_stalled() noexcept {
  static const uint64_t limit = ticks_from_ns(kPullStallNs);
  const uint64_t now = ticks();
  for (uint32_t i = 0; i < incoming_.size(); ++i) {
    Incoming& in = incoming_[i];
    if (!in.used || in.claim == wire::kNoClaim || in.address == 0) continue;
    if (in.stalled_since == 0) in.stalled_since = now;
    // a sender that pushes anything at all is there: this message will have its turn
    if (now - std::max(in.stalled_since, last_data_) >= limit) pull_chunk(in, i);
  }
}

// One chunk by CMA from the sender's buffer. No key is asked for: the sender offered these bytes,
// and the kernel asks whether we may reach into it.
bool Qp::pull_chunk(Incoming& in, uint32_t index) noexcept {
  const uint64_t want = in.receive.want;
  std::atomic<uint64_t>& word = lane_->claims_in[in.claim];
  // relaxed, both: as in next_chunk()
  uint64_t seen = word.load(std::memory_order_relaxed);
  do {
    if (seen >> 32 != in.offer_id) {
      in.claim = wire::kNoClaim;  // the sender has pushed everything and has gone on
      return false;
    }
  } while (!word.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed));
  const uint64_t chunk = chunk_number(seen);
  if (chunk >= chunks_of(want)) {
    in.claim = wire::kNoClaim;  // the rest is being pushed
    return false;
  }
  uint64_t offset = chunk * kClaimChunk;
  const uint64_t end = std::min(want, offset + kClaimChunk);
  while (offset < end) {
    std::array<iovec, kIovLimit> local;
    size_t count = 0;
    each_iov_piece(in.receive.iov, in.receive.iov_count, offset, end - offset,
                   [&](std::byte* piece, size_t n) {
                     local[count++] = {piece, n};
                   });
    const iovec remote{reinterpret_cast<void*>(in.address + offset), end - offset};
    const ssize_t n = ::process_vm_readv(lane_->direct.pid, local.data(), count, &remote, 1, 0);
    if (n <= 0) {
      // claimed and not to be had: the message cannot be completed any more
      APERTURE_WARN(
          "reading a message from %s failed in its middle; its sender has gone or has "
          "freed the buffer too early",
          remote_.text().c_str());
      finish_receive(index, Errc::peer_lost);
      break_protocol("a message whose buffer is not there");  // or its sender would wait for ever
      return false;
    }
    offset += static_cast<uint64_t>(n);
  }
  ++in.pulled;
  in.got += end - chunk * kClaimChunk;
  if (in.got == want) finish_receive(index, Errc::ok);
  return true;
}

// --- responses that wait for room ---

bool Qp::put_response(const Head& head, const wire::GrantFields* grant) noexcept {
  ring::ChannelTx& tx = lane_->response_tx;
  if (!tx.room(1)) return false;
  std::memcpy(tx.cells.body(), &head, sizeof head);
  if (grant != nullptr) wire::store_fields(tx.cells.body(), *grant);
  tx.cells.publish(1);
  published_response();
  return true;
}

void Qp::reply(const Head& head, const wire::GrantFields* grant) noexcept {
  if (replies_.empty() && put_response(head, grant)) return;
  busy_ = true;
  try {
    replies_.push_back({head, grant != nullptr ? *grant : wire::GrantFields{}});
  } catch (const std::bad_alloc&) {
    break_protocol("so much that memory ran out for the answers");
  }
}

bool Qp::flush_replies() noexcept {
  size_t sent = 0;
  while (sent < replies_.size()) {
    const Reply& r = replies_[sent];
    const bool grant = static_cast<Op>(r.head.op) == Op::grant;
    if (!put_response(r.head, grant ? &r.grant : nullptr)) break;
    ++sent;
  }
  replies_.erase(replies_.begin(), replies_.begin() + static_cast<std::ptrdiff_t>(sent));
  return sent > 0;
}

void Qp::set_pressure(bool on) noexcept {
  if (state_ == QpState::ready) reply(Head::make(Op::pressure, 0, 0, on ? 1 : 0));
}

}  // namespace aperture::qp
