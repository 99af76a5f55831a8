// Whether the other side of a lane, the target of a direct access, looks at its rings.
//
// Holds what an initiator has learnt of that: whether the target is away, the clock of a stalled
// head, and what claims cost. A target is away while it does not look at its rings. It is asked for
// by its own word first (asleep, or its count of polls stands still after it has let us wait). One
// that has let us wait kSurelyAway times more than it has come by itself is not waited for any
// more: it looks at its memory and not at its queues, and is tried again every kTryAgainAfter
// accesses, for a small share of the time that they took: it may be busy with copies of its own. A
// large access tries it at once if it has polled like one who does nothing else: two cores move as
// much twice as fast as one that copies alone.
// Guarded by the engine's lock.
#pragma once

#include <cstdint>

#include "transport/lane_end.hpp"
#include "transport/tuning.hpp"

namespace aperture::transport {

class Target {
 public:
  explicit Target(LaneEnd& lane) noexcept : lane_(lane) {}

  // A new lane is attached: nothing that was learnt of the last one holds.
  void begin() noexcept;

  // For an access of so many bytes.
  bool is_away(uint64_t bytes) noexcept {
    const ring::ChannelTx& tx = lane_->request_tx;
    if (away_times_ < kSurelyAway) [[likely]] {
      if (away_ && tx.consumer_polls() != away_polls_) {
        away_ = false;
        stall_since_ = 0;
      }
      return away_ || !tx.consumer_hot();
    }
    const bool polls = bytes >= kClaimChunk && polls_hard();
    if (!polls && ++away_times_ <= kTryAgainAfter) return true;
    try_again();
    return false;
  }
  // It is surely there: no access of ours has had to wait for it of late.
  bool surely_polls() const noexcept {
    return !away_ && away_times_ == 0 && lane_->request_tx.consumer_hot();
  }
  // It is not away as far as is known without looking closer: is_away() would say no.
  [[gnu::always_inline]] bool seems_there() const noexcept {
    return !away_ && away_times_ < kSurelyAway && lane_->request_tx.consumer_hot();
  }
  // It was when we last claimed, and has not polled since.
  bool is_known_away() noexcept {
    if (away_ && away_times_ < kSurelyAway && lane_->request_tx.consumer_polls() != away_polls_) {
      is_there();
    }
    return away_;
  }
  // It says that it is executing the request there, or has. relaxed: a hint; claims ask again
  bool is_at(uint64_t pos) const noexcept {
    return lane_->request_tx.words().executing.load(std::memory_order_relaxed) > pos;
  }

  // The head of the request ring, a piece of len bytes at `pos`, has stood there for longer than a
  // claim costs several times over, and its owner has not been seen to poll meanwhile: it posts or
  // computes for some microseconds and is not away. To be asked again and again; the first call
  // starts the clock.
  bool has_stalled(uint64_t pos, uint64_t len) noexcept;
  // It is at it.
  void restart_clock() noexcept { stall_since_ = 0; }
  // Wakes one that has stopped polling without going to sleep: every kRingEveryNs at most, and more
  // seldom the longer the head has stood.
  void ring_stalled() noexcept;

  // --- for OneSided, which claims ---

  // What a claim has cost (its heavy barrier above all, which interrupts the owner's core), and
  // whether the owner had come to the request by itself.
  void learn_claim(uint64_t cost, bool ours) noexcept;
  // It had: no access has to wait for it.
  void has_come() noexcept {
    is_there();
    away_times_ = 0;
  }
  // It executes by itself what was claimed after all.
  void is_there() noexcept {
    stall_since_ = 0;
    away_ = false;
  }
  // What it should have executed was done for it.
  void has_let_wait() noexcept;

 private:
  // Since it was last asked.
  bool polls_hard() noexcept;
  void try_again() noexcept;

  LaneEnd& lane_;
  bool away_ = false;        // it did not execute when we last waited for it
  uint32_t away_times_ = 0;  // so often it had to be done directly, less what it came to by itself
  uint64_t away_polls_ = 0;  // its count of polls then
  uint64_t stall_pos_ = 0;
  uint64_t stall_since_ = 0;  // ticks; 0: not stalled
  uint64_t stall_polls_ = 0;  // its count of polls then
  uint64_t claim_cost_ = 0;   // ticks, a moving average; 0: none was made
  uint32_t contested_ = 0;    // claims that the owner had come to first, less those it had not
  uint64_t polls_seen_ = 0;   // its count of polls at the last large access
  uint64_t tried_at_ = 0;     // ticks when one that is surely away was last tried
  uint64_t try_ticks_ = 0;    // so long it is waited for meanwhile, at least
  uint64_t rung_at_ = 0;      // ticks when a stalled head last rang
};

}  // namespace aperture::transport
