// The rarer steps of the direct path: see one_sided.hpp.
#include "transport/one_sided.hpp"

#include <utility>

#include "base/guarded_copy.hpp"
#include "base/log.hpp"

namespace aperture::transport {

void OneSided::begin() noexcept {
  assert(slot_ == nullptr);
  hint_ = {};
  gate_number_ = permitted_ = 0;
  no_slot_ = false;
  wake_asked_ = 0;
  claim_side_ = {};
  target_.begin();
}

void OneSided::end() noexcept {
  if (slot_ != nullptr) protect::SlotArray::give_back(std::exchange(slot_, nullptr));
  devices_.forget();
  gate_number_ = permitted_ = 0;
}

void OneSided::find_slot() noexcept {
  if (lane_->direct.slots != nullptr) slot_ = lane_->direct.slots->claim(lane_->direct.lane);
  no_slot_ = slot_ == nullptr;
}

void OneSided::give_up() noexcept {
  APERTURE_INFO("direct copies to %s are no longer permitted; the owner copies from now on",
                lane_->remote.print().c_str());
  lane_->direct.allowed = false;
}

Fault OneSided::side_of_fault(const iovec* local, size_t count, bool reads) noexcept {
  for (size_t i = 0; i < count; ++i) {
    if (local[i].iov_len == 0) continue;
    if (!guarded_touch(local[i].iov_base, local[i].iov_len, reads)) return Fault::here;
  }
  return Fault::there;
}

}  // namespace aperture::transport
