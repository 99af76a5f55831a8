// The vendors' libraries as applications use them: see device_memory.hpp.
#include "memory/device_memory.hpp"

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace aperture::test {

namespace {

using Handle = void*;

class CudaDevices final : public Devices {
 public:
  explicit CudaDevices(void* library) : Devices(library) {}

  // 0, or the error of a call.
  int start() {
    if (const int error = call<int(unsigned)>("cuInit")(0)) return error;
    int count = 0;
    if (const int error = call<int(int*)>("cuDeviceGetCount")(&count)) return error;
    primary_.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      auto* retain = call<int(Handle*, int)>("cuDevicePrimaryCtxRetain");
      if (const int error = retain(&primary_[static_cast<size_t>(i)], i)) return error;
    }
    if (count == 0) return -1;
    use_here();
    return 0;
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  size_t count() const override { return primary_.size(); }

  void* allocate(size_t size, size_t device) override {
    auto* make_current = call<int(Handle)>("cuCtxSetCurrent");
    Handle before = current();
    make_current(primary_.at(device));
    uint64_t at = 0;
    const int error = call<int(uint64_t*, size_t)>("cuMemAlloc_v2")(&at, size);
    make_current(before);
    return error == 0 ? reinterpret_cast<void*>(at) : nullptr;
  }
  void* allocate_managed(size_t size) override {
    uint64_t at = 0;
    const int error = call<int(uint64_t*, size_t, unsigned)>("cuMemAllocManaged")(&at, size, 1);
    return error == 0 ? reinterpret_cast<void*>(at) : nullptr;
  }
  void* allocate_host(size_t size) override {
    void* at = nullptr;
    const int error = call<int(void**, size_t, unsigned)>("cuMemHostAlloc")(&at, size, 0);
    return error == 0 ? at : nullptr;
  }
  bool free(void* at) override {
    const auto place = reinterpret_cast<uint64_t>(at);
    return call<int(uint64_t)>("cuMemFree_v2")(place) == 0 ||
           call<int(void*)>("cuMemFreeHost")(at) == 0;
  }
  bool write(void* to, const void* from, size_t n) override {
    const auto place = reinterpret_cast<uint64_t>(to);
    return call<int(uint64_t, const void*, size_t)>("cuMemcpyHtoD_v2")(place, from, n) == 0;
  }
  bool read(void* to, const void* from, size_t n) override {
    const auto place = reinterpret_cast<uint64_t>(from);
    return call<int(void*, uint64_t, size_t)>("cuMemcpyDtoH_v2")(to, place, n) == 0;
  }

  void* current() const override {
    Handle context = nullptr;
    call<int(Handle*)>("cuCtxGetCurrent")(&context);
    return context;
  }
  void use_here() override { call<int(Handle)>("cuCtxSetCurrent")(primary_.at(0)); }

 private:
  std::vector<Handle> primary_;
};

class RocrDevices final : public Devices {
 public:
  explicit RocrDevices(void* library) : Devices(library) {}

  int start() {
    if (const int error = call<int()>("hsa_init")()) return error;
    auto* each_agent = call<int(int (*)(Agent, void*), void*)>("hsa_iterate_agents");
    if (const int error = each_agent(note_agent, this)) return error;
    return pools_.empty() || host_.handle == 0 ? -1 : 0;
  }

  DeviceKind kind() const override { return DeviceKind::rocr; }
  size_t count() const override { return pools_.size(); }

  void* allocate(size_t size, size_t device) override { return take(pools_.at(device), size); }
  void* allocate_managed(size_t) override { return nullptr; }
  void* allocate_host(size_t size) override { return take(host_, size); }
  bool free(void* at) override { return call<int(void*)>("hsa_amd_memory_pool_free")(at) == 0; }
  bool write(void* to, const void* from, size_t n) override { return copy(to, from, n); }
  bool read(void* to, const void* from, size_t n) override { return copy(to, from, n); }

 private:
  struct Agent {
    uint64_t handle;
  };
  struct Pool {
    uint64_t handle;
  };

  void* take(Pool pool, size_t size) {
    void* at = nullptr;
    auto* take = call<int(Pool, size_t, uint32_t, void**)>("hsa_amd_memory_pool_allocate");
    return take(pool, size, 0, &at) == 0 ? at : nullptr;
  }
  bool copy(void* to, const void* from, size_t n) {
    return call<int(void*, const void*, size_t)>("hsa_memory_copy")(to, from, n) == 0;
  }
  static int note_agent(Agent agent, void* to) {
    auto& all = *static_cast<RocrDevices*>(to);
    int device = -1;
    all.call<int(Agent, int, void*)>("hsa_agent_get_info")(agent, 17, &device);
    all.found_ = {};
    all.call<int(Agent, int (*)(Pool, void*), void*)>("hsa_amd_agent_iterate_memory_pools")(
        agent, note_pool, to);
    if (device == 1 && all.found_.handle != 0) all.pools_.push_back(all.found_);
    if (device == 0 && all.host_.handle == 0) all.host_ = all.found_;
    return 0;
  }
  // The last of an agent's pools that allocate, of coarse or fine grain and not for arguments.
  static int note_pool(Pool pool, void* to) {
    auto& all = *static_cast<RocrDevices*>(to);
    uint32_t segment = 0;
    uint32_t flags = 0;
    bool allocates = false;
    auto* ask = all.call<int(Pool, int, void*)>("hsa_amd_memory_pool_get_info");
    if (ask(pool, 0, &segment) == 0 && segment == 0 && ask(pool, 1, &flags) == 0 &&
        (flags & 1) == 0 && ask(pool, 5, &allocates) == 0 && allocates)
      all.found_ = pool;
    return 0;
  }

  std::vector<Pool> pools_;  // of each GPU
  Pool host_{};
  Pool found_{};
};

class ZeDevices final : public Devices {
 public:
  explicit ZeDevices(void* library) : Devices(library) {}

  int start() {
    if (const int error = call<int(uint32_t)>("zeInit")(1)) return error;
    auto* get_drivers = call<int(uint32_t*, Handle*)>("zeDriverGet");
    auto* get_devices = call<int(Handle, uint32_t*, Handle*)>("zeDeviceGet");
    uint32_t count = 0;
    if (const int error = get_drivers(&count, nullptr)) return error;
    std::vector<Handle> drivers(count);
    if (const int error = get_drivers(&count, drivers.data())) return error;
    for (uint32_t i = 0; i < count; ++i) {
      Handle context = nullptr;
      const Desc desc{0xd, nullptr, 0, 0};
      auto* create = call<int(Handle, const Desc*, Handle*)>("zeContextCreate");
      if (const int error = create(drivers[i], &desc, &context)) return error;
      uint32_t devices = 0;
      if (const int error = get_devices(drivers[i], &devices, nullptr)) return error;
      std::vector<Handle> handles(devices);
      if (const int error = get_devices(drivers[i], &devices, handles.data())) return error;
      for (uint32_t j = 0; j < devices; ++j) add(context, handles[j], i << 16 | j);
    }
    return devices_.empty() ? -1 : 0;
  }

  DeviceKind kind() const override { return DeviceKind::ze; }
  size_t count() const override { return devices_.size(); }
  int number_of(size_t device) const override { return devices_.at(device).number; }

  void* allocate(size_t size, size_t device) override {
    void* at = nullptr;
    const Device& on = devices_.at(device);
    auto* take = call<int(Handle, const Desc*, size_t, size_t, Handle, void**)>("zeMemAllocDevice");
    const Desc desc{0x15, nullptr, 0, 0};
    return take(on.context, &desc, size, 0, on.handle, &at) == 0 ? at : nullptr;
  }
  void* allocate_managed(size_t size) override {
    void* at = nullptr;
    const Device& on = devices_.front();
    auto* take = call<int(Handle, const Desc*, const Desc*, size_t, size_t, Handle, void**)>(
        "zeMemAllocShared");
    const Desc device{0x15, nullptr, 0, 0};
    const Desc host{0x16, nullptr, 0, 0};
    return take(on.context, &device, &host, size, 0, on.handle, &at) == 0 ? at : nullptr;
  }
  void* allocate_host(size_t size) override {
    void* at = nullptr;
    auto* take = call<int(Handle, const Desc*, size_t, size_t, void**)>("zeMemAllocHost");
    const Desc desc{0x16, nullptr, 0, 0};
    return take(devices_.front().context, &desc, size, 0, &at) == 0 ? at : nullptr;
  }
  bool free(void* at) override {
    for (const Device& device : devices_) {
      if (call<int(Handle, void*)>("zeMemFree")(device.context, at) == 0) return true;
    }
    return false;
  }
  bool write(void* to, const void* from, size_t n) override { return copy(to, from, n, to); }
  bool read(void* to, const void* from, size_t n) override { return copy(to, from, n, from); }

 private:
  // A description without extensions: of a context, and of memory for a device or the host.
  struct Desc {
    uint32_t type;
    const void* next;
    uint32_t flags, ordinal;
  };
  struct QueueDesc {
    uint32_t type;
    const void* next;
    uint32_t group, index, flags, mode, priority;
  };
  struct Properties {
    uint32_t type;
    void* next;
    uint32_t memory;
    uint64_t id, page_bytes;
  };
  struct Device {
    Handle context, handle;
    int number;
  };

  void add(Handle context, Handle device, uint32_t number) {
    devices_.push_back({context, device, static_cast<int>(number)});
  }
  // By a command list for this one copy, on the device that has the memory.
  bool copy(void* to, const void* from, size_t n, const void* device_side) {
    auto* create =
        call<int(Handle, Handle, const QueueDesc*, Handle*)>("zeCommandListCreateImmediate");
    auto* append = call<int(Handle, void*, const void*, size_t, Handle, uint32_t, Handle*)>(
        "zeCommandListAppendMemoryCopy");
    auto* ask = call<int(Handle, const void*, Properties*, Handle*)>("zeMemGetAllocProperties");
    for (const Device& device : devices_) {
      Properties properties{0x17, nullptr, 0, 0, 0};
      Handle owner = nullptr;
      if (ask(device.context, device_side, &properties, &owner) != 0) return false;
      if (properties.memory == 0) continue;
      Handle list = nullptr;
      const QueueDesc desc{0xe, nullptr, 0, 0, 0, 1, 0};
      if (create(device.context, device.handle, &desc, &list) != 0) return false;
      const bool copied = append(list, to, from, n, nullptr, 0, nullptr) == 0;
      call<int(Handle)>("zeCommandListDestroy")(list);
      return copied;
    }
    return false;
  }

  std::vector<Device> devices_;
};

template <typename Kind>
std::unique_ptr<Devices> started(void* library, std::string& why) {
  auto devices = std::make_unique<Kind>(library);
  const int error = devices->start();
  if (error == 0) return devices;
  why = library_of(devices->kind());
  why += " finds no device: error ";
  why += std::to_string(error);
  return nullptr;
}

}  // namespace

const char* name_of(DeviceKind kind) {
  return kind == DeviceKind::cuda ? "cuda" : kind == DeviceKind::rocr ? "rocr" : "ze";
}

const char* library_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::cuda: return "libcuda.so.1";
    case DeviceKind::rocr: return "libhsa-runtime64.so.1";
    case DeviceKind::ze: return "libze_loader.so.1";
  }
  std::abort();
}

std::unique_ptr<Devices> Devices::open(DeviceKind kind, std::string& why) {
  void* library = ::dlopen(library_of(kind), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    why = ::dlerror();
    return nullptr;
  }
  switch (kind) {
    case DeviceKind::cuda: return started<CudaDevices>(library, why);
    case DeviceKind::rocr: return started<RocrDevices>(library, why);
    case DeviceKind::ze: return started<ZeDevices>(library, why);
  }
  std::abort();
}

void* Devices::find(const char* name) const {
  void* found = ::dlsym(library_, name);
  if (found == nullptr) {
    std::fprintf(stderr, "%s has no %s\n", library_of(kind()), name);
    std::abort();
  }
  return found;
}

bool Devices::is_standin() const {
  return ::dlsym(library_, "standin_says") != nullptr;
}

standin_counts Devices::counts() const {
  standin_counts now{};
  if (is_standin()) call<standin_count_fn>("standin_count")(&now);
  return now;
}

void Devices::fail(size_t nth) {
  if (is_standin()) call<standin_fail_fn>("standin_fail")(nth);
}

void Devices::set_rate(size_t mb_per_s) {
  if (is_standin()) call<standin_rate_fn>("standin_rate")(mb_per_s);
}

}  // namespace aperture::test
