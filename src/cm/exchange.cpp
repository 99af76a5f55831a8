// See exchange.hpp.
#include "cm/exchange.hpp"

#include <cassert>

#include "base/log.hpp"

namespace aperture::cm {

void Exchange::break_off() noexcept {
  assert(core_.binding.remote());  // whoever says something has been asked, or has asked
  APERTURE_WARN("rdma_cm: %s says what makes no sense now: the connection ends",
                core_.binding.remote()->print().c_str());
  core_.talk.lose();
}

}  // namespace aperture::cm
