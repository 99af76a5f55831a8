// The numbers that the data path was tuned with. Each says what it trades.
#pragma once

#include <cstdint>

#include "link/lane.hpp"

namespace aperture::transport {

using link::kPieceBytes;

// Up to here a message goes through the request byte ring at once; above it is offered first, so
// that it is copied straight into the posted buffer and never twice.
inline constexpr uint64_t kEagerBytes = 16 * 1024;

// One claim covers this much of an offered message, or of requests in the ring; also the unit of a
// pull by CMA.
inline constexpr uint64_t kClaimChunk = 64 * 1024;

// A read is asked for in requests of a claim's size, so that a target that stops in the midst of it
// holds up no more than one, and so many bytes ahead of what has come: more than the response ring
// takes in a poll or two. The rest can still go directly.
inline constexpr uint64_t kReadAheadBytes = 4 * kClaimChunk;

// How long the head of a ring may stand still, at least, before its initiator reaches out itself:
// longer than so many claims cost, as measured on this lane. Twice as long for each claim of late
// that the owner had come to by itself, up to kContestedAtMost times and the upper bound.
inline constexpr uint64_t kStallNs = 2'000;
inline constexpr uint64_t kClaimsPatience = 4;
inline constexpr uint32_t kContestedAtMost = 6;
inline constexpr uint64_t kStallAtMostNs = 1'000'000;
// What a claim is taken to cost at most: a barrier that took longer was a lost core.
inline constexpr uint64_t kClaimCostAtMostNs = 20'000;

// A target that does not get to its next request in so long has its doorbell rung: longer than one
// poll of small messages between distant cores, since a ring takes a core from a target that is at
// it. But not more often than this: its control thread goes on by itself once it is awake.
inline constexpr uint64_t kRingAfterNs = 50'000;
inline constexpr uint64_t kRingEveryNs = 1'000'000;
// One that does not get to it then is rung for again after twice the time, up to this.
inline constexpr uint64_t kRingAtLeastEveryNs = 64'000'000;

// How long a receiver waits for a sender that pushes nothing before it pulls. Longer than a sender
// that polls ever takes for a round of pieces: two cores copy four times as fast as CMA.
inline constexpr uint64_t kPullStallNs = 20'000;

// A direct copy goes on for this much in one call before the engine looks at other things.
inline constexpr uint64_t kDirectBudget = 8 * 1024 * 1024;

// A target that has let us wait so much oftener than it came by itself is surely away: waiting for
// it is given up at once. It is tried again after so many accesses, for at most this share of the
// time that they took. Each try costs a stall, and the target's control thread lingers beside it
// for as long as some forty copies take.
inline constexpr uint32_t kSurelyAway = 4;
inline constexpr uint32_t kTryAgainAfter = 1024;
inline constexpr uint64_t kTryShare = 32;

// One that is surely away is not, for a copy of a claim's size or more, if it has polled so often
// since the last of those: some microseconds of polls in vain, where the copy takes as long.
inline constexpr uint64_t kPollsInACopy = 64;

// What only time moves (the peer's view of our polls, claims, timers) is looked at every so many
// polls, a power of two.
inline constexpr uint64_t kLookEvery = 16;

// Messages executed from one ring in one poll.
inline constexpr int kPollBudget = 64;
// And so many bytes taken from or put into the rings behind it, or pulled: to copy them takes about
// as long as kPollBudget short messages, so that a peer that moves much has no more of a poll than
// one that sends short messages.
inline constexpr uint64_t kPollBytes = 32 * 1024;
// So many polls take all that one ring and the bytes behind it can hold.
inline constexpr int kPollsOfFullRing = 512 * 1024 / kPollBytes + 1;

// So many cells ahead are fetched while a batch of small messages is worked on: a line takes as
// long to come from the other core as several messages take.
inline constexpr uint32_t kPrefetchCells = 6;

// Small requests that take longer each, one after the other, have come no faster than lines go from
// core to core; then their responder rests so long (pace.hpp).
inline constexpr uint64_t kChasingNs = 50;
inline constexpr uint64_t kRestNs = 3'000;

// What nobody waits for is looked after every so many polls, a power of two: each look takes a
// cache line away from the owner, and what the owner stores next has to wait for it.
inline constexpr uint64_t kSeldomPolls = 256;

// Acknowledge in the middle of a batch once this many cells are executed (a quarter of a ring).
inline constexpr uint64_t kAckCells = 64;

// A new lane's publications are fenced until so many in a row met a consumer that did not sleep. A
// fence costs the producer some 8 ns, its absence each sleeper a heavy barrier of a microsecond or
// more. From so many doorbells on they are fenced again.
inline constexpr uint32_t kFencedSends = 512;
inline constexpr uint32_t kRingsToFence = 4;

// Sleeps in which acknowledgements are heard too, once somebody has posted while asleep and waits
// for one.
inline constexpr uint32_t kLightSleeps = 4;

}  // namespace aperture::transport
