// Claims: who executes the RMA requests at the head of a request ring, when the owner may or may
// not be polling. No LOCK prefix and no fence on the owner's side.
//
// A claim is of a run: the first RMA request that is not executed and those that adjoin it, as many
// as the initiator likes, for one barrier. The claim word names the last of them.
//
// The owner (responder) stores `executing = position + 1` before it touches memory for an RMA
// request and then reads the claim word. The initiator stores ASK for its run, passes a heavy
// barrier and reads `executing`. So at least one sees the other:
//   - the initiator sees the owner at the first (or past it): it takes ASK back, the owner goes on;
//   - otherwise the owner can only come later, sees ASK and waits, at whichever of them: the
//     initiator stores TAKEN, copies by itself, and stores DONE with the last one that it has
//     copied, upon which the owner steps over all up to that one and executes what follows.
// Both may see each other. Then the owner takes its announcement back, unless it has begun before,
// and an initiator does not ask while an announcement stands: else each could keep the other off
// for long, since a barrier that has to interrupt the owner's core takes longer than both looks.
// What an initiator that dies has claimed is given up with all behind it, as on a device: which of
// it was copied nobody knows, and claimed before that, and told to be done, may be what the word no
// longer says. Copied again it would land on what its owner has written there since.
//
// Claims are made in order and begin with the first request that is not executed, so DONE means
// that every RMA request up to the named one has been done.
//
//   claim word   position of the last + 1 << 2 | state
//
// ClaimSide is the initiator's half; verdict() is the owner's. tests/spin/claim.pml has the model.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/barrier.hpp"
#include "ring/channel.hpp"

namespace aperture::transport {

enum class ClaimState : uint64_t { none = 0, ask = 1, taken = 2, done = 3 };
enum class ClaimVerdict : uint8_t { execute, wait, skip };

constexpr uint64_t claim_word(uint64_t pos, ClaimState state) noexcept {
  return (pos + 1) << 2 | static_cast<uint64_t>(state);
}

// Owner: may the request at pos be executed? Announces it first. fence: the initiator's heavy
// barrier does not reach us (Lane::fence_always).
inline ClaimVerdict claim_verdict(ring::ChannelWords& words, uint64_t pos, bool fence) noexcept {
  // relaxed: our own word, and ordered before the load below by the barrier pair
  const bool begun = words.executing.load(std::memory_order_relaxed) == pos + 1;
  words.executing.store(pos + 1, std::memory_order_relaxed);
  light_barrier();
  if (fence) [[unlikely]]
    full_fence();
  // SYNC POINT: rma-claim: with DONE the initiator's copy is complete
  const uint64_t word = words.claim.load(std::memory_order_acquire);
  if (word == 0) return ClaimVerdict::execute;
  const uint64_t claimed = word >> 2;
  if (claimed < pos + 1) return ClaimVerdict::execute;
  if (static_cast<ClaimState>(word & 3) == ClaimState::done) return ClaimVerdict::skip;
  // relaxed: nothing was touched
  if (!begun) words.executing.store(pos, std::memory_order_relaxed);
  return ClaimVerdict::wait;
}

class ClaimSide {
 public:
  // True: the requests from `first` to `last`, both included, are ours; finish() or retract() must
  // follow. False: the owner is at the first.
  bool begin(ring::ChannelWords& words, uint64_t first, uint64_t last) noexcept {
    // relaxed: a look ahead, which spares the owner the question and us the barrier
    if (words.executing.load(std::memory_order_relaxed) > first) return false;
    // relaxed: the heavy barrier orders it before the loads below
    words.claim.store(claim_word(last, ClaimState::ask), std::memory_order_relaxed);
    heavy_barrier();
    const bool owner_at_it = words.executing.load(std::memory_order_acquire) > first ||
                             words.consumed.load(std::memory_order_acquire) > first;
    // SYNC POINT: rma-claim: back to what stood there, or ours
    words.claim.store(owner_at_it ? last_ : claim_word(last, ClaimState::taken),
                      std::memory_order_release);
    return !owner_at_it;
  }
  // Gives all of them back to the owner, nothing or part of the first done (copying it again is
  // harmless).
  void retract(ring::ChannelWords& words) noexcept {
    words.claim.store(last_, std::memory_order_release);
  }
  // Those up to pos are done, and what was claimed behind it is given back.
  void finish(ring::ChannelWords& words, uint64_t pos) noexcept {
    last_ = claim_word(pos, ClaimState::done);
    // SYNC POINT: rma-claim: the copy is visible to the owner that sees DONE
    words.claim.store(last_, std::memory_order_release);
  }

 private:
  uint64_t last_ = 0;  // the word of the last claim that was finished
};

}  // namespace aperture::transport
