// What is learnt of the other side by waiting for it: see target.hpp.
#include "transport/target.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/invariant.hpp"
#include "base/ticks_in.hpp"

namespace aperture::transport {

void Target::begin() noexcept {
  is_there();
  away_times_ = contested_ = 0;
  away_polls_ = stall_pos_ = stall_polls_ = rung_at_ = claim_cost_ = 0;
  tried_at_ = try_ticks_ = polls_seen_ = 0;
}

bool Target::has_stalled(uint64_t pos, uint64_t len) noexcept {
  const uint64_t now = ticks();
  const uint64_t polls = lane_->request_tx.consumer_polls();
  if (stall_since_ == 0 || stall_pos_ != pos || stall_polls_ != polls) {
    const bool owner_came = stall_since_ != 0 && stall_pos_ != pos;
    if (owner_came && away_times_ != 0 && --away_times_ == 0) try_ticks_ = 0;
    stall_pos_ = pos;
    stall_polls_ = polls;
    stall_since_ = now;
    return false;
  }
  APERTURE_DEBUG_ASSERT(contested_ <= kContestedAtMost);  // it is shifted by that
  // a large piece takes the owner a while: at most about 2 ticks for 4 bytes
  const uint64_t limit =
      std::min(std::max(std::max(ticks_in<kStallNs>(), claim_cost_ * kClaimsPatience) << contested_,
                        try_ticks_),
               ticks_in<kStallAtMostNs>());
  return now - stall_since_ >= limit + std::min(len, kPieceBytes) / 2;
}

bool Target::polls_hard() noexcept {
  const ring::ChannelTx& tx = lane_->request_tx;
  const uint64_t polls = tx.consumer_polls();
  return polls - std::exchange(polls_seen_, polls) >= kPollsInACopy && tx.consumer_hot();
}

void Target::try_again() noexcept {
  APERTURE_DEBUG_ASSERT(away_times_ >= kSurelyAway);
  away_times_ = kSurelyAway - 1;
  const uint64_t now = ticks();
  try_ticks_ = (now - tried_at_) / kTryShare;
  tried_at_ = now;
}

void Target::has_let_wait() noexcept {
  away_ = true;
  away_polls_ = lane_->request_tx.consumer_polls();
  stall_since_ = try_ticks_ = 0;
  if (away_times_ < kSurelyAway && ++away_times_ == kSurelyAway) tried_at_ = ticks();
}

void Target::learn_claim(uint64_t cost, bool ours) noexcept {
  // one that lost its core in the middle says nothing of what a barrier costs
  cost = std::min(cost, ticks_in<kClaimCostAtMostNs>());
  claim_cost_ = claim_cost_ == 0 ? cost : (3 * claim_cost_ + cost) / 4;
  if (!ours) {
    contested_ = std::min(contested_ + 1, kContestedAtMost);
  } else if (contested_ > 0) {
    --contested_;
  }
}

void Target::ring_stalled() noexcept {
  const uint64_t now = ticks();
  if (stall_since_ != 0 && now - stall_since_ < ticks_in<kRingAfterNs>()) return;
  // of this stall: after twice the time, since an owner that has no core is not helped by it
  const bool of_this_stall = stall_since_ != 0 && rung_at_ > stall_since_;
  const uint64_t stood = of_this_stall ? rung_at_ - stall_since_ : 0;
  const uint64_t pause =
      std::clamp(stood, ticks_in<kRingEveryNs>(), ticks_in<kRingAtLeastEveryNs>());
  if (rung_at_ != 0 && now - rung_at_ < pause) return;
  link::Ringing* const all_lanes = lane_->ringing;
  if (all_lanes != nullptr && !all_lanes->rings_again(now, ticks_in<kRingEveryNs>())) return;
  rung_at_ = now;
  lane_->ring_doorbell();
}

}  // namespace aperture::transport
