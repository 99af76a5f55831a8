// aperture0: the ibv_device that is always in the list. It is static, so its address stays the same
// and it outlives every list; nothing is allocated before it is opened. Any thread.
#pragma once

#include "verbs/api.hpp"

namespace aperture::verbs {

inline constexpr const char* kDeviceName = "aperture0";
// What would be its character device under /dev/infiniband; path_ answers for it.
inline constexpr const char* kUverbsName = "uverbs-aperture0";

ibv_device* our_device() noexcept;

inline bool is_ours(const ibv_device* device) noexcept {
  return device == our_device();
}
inline bool is_ours(const ibv_context* context) noexcept {
  return is_ours(context->device);
}

}  // namespace aperture::verbs
