// Datagram endpoints (FI_EP_DGRAM) at the door: see ep_dgram.cpp. man 3 fi_endpoint.
#pragma once

#include "provider/ep.hpp"

namespace aperture::provider {

// The calls of one that is enabled; they look at descriptors themselves.
const fi_ops_msg& datagram_msg_ops() noexcept;
// Its UDP port. 0 or a refusal, logged.
int enable_unreliable(EpBody& body);

}  // namespace aperture::provider
