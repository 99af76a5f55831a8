// Multi-receive buffers at the door: see ep_multi_recv.cpp. man 3 fi_msg, fi_endpoint.
#pragma once

#include "provider/post_message.hpp"

namespace aperture::provider {

// A receive with FI_MULTI_RECV, by flag or by default.
ssize_t recv_many(Ep& ep, const char* call, const Message& m, bool completion) noexcept;
// Fills such a receive; 0 or the refusal.
ssize_t make_multi_receive(const Ep& ep, const char* call, const Message& m, bool completion,
                           qp::RecvWr& wr) noexcept;
// The capability that it needs: FI_MULTI_RECV, or for tagged ones FI_TAGGED_MULTI_RECV.
constexpr uint64_t multi_recv_cap(bool tagged) noexcept {
  return tagged ? kTaggedMultiRecv : FI_MULTI_RECV;
}
// Receives of that kind have it by default.
inline bool receives_many(const Ep& ep, bool tagged) noexcept {
  return (ep.rx_flags & FI_MULTI_RECV) != 0 && (ep.body->rx_caps & multi_recv_cap(tagged)) != 0;
}
// The calls of an endpoint whose receives do.
const fi_ops_msg& multi_recv_ops() noexcept;
const fi_ops_tagged& tagged_multi_recv_ops() noexcept;
// FI_OPT_MIN_MULTI_RECV.
int set_min_multi_recv(EpBody& body, const void* value, size_t len) noexcept;

}  // namespace aperture::provider
