// The device list: ibv_get_device_list(3), ibv_get_device_name(3), ibv_get_device_guid(3),
// ibv_get_device_index(3).
//
// The list is the one malloc block that the real library made, with our device at its end: programs
// that free() it themselves and programs that hand it to the real library both do no harm.
#include "verbs/device.hpp"

#include <pthread.h>

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/per_process.hpp"
#include "nic/host_identity.hpp"
#include "verbs/entry.hpp"
#include "verbs/path_table.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

void fill(ibv_device& device) noexcept {
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  const auto put = [](auto& to, const char* text) { std::snprintf(to, sizeof to, "%s", text); };
  put(device.name, kDeviceName);
  put(device.dev_name, kUverbsName);
  put(device.dev_path, "/sys/class/infiniband_verbs/uverbs-aperture0");
  put(device.ibdev_path, "/sys/class/infiniband/aperture0");
}

// The real library makes its list under a lock of its own, which would stay taken for ever in a
// child that was forked meanwhile.
constinit std::mutex real_list_mutex;

// After path_fds.cpp's, so that this one is taken before the one that may be taken within.
[[gnu::constructor(202)]] void hold_real_list_across_forks() noexcept {
  (void)::pthread_atfork([] { real_list_mutex.lock(); }, [] { real_list_mutex.unlock(); },
                         [] { real_list_mutex.unlock(); });
}

constinit thread_local unsigned real_devices_alone = 0;  // how many of them stand

}  // namespace

std::array<PaddedDevice, kDevices> devices;

ibv_device* our_device() noexcept {
  static constinit std::array<FoundOnce<bool>, kDevices> filled;
  const size_t at = device_in_list();
  filled[at].get([at] {
    fill(devices[at].device);
    return true;
  });
  return &devices[at].device;
}

RealDevicesAlone::RealDevicesAlone() noexcept {
  ++real_devices_alone;
}

bool are_real_devices_alone() noexcept {
  return real_devices_alone != 0;
}

RealDevicesAlone::~RealDevicesAlone() {
  assert(real_devices_alone != 0);
  --real_devices_alone;
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

// By which `aperture run` knows this library from the real one.
extern "C" [[gnu::visibility("default")]] const char aperture_verbs_door[];
extern "C" const char aperture_verbs_door[] = APERTURE_VERSION;

APERTURE_VERB ibv_device** ibv_get_device_list(int* num_devices) {
  APERTURE_REAL(ibv_get_device_list, "IBVERBS_1.1");
  if (are_real_devices_alone()) {
    const KernelPathsAlone section;
    const std::lock_guard guard(real_list_mutex);
    return real.call_or<ibv_device**>(nullptr, num_devices);
  }
  int real_count = 0;
  ibv_device** real_list = [&] {
    const KernelPathsAlone section;  // where it finds no kernel to ask it looks into /sys
    const std::lock_guard guard(real_list_mutex);
    return real.call_or<ibv_device**>(nullptr, &real_count);
  }();
  const size_t count = real_list != nullptr ? static_cast<size_t>(real_count) : 0;
  auto** list = static_cast<ibv_device**>(std::realloc(real_list, (count + 2) * sizeof(void*)));
  if (list == nullptr) {
    std::free(real_list);
    errno = ENOMEM;
    return nullptr;
  }
  list[count] = our_device();
  list[count + 1] = nullptr;
  if (num_devices != nullptr) *num_devices = static_cast<int>(count) + 1;
  errno = 0;  // what the real library says of a kernel without RDMA is no error here
  return list;
}

APERTURE_VERB void ibv_free_device_list(ibv_device** list) {
  APERTURE_REAL(ibv_free_device_list, "IBVERBS_1.1");
  if (list == nullptr) return;
  size_t kept = 0;
  for (size_t i = 0; list[i] != nullptr; ++i) {
    if (!is_ours(list[i])) list[kept++] = list[i];
  }
  list[kept] = nullptr;
  auto* real_free = real.get();
  if (real_free != nullptr) {
    real_free(list);
  } else {
    std::free(list);
  }
}

APERTURE_VERB const char* ibv_get_device_name(ibv_device* device) {
  APERTURE_REAL(ibv_get_device_name, "IBVERBS_1.1");
  if (is_ours(device)) return kDeviceName;
  return real.call_or<const char*>(nullptr, device);
}

APERTURE_VERB int ibv_get_device_index(ibv_device* device) {
  APERTURE_REAL(ibv_get_device_index, "IBVERBS_1.9");
  if (is_ours(device)) {
    const auto* padded = reinterpret_cast<const PaddedDevice*>(device);
    return index_of_device(static_cast<size_t>(padded - devices.data()));
  }
  return real.call_or(-1, device);
}

APERTURE_VERB __be64 ibv_get_device_guid(ibv_device* device) {
  APERTURE_FORWARD(is_ours(device), 0, ibv_get_device_guid, "IBVERBS_1.1", device);
  __be64 guid;
  static_assert(sizeof guid == sizeof(aperture::nic::NodeGuid));
  std::memcpy(&guid, aperture::nic::node_guid().data(), sizeof guid);
  return guid;
}
