// Fences for a consumer that sleeps often, and the end by a broken protocol: see lane_end.hpp.
#include "transport/lane_end.hpp"

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

// One ring is for both channels: its engine looks at all of them.
void LaneEnd::ring_consumer() noexcept {
  lane_->request_tx.note_rung();
  lane_->response_tx.note_rung();
  lane_->ring_doorbell();
  fenced_ = 0;
  // a consumer that polls for long in between is only taken off its core now and then
  const uint64_t published = lane_->request_tx.cells.pos() + lane_->response_tx.cells.pos();
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
