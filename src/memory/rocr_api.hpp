// The calls of AMD's ROCm runtime that Aperture makes, as libhsa-runtime64.so.1 exports them: "HSA
// Runtime Programmer's Reference Manual", version 1.2, chapter 2, and AMD's extension to it
// (hsa_ext_amd.h: pointer information, memory pools, deallocation callbacks). Only what is needed
// is declared, under the names that it has there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/library.hpp"

namespace aperture::memory::hsa {

// Both are handles of 64 bits, passed by value.
struct Agent {
  uint64_t handle = 0;
};
struct Pool {
  uint64_t handle = 0;
};

// hsa_status_t
inline constexpr int kSuccess = 0;
inline constexpr int kOutOfResources = 0x1008;

inline constexpr int kVersionMajor = 0;    // HSA_SYSTEM_INFO_VERSION_MAJOR: uint16_t
inline constexpr int kAgentDevice = 17;    // HSA_AGENT_INFO_DEVICE: int, kCpu or kGpu
inline constexpr int kAgentUuid = 0xa011;  // of AMD's: "GPU-" and 16 digits, with the end 21 bytes
inline constexpr int kCpu = 0;
inline constexpr int kGpu = 1;

// hsa_amd_memory_pool_info_t
inline constexpr int kPoolSegment = 0;    // uint32_t, kSegmentGlobal
inline constexpr int kPoolFlags = 1;      // uint32_t, kFineGrained, kKernargs
inline constexpr int kPoolAllocates = 5;  // bool
inline constexpr uint32_t kSegmentGlobal = 0;
inline constexpr uint32_t kKernargs = 1;
inline constexpr uint32_t kFineGrained = 2;

// hsa_amd_pointer_type_t
inline constexpr int kUnknown = 0;
inline constexpr int kAllocated = 1;  // by the runtime, in this process
inline constexpr int kLocked = 2;     // host memory that devices may use as well

// hsa_amd_pointer_info_t, as far as all versions have it:
//   0 size  4 type  8 at the device  16 at the host  24 bytes  32 user data  40 owner  48 flags
struct PointerInfo {
  uint32_t size = sizeof(PointerInfo);
  int type = kUnknown;
  void* base = nullptr;
  void* host_base = nullptr;
  size_t len_bytes = 0;
  void* user_data = nullptr;
  Agent owner;
  uint32_t flags = 0;
};
static_assert(sizeof(PointerInfo) == 56);
static_assert(offsetof(PointerInfo, len_bytes) == 24 && offsetof(PointerInfo, owner) == 40);

// hsa_amd_ipc_memory_t
struct IpcHandle {
  uint32_t words[8];
};

struct Calls {
  explicit Calls(Library library) noexcept : find(library) {}

  Finder find;  // before what it finds
  int (*const hsa_init)() = find("hsa_init");
  int (*const hsa_shut_down)() = find("hsa_shut_down");
  int (*const hsa_iterate_agents)(int (*each)(Agent, void*),
                                  void* data) = find("hsa_iterate_agents");
  int (*const hsa_agent_get_info)(Agent agent, int what, void* value) = find("hsa_agent_get_info");
  int (*const hsa_memory_copy)(void* to, const void* from, size_t n) = find("hsa_memory_copy");
  int (*const hsa_amd_pointer_info)(const void* at, PointerInfo* info, void* (*allocate)(size_t),
                                    uint32_t* accessible_count,
                                    Agent** accessible) = find("hsa_amd_pointer_info");
  int (*const hsa_amd_register_deallocation_callback)(void* at, void (*freed)(void*, void*),
                                                      void* data) =
      find("hsa_amd_register_deallocation_callback");
  int (*const hsa_amd_agent_iterate_memory_pools)(Agent agent, int (*each)(Pool, void*),
                                                  void* data) =
      find("hsa_amd_agent_iterate_memory_pools");
  int (*const hsa_amd_memory_pool_get_info)(Pool pool, int what,
                                            void* value) = find("hsa_amd_memory_pool_get_info");
  int (*const hsa_amd_memory_pool_allocate)(Pool pool, size_t size, uint32_t flags,
                                            void** at) = find("hsa_amd_memory_pool_allocate");
  int (*const hsa_amd_memory_pool_free)(void* at) = find("hsa_amd_memory_pool_free");
  int (*const hsa_amd_agents_allow_access)(uint32_t count, const Agent* agents,
                                           const uint32_t* flags,
                                           const void* at) = find("hsa_amd_agents_allow_access");
  // Between processes; all three or none.
  int (*const hsa_amd_ipc_memory_create)(void* at, size_t len, IpcHandle* handle) =
      find.perhaps("hsa_amd_ipc_memory_create");
  int (*const hsa_amd_ipc_memory_attach)(const IpcHandle* handle, size_t len, uint32_t count,
                                         const Agent* agents,
                                         void** at) = find.perhaps("hsa_amd_ipc_memory_attach");
  int (*const hsa_amd_ipc_memory_detach)(void* at) = find.perhaps("hsa_amd_ipc_memory_detach");
  bool has_shares() const noexcept {
    return hsa_amd_ipc_memory_create != nullptr && hsa_amd_ipc_memory_attach != nullptr &&
           hsa_amd_ipc_memory_detach != nullptr;
  }
};

}  // namespace aperture::memory::hsa
