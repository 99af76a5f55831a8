// What the attributes of transmit and receive contexts may ask, wherever they are given: endpoints,
// contexts of scalable ones, and shared contexts. man 3 fi_endpoint.
#pragma once

#include <rdma/fi_endpoint.h>

#include "provider/ep.hpp"

namespace aperture::provider {

// What an attribute that is 0 stands for.
template <typename T>
constexpr T or_else(T value, T otherwise) noexcept {
  return value != 0 ? value : otherwise;
}

// 0 or the refusal of what goes beyond all that is offered; null: nothing is asked.
int check_limits(const char* call, const fi_tx_attr* attr) noexcept;
int check_limits(const char* call, const fi_rx_attr* attr) noexcept;

// Default operation flags (op_flags) of that side, FI_TRANSMIT or FI_RECV: 0 or the refusal.
int check_op_flags(const char* call, const EpBody& body, uint64_t side, uint64_t flags) noexcept;

}  // namespace aperture::provider
