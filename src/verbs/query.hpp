// What the device and its port can do, as the tables of functions hand it out. The caller's struct
// may be of another version: at most `length` bytes of it are written. Any thread.
#pragma once

#include <cstddef>

#include "verbs/api.hpp"

namespace aperture::verbs {

inline constexpr uint32_t kMaxCqe = 1u << 22;

// 0 or an errno.
int query_port(ibv_context* context, uint8_t port_num, ibv_port_attr* attr, size_t length) noexcept;
int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t length) noexcept;
int compat_query_port(ibv_context* context, uint8_t port_num, _compat_ibv_port_attr* attr) noexcept;
int compat_query_device(ibv_context* context, ibv_device_attr* attr) noexcept;
int query_rt_values(ibv_context* context, ibv_values_ex* values) noexcept;

}  // namespace aperture::verbs
