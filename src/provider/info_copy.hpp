// Copies of fi_info structures: a passive endpoint keeps one, and each connection request hands one
// out. No state, any thread.
#pragma once

#include "provider/info_memory.hpp"

namespace aperture::provider {

// What our headers know of the first structure of the list; without addresses, handle and nic. By
// exception std::bad_alloc.
InfoPtr copy_info(const fi_info& info);

}  // namespace aperture::provider
