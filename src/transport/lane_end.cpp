// What a lane's end says when its peer has broken the protocol: see lane_end.hpp.
#include "transport/lane_end.hpp"

#include "base/log.hpp"

namespace aperture::transport {

void LaneEnd::break_protocol(const char* what) noexcept {
  assert(lane_ != nullptr && what != nullptr);
  if (broken_) return;
  broken_ = true;
  APERTURE_WARN("%s sent %s: the connection is closed; check that both sides run the same version",
                lane_->remote.print().c_str(), what);
}

}  // namespace aperture::transport
