// Rendezvous: messages too large for the ring are offered, and move once the receiver knows where
// to.
//
//   sender                                  receiver
//   send_offer {id, len, address, claim} ->  matched: grant {id, receive id, wanted}
//   data {receive id, offset, place} ... ->  copies each piece into the posted buffer
//                                            everything there: done; `finished` if the sender waits
//
// A grant may be for a preview: its bytes are pushed, and the message is on offer as before.
//
// Both cores copy, pipelined through the response byte ring. The message is cut in chunks of
// kClaimChunk; with a claim word in shared memory, whoever takes the next number from it moves that
// chunk: the sender by pushing it, or the receiver by CMA when nothing has come for kPullStallNs.
// The sender's buffer is free when all chunks are accounted for: pushed by itself, or `finished`.
//
// A claim word is the message's id and the number of its next chunk: a receiver that still looks at
// the word of a message that has ended finds another id there, and takes nothing.
//
// Here is what the two halves agree on: OfferSender (offer_sender.hpp), OfferReceiver
// (offer_receiver.hpp).
#pragma once

#include <cstdint>

#include "transport/tuning.hpp"

namespace aperture::qp {

constexpr uint64_t claim_base(uint32_t id) noexcept {
  return uint64_t{id} << 32;
}
constexpr uint64_t chunk_number(uint64_t word) noexcept {
  return static_cast<uint32_t>(word);
}
constexpr uint64_t chunks_of(uint64_t len) noexcept {
  return (len + transport::kClaimChunk - 1) / transport::kClaimChunk;
}

}  // namespace aperture::qp
