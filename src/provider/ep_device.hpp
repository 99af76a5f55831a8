// The calls of endpoints with FI_HMEM, whose buffers may lie in a device: see ep_device.cpp.
// man 3 fi_mr, "FI_MR_HMEM".
#pragma once

#include "provider/ep.hpp"

namespace aperture::provider {

// The buffers of that endpoint's calls may lie in a device.
inline bool reaches_devices(const Ep& ep) noexcept {
  return ep.body->domain->region_rules.hmem;
}
fi_ops_msg device_msg_ops() noexcept;
fi_ops_tagged device_tagged_ops() noexcept;
fi_ops_rma device_rma_ops() noexcept;
void put_device_atomics(
    fi_ops_atomic& ops) noexcept;  // ep_device_atomic.cpp: into those of the host

// What the calls of such endpoints become where all buffers are the host's.
fi_ops_msg& msg_ops_of_host(const Ep& ep) noexcept;        // ep_msg.cpp
fi_ops_tagged& tagged_ops_of_host(const Ep& ep) noexcept;  // ep_tagged.cpp
fi_ops_rma& rma_ops_of_host(const Ep& ep) noexcept;        // ep_rma.cpp
fi_ops_atomic& atomic_ops_of_host(const Ep& ep) noexcept;  // ep_atomic.cpp

}  // namespace aperture::provider
