// aperture0: the ibv_device that is always in the list. It is static, so its address stays the same
// and it outlives every list; nothing is allocated before it is opened. Any thread.
//
// A forked child whose parent had it open has another one in its list, as if one NIC had been
// unplugged and one plugged in. So librdmacm, which keeps a context of each device for as long as
// the process lives, opens the new one instead of going on with the context that stays with the
// parent.
// The two are told apart by address and index (ibv_get_device_index); either can be opened.
#pragma once

#include <array>
#include <cstdint>

#include "base/fork_guard.hpp"
#include "verbs/api.hpp"

namespace aperture::verbs {

inline constexpr const char* kDeviceName = "aperture0";
// What would be its character device under /dev/infiniband; path_ answers for it.
inline constexpr const char* kUverbsName = "uverbs-aperture0";

// The one that is in the list.
ibv_device* our_device() noexcept;

// Provider libraries (libmlx5, libefa) look behind an ibv_device for their own fields, to find out
// whether it is theirs: they must find zeros there.
struct PaddedDevice {
  ibv_device device;
  char behind[4096];
};
// One for each generation of processes; used anew after the last.
inline constexpr size_t kDevices = 64;
extern std::array<PaddedDevice, kDevices> devices;
// Which of them is in the list.
inline size_t device_in_list() noexcept {
  return ForkRound().number() % kDevices;
}
// ibv_get_device_index() of each: far above what the kernel gives out, which counts from 0.
constexpr int index_of_device(size_t at) noexcept {
  return 0x4150'0000 + static_cast<int>(at);
}

inline bool is_ours(const ibv_device* device) noexcept {
  return reinterpret_cast<uintptr_t>(device) - reinterpret_cast<uintptr_t>(devices.data()) <
         sizeof devices;
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
