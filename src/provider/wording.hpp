// Refusals of accesses in libfabric's words: fi_mr(3), fi_rma(3). Constant; any thread.
#pragma once

#include "protect/wording.hpp"

namespace aperture::provider {

extern const protect::Wording kFabricWording;

}  // namespace aperture::provider
