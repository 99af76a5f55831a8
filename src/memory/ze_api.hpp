// The calls of Level Zero that Aperture makes, as libze_loader.so.1 exports them: "oneAPI Level
// Zero Specification", version 1.0 and later, "Core API", sections Driver, Device, Context, Command
// List and Memory. Only what is needed is declared, under the names that it has there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/library.hpp"

namespace aperture::memory::ze {

using Handle = void*;  // of a driver, a device, a context or a command list

// ze_result_t
inline constexpr int kSuccess = 0;
inline constexpr int kUninitialized = 0x78000001;  // of zeInit: no driver has a device

inline constexpr uint32_t kGpuOnly = 1;  // ZE_INIT_FLAG_GPU_ONLY

// ze_command_queue_group_property_flag_t
inline constexpr uint32_t kCompute = 1;
inline constexpr uint32_t kCopy = 2;

// ze_memory_type_t
inline constexpr uint32_t kUnknown = 0;
inline constexpr uint32_t kHost = 1;
inline constexpr uint32_t kDevice = 2;
inline constexpr uint32_t kShared = 3;

// Each structure begins with its type (ze_structure_type_t) and a pointer to what extends it.
struct ContextDesc {
  uint32_t type = 0xd;
  const void* next = nullptr;
  uint32_t flags = 0;
};

inline constexpr uint32_t kSynchronous = 1;  // ZE_COMMAND_QUEUE_MODE_SYNCHRONOUS

struct QueueDesc {
  uint32_t type = 0xe;
  const void* next = nullptr;
  uint32_t group = 0;  // its ordinal
  uint32_t index = 0;
  uint32_t flags = 0;
  uint32_t mode = kSynchronous;
  uint32_t priority = 0;
};

struct QueueGroup {
  uint32_t type = 0x6;
  void* next = nullptr;
  uint32_t flags = 0;
  size_t fill_bytes = 0;
  uint32_t queues = 0;
};

struct HostMemoryDesc {
  uint32_t type = 0x16;
  const void* next = nullptr;
  uint32_t flags = 0;
};

struct MemoryProperties {
  uint32_t type = 0x17;
  void* next = nullptr;
  uint32_t memory = kUnknown;
  uint64_t id = 0;
  uint64_t page_bytes = 0;
};
static_assert(sizeof(ContextDesc) == 24 && sizeof(HostMemoryDesc) == 24);
static_assert(sizeof(QueueDesc) == 40 && sizeof(QueueGroup) == 40);
static_assert(sizeof(MemoryProperties) == 40 && offsetof(MemoryProperties, id) == 24);

// ze_device_properties_t; its name and most else is not used.
struct DeviceProperties {
  uint32_t type = 0x3;
  void* next = nullptr;
  uint32_t kind = 0, vendor = 0, device = 0, flags = 0, part = 0, clock = 0;
  uint64_t most_bytes = 0;
  uint32_t counts[7] = {};  // of contexts, priorities, threads, ...
  uint64_t timer = 0;
  uint32_t timer_bits[2] = {};
  unsigned char uuid[16] = {};
  char name[256] = {};
};
static_assert(offsetof(DeviceProperties, most_bytes) == 40 &&
              offsetof(DeviceProperties, timer) == 80 && offsetof(DeviceProperties, uuid) == 96 &&
              sizeof(DeviceProperties) == 368);

// ze_ipc_mem_handle_t. On Linux it begins with the number of a descriptor of the process that it is
// of, and in any other process with that of a duplicate.
struct IpcHandle {
  unsigned char bytes[64];
};

struct Calls {
  explicit Calls(Library library) noexcept : find(library) {}

  Finder find;  // before what it finds
  int (*const zeInit)(uint32_t flags) = find("zeInit");
  int (*const zeDriverGet)(uint32_t* count, Handle* drivers) = find("zeDriverGet");
  int (*const zeDeviceGet)(Handle driver, uint32_t* count, Handle* devices) = find("zeDeviceGet");
  int (*const zeDeviceGetSubDevices)(Handle device, uint32_t* count,
                                     Handle* parts) = find("zeDeviceGetSubDevices");
  int (*const zeDeviceGetCommandQueueGroupProperties)(Handle device, uint32_t* count,
                                                      QueueGroup* groups) =
      find("zeDeviceGetCommandQueueGroupProperties");
  int (*const zeContextCreate)(Handle driver, const ContextDesc* desc,
                               Handle* context) = find("zeContextCreate");
  int (*const zeContextDestroy)(Handle context) = find("zeContextDestroy");
  int (*const zeCommandListCreateImmediate)(Handle context, Handle device, const QueueDesc* desc,
                                            Handle* list) = find("zeCommandListCreateImmediate");
  int (*const zeCommandListDestroy)(Handle list) = find("zeCommandListDestroy");
  int (*const zeCommandListAppendMemoryCopy)(Handle list, void* to, const void* from, size_t n,
                                             Handle signal, uint32_t wait_count, Handle* wait_for) =
      find("zeCommandListAppendMemoryCopy");
  int (*const zeMemGetAllocProperties)(Handle context, const void* at, MemoryProperties* properties,
                                       Handle* device) = find("zeMemGetAllocProperties");
  int (*const zeMemGetAddressRange)(Handle context, const void* at, void** base,
                                    size_t* size) = find("zeMemGetAddressRange");
  int (*const zeMemAllocHost)(Handle context, const HostMemoryDesc* desc, size_t size, size_t align,
                              void** at) = find("zeMemAllocHost");
  int (*const zeMemFree)(Handle context, void* at) = find("zeMemFree");
  // Between processes; the first four or none.
  int (*const zeDeviceGetProperties)(Handle device, DeviceProperties* properties) =
      find.perhaps("zeDeviceGetProperties");
  int (*const zeMemGetIpcHandle)(Handle context, const void* at,
                                 IpcHandle* handle) = find.perhaps("zeMemGetIpcHandle");
  int (*const zeMemOpenIpcHandle)(Handle context, Handle device, IpcHandle handle, uint32_t flags,
                                  void** at) = find.perhaps("zeMemOpenIpcHandle");
  int (*const zeMemCloseIpcHandle)(Handle context,
                                   const void* at) = find.perhaps("zeMemCloseIpcHandle");
  // version 1.6
  int (*const zeMemPutIpcHandle)(Handle context,
                                 IpcHandle handle) = find.perhaps("zeMemPutIpcHandle");
  bool has_shares() const noexcept {
    return zeDeviceGetProperties != nullptr && zeMemGetIpcHandle != nullptr &&
           zeMemOpenIpcHandle != nullptr && zeMemCloseIpcHandle != nullptr;
  }
};

}  // namespace aperture::memory::ze
