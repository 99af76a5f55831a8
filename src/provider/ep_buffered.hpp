// Buffered receives at the door: see ep_buffered.cpp. man 3 fi_msg, fi_tagged, fi_endpoint.
#pragma once

#include "provider/ep.hpp"

namespace aperture::provider {

// As an endpoint is opened: whether its messages are shown, and how long they may be. 0 or the
// refusal.
int set_buffered(Ep& ep, const fi_info& info) noexcept;
// The calls of such an endpoint.
const fi_ops_msg& buffered_msg_ops() noexcept;
const fi_ops_tagged& buffered_tagged_ops() noexcept;
// FI_OPT_BUFFERED_LIMIT and FI_OPT_BUFFERED_MIN.
int set_buffered_limit(EpBody& body, const void* value, size_t len) noexcept;
int set_buffered_min(EpBody& body, const void* value, size_t len) noexcept;

}  // namespace aperture::provider
