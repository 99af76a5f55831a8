// Fences for a consumer that sleeps often, and the end by a broken protocol: see lane_end.hpp.
#include "transport/lane_end.hpp"

#include <algorithm>

#include "base/log.hpp"

namespace aperture::transport {

void LaneEnd::fence() noexcept {
  full_fence();
  if (++fenced_ < kFencedSends || lane_->fence_always) return;
  lane_->request_tx.promise_fences(ring::FencePromise::none);
  fences_ = false;
  rings_ = 0;
  full_fence();  // a consumer that still relies on the promise is seen asleep by what comes now
}

// One ring is for both channels, and for those of all other lanes: its engine looks at all of them.
// It is left out only if all that is marked here is of a sleep that was rung for: the consumer may
// have gone to sleep anew since it was found asleep (tests/spin/ring_once.pml).
void LaneEnd::ring_consumer(ring::ChannelTx& asleep) noexcept {
  link::Lane& lane = *lane_;
  ring::ChannelTx& other = &asleep == &lane.request_tx ? lane.response_tx : lane.request_tx;
  const uint64_t sleep = asleep.note_rung();
  const uint64_t others = other.note_rung();
  link::Ringing* const ringing = lane.ringing;
  const bool is_rung = ringing != nullptr && ringing->is_rung_for(sleep) &&
                       (others == ring::kUnnumbered || ringing->is_rung_for(others));
  if (!is_rung) {
    lane.ring_doorbell();
    if (ringing != nullptr) ringing->note_rung_for(std::max(sleep, others));
  }
  fenced_ = 0;
  // a consumer that polls for long in between is only taken off its core now and then
  const uint64_t published = lane.request_tx.cells.pos() + lane.response_tx.cells.pos();
  if (published - rung_at_ >= kFencedSends) rings_ = 0;
  rung_at_ = published;
  if (fences_ || ++rings_ < kRingsToFence) return;
  fences_ = true;
  lane_->request_tx.promise_fences(ring::FencePromise::given);
}

void LaneEnd::break_protocol(const char* what) noexcept {
  assert(lane_ != nullptr && what != nullptr);
  if (broken_) return;
  broken_ = true;
  APERTURE_WARN("%s sent %s: the connection is closed; check that both sides run the same version",
                lane_->remote.print().c_str(), what);
}

}  // namespace aperture::transport
