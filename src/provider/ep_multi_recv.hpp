// Multi-receive buffers at the door: see ep_multi_recv.cpp. man 3 fi_msg, fi_endpoint.
#pragma once

#include "provider/post_message.hpp"

namespace aperture::provider {

// A receive with FI_MULTI_RECV, by flag or by default.
ssize_t recv_many(Ep& ep, const char* call, const Message& m, bool completion) noexcept;
// Fills such a receive; 0 or the refusal.
ssize_t make_multi_receive(const Ep& ep, const char* call, const Message& m, bool completion,
                           qp::RecvWr& wr) noexcept;
// The calls of an endpoint whose receives have FI_MULTI_RECV by default.
const fi_ops_msg& multi_recv_ops() noexcept;
// FI_OPT_MIN_MULTI_RECV.
int set_min_multi_recv(EpBody& body, const void* value, size_t len) noexcept;

}  // namespace aperture::provider
