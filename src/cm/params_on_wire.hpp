// How an id's Params travel in the messages of connection managers, and what the other side makes
// of them.
//
// The numbers of a peer become plain here and nowhere else in cm/: their ranges were checked by the
// codec, and cm/ itself uses none of them. They go to the application, and through it to a queue
// pair, which checks them as it checks what the application made up. No state, any thread.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "cm/event.hpp"

namespace aperture::cm {

// As many bytes as the message carries, whatever the sender filled: rdma_connect(3).
template <typename Message>
Params params_of(const Message& message) noexcept {
  Params p;
  if constexpr (requires { message.qpn; }) {
    p.qpn = message.qpn.unchecked();
    p.ece = {message.ece.vendor.unchecked(), message.ece.attributes.unchecked()};
  }
  if constexpr (requires { message.qkey; }) p.qkey = message.qkey.unchecked();
  if constexpr (requires { message.flow_control; }) {
    // what the one side starts, the other one answers
    p.responder_resources = message.initiator_depth.unchecked();
    p.initiator_depth = message.responder_resources.unchecked();
    p.flow_control = message.flow_control;
    p.rnr_retry_count = message.rnr_retry_count.unchecked();
    p.srq = message.srq;
  }
  if constexpr (requires { message.retry_count; }) p.retry_count = message.retry_count.unchecked();
  p.data_bytes = static_cast<uint8_t>(message.data.size());
  std::copy(message.data.begin(), message.data.end(), p.data.begin());
  return p;
}

// False: it is more than this message carries.
template <size_t N>
bool copy_data(std::span<const uint8_t> from, std::array<uint8_t, N>& to) noexcept {
  if (from.size() > N) return false;
  std::copy(from.begin(), from.end(), to.begin());
  return true;
}

// Fills a Req or a Rep but for its private data.
template <typename Message>
void put(const Params& p, Message& message) noexcept {
  message.qpn = Wild(p.qpn);
  message.ece = on_wire(p.ece);
  message.responder_resources = Wild(p.responder_resources);
  message.initiator_depth = Wild(p.initiator_depth);
  message.flow_control = p.flow_control;
  if constexpr (requires { message.retry_count; }) {
    message.retry_count = Wild(std::min(p.retry_count, wire::kMaxRetries));
  }
  message.rnr_retry_count = Wild(std::min(p.rnr_retry_count, wire::kMaxRetries));
  message.srq = p.srq;
}

}  // namespace aperture::cm
