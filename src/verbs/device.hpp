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
// While one stands, this thread's ibv_get_device_list() is the real library's: for its functions
// that look into each device of the list.
class RealDevicesAlone {
 public:
  RealDevicesAlone() noexcept;
  ~RealDevicesAlone();
  RealDevicesAlone(const RealDevicesAlone&) = delete;
  RealDevicesAlone& operator=(const RealDevicesAlone&) = delete;
};

bool are_real_devices_alone() noexcept;

inline bool is_ours(const ibv_context* context) noexcept {
  return is_ours(context->device);
}

}  // namespace aperture::verbs
