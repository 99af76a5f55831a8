// Offered messages, as their receiver sees them: see offer_receiver.hpp.
#include "qp/offer_receiver.hpp"

#include <array>
#include <new>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/ticks_in.hpp"
#include "transport/payload.hpp"

namespace aperture::qp {

using wire::Head;
using wire::Op;
using wire::SoundHead;

Status OfferReceiver::begin(const Arrival& offer, const Receive& receive) noexcept {
  assert(offer.where == Arrival::Where::offered && receive.want <= offer.len);
  assert(!receive.preview || receive.want != 0);
  if (core_.state != QpState::ready) return Errc::peer_lost;
  assert(core_.offers_in > 0);
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
  in.delivery = offer.delivery && !receive.preview;
  in.offer_id = offer.offer_id;
  in.claim = offer.offer_claim < link::Lane::kClaims && core_.lane->claims_in != nullptr &&
                     !receive.preview && offer.len <= kMaxMessageBytes
                 ? offer.offer_claim
                 : wire::kNoClaim;
  in.address = offer.offer_address;  // in the peer, whose memory the kernel bounds
  ++core_.incoming;
  core_.busy = true;
  if (receive.want == 0) {
    in.pulled = 1;  // nothing will be pushed: the sender waits for `finished`
    end(index, Errc::ok);
    return {};
  }
  replies_.send(Head::make(Op::grant, receive.preview ? wire::kPreview : 0, 0, offer.offer_id),
                {uint64_t{generation} << 32 | index, receive.want});
  return {};
}

void OfferReceiver::drop(uint32_t offer_id) noexcept {
  if (core_.state != QpState::ready) return;
  replies_.send(Head::make(Op::finished, 0, 0, offer_id));
  assert(core_.offers_in > 0);
  --core_.offers_in;
}

void OfferReceiver::on_data(const SoundHead& head) noexcept {
  ring::ChannelRx& rx = core_.lane->response_rx;
  const auto f = wire::load_fields<wire::DataFields>(rx.cells.body());
  const uint64_t id = head.word().unchecked();  // looked up
  const auto index = static_cast<uint32_t>(id);
  transport::BytesIn bytes =
      core_.lane.payload().take_piece(rx, f.byte_pos, f.len, core_.lane->piece_bytes);
  if (!bytes || index >= incoming_.size() || !incoming_[index].used ||
      incoming_[index].generation != id >> 32) {
    core_.break_protocol("payload that was not granted");
    return;
  }
  Incoming& in = incoming_[index];
  const uint64_t want = in.receive.want;
  uint64_t offset = 0;
  if (!f.offset.bounded(want, offset) || bytes.len > want - offset || bytes.len > want - in.got) {
    core_.break_protocol("more payload than was granted");
    return;
  }
  const bool placed = take_payload(bytes, in.receive.iov, in.receive.iov_count, offset);
  core_.lane.payload().done_with(rx, bytes);
  if (!placed) {
    end(index, Errc::bad_buffer);
    core_.break_protocol("a message whose buffer is not there");  // or its sender waits for ever
    return;
  }
  // Chunks are numbered in their order, and what is sent of them comes in order: all before is
  // there but for what is left of ours.
  const uint64_t end_of_run = offset + bytes.len;
  const uint64_t through = in.chunk_left != 0 ? std::min(in.chunk_at, end_of_run) : end_of_run;
  in.got += bytes.len;
  last_data_ = ticks();
  if (in.got == want) {
    end(index, Errc::ok);
  } else if (in.receive.told != nullptr) {
    in.receive.told->on_arrived(through);
  }
}

void OfferReceiver::end(uint32_t index, Errc err) noexcept {
  Incoming& in = incoming_[index];
  assert(in.used && core_.incoming > 0);
  in.used = false;
  --core_.incoming;
  void* cookie = in.receive.cookie;
  if (err == Errc::ok && (in.pulled > 0 || in.delivery)) {
    replies_.send(Head::make(Op::finished, 0, 0, in.offer_id));
  }
  if (!in.receive.preview) {
    assert(core_.offers_in > 0);
    --core_.offers_in;
  }
  core_.port.sink->on_received(core_.qp, cookie, err);
}

void OfferReceiver::end_all(Errc why) noexcept {
  for (uint32_t i = 0; i < incoming_.size(); ++i) {
    if (incoming_[i].used) end(i, why);
  }
  assert(core_.incoming == 0);
}

bool OfferReceiver::could_pull() const noexcept {
  return core_.one_sided.may_pull() &&
         std::any_of(incoming_.begin(), incoming_.end(),
                     [](const Incoming& in) { return in.can_be_pulled(); });
}

void OfferReceiver::pull_stalled() noexcept {
  const uint64_t limit = ticks_in<transport::kPullStallNs>();
  const uint64_t now = ticks();
  const auto count = static_cast<uint32_t>(incoming_.size());
  bool pulled = false;  // one pull is enough for a poll; the next begins behind it
  const uint32_t first = next_pull_;
  for (uint32_t n = 0; n < count; ++n) {
    const uint32_t i = (first + n) % count;
    Incoming& in = incoming_[i];
    if (!in.can_be_pulled()) continue;
    if (in.stalled_since == 0) in.stalled_since = now;
    // a sender that pushes anything at all is there: this message will have its turn
    if (pulled || now - std::max(in.stalled_since, last_data_) < limit) continue;
    pulled = true;
    next_pull_ = i + 1;
    pull_piece(in, i);
    if (core_.incoming == 0) return;
  }
}

// The number of a chunk that is ours from now on. False: the sender pushes, or has pushed, the
// rest.
bool OfferReceiver::take_chunk_number(Incoming& in, uint64_t& chunk) noexcept {
  std::atomic<uint64_t>& word = core_.lane->claims_in[in.claim];
  // relaxed, both: as in OfferSender::next_chunk()
  uint64_t seen = word.load(std::memory_order_relaxed);
  do {
    if (seen >> 32 != in.offer_id) return false;
  } while (!word.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed));
  chunk = chunk_number(seen);
  return chunk < chunks_of(in.receive.want);
}

// A piece of a chunk directly from the sender's buffer. No key is asked for: the sender offered it.
// It has it back when its end of the lane is over: the gate is shut then, and waits for us.
void OfferReceiver::pull_piece(Incoming& in, uint32_t index) noexcept {
  transport::OneSided& path = core_.one_sided;
  if (!path.may_pull() || !path.has_slot() || !protect::PeerKeyView::can_pin()) return;
  if (path.is_dormant()) {
    path.ask_to_wake([](std::byte* body) { wire::store(body, Head::make(Op::wake, 0, 0, 0)); });
    return;
  }
  const uint64_t want = in.receive.want;
  if (in.chunk_left == 0) {
    uint64_t chunk = 0;
    if (!take_chunk_number(in, chunk)) {
      in.claim = wire::kNoClaim;
      return;
    }
    in.chunk_at = chunk * transport::kClaimChunk;
    in.chunk_left = std::min(want - in.chunk_at, transport::kClaimChunk);
  }
  std::array<iovec, kIovLimit> local;
  size_t count = 0;
  const uint64_t len = std::min(in.chunk_left, transport::kPollBytes);
  each_iov_piece(in.receive.iov, in.receive.iov_count, in.chunk_at, len,
                 [&](std::byte* piece, size_t n) {
                   local[count++] = {piece, n};
                 });
  protect::PullAsk ask{in.address + in.chunk_at, local.data(), count, len};
  const protect::DirectResult r = path.pull(ask);
  // Kept out for now: the slot is dormant, or was a moment ago; another permit is on its way; the
  // kernel is short of memory; a close has cut it short. What is left of the chunk stays ours. Kept
  // out for good: the connection is about to end.
  if (r.outcome == protect::DirectResult::Outcome::through_ring) return;
  if (r.outcome != protect::DirectResult::Outcome::done) {
    // claimed and not to be had: the message cannot be completed any more
    APERTURE_WARN(
        "reading a message from %s failed in its middle; its sender has gone or has freed the "
        "buffer too early",
        core_.remote.print().c_str());
    end(index, Errc::peer_lost);
    core_.break_protocol("a message whose buffer is not there");  // or its sender waits for ever
    return;
  }
  assert(r.bytes <= in.chunk_left);
  in.chunk_at += r.bytes;
  in.chunk_left -= r.bytes;
  in.got += r.bytes;
  if (in.chunk_left == 0) ++in.pulled;
  if (in.got == want) end(index, Errc::ok);
}

}  // namespace aperture::qp
