// A STAND-IN for libhsa-runtime64.so.1: it has two GPUs that are none. See standin.hpp.
//
// The host has a pool for kernel arguments and one of fine grain; each GPU has one. A callback for
// an allocation that is freed runs before its address can be used again.
#include <cstdio>
#include <cstring>

#include "memory/standin/standin.hpp"

namespace {

using standin::Allocation;
using standin::counted;
using standin::fails;
using standin::memory;
using standin::Place;

constexpr int kOk = 0, kError = 0x1000, kInvalidArgument = 0x1001, kInvalidAllocation = 0x1003,
              kInvalidAgent = 0x1004, kOutOfResources = 0x1008, kNotInitialized = 0x100B;

struct Agent {
  uint64_t handle;
};
struct Pool {
  uint64_t handle;
};
constexpr Agent kAgents[] = {{1}, {2}, {3}};  // the host, two GPUs
constexpr Pool kArguments{10}, kFine{11}, kOfGpu[] = {{20}, {30}};

struct PointerInfo {
  uint32_t size;
  int type;
  void* base;
  void* host_base;
  size_t len_bytes;
  void* user_data;
  Agent owner;
  uint32_t flags;
};

using Freed = void (*)(void* at, void* data);
struct Watch {
  Freed call;
  void* data;
};

std::atomic<int> references{0};
std::mutex lock;  // guards what follows
std::multimap<const void*, Watch>& watches = *new std::multimap<const void*, Watch>();

int begin() {
  if (references == 0) return kNotInitialized;
  return fails() ? kError : kOk;
}

bool is_gpu(Agent agent) {
  return agent.handle == 2 || agent.handle == 3;
}

}  // namespace

STANDIN_EXPORT const char* standin_says() {
  return "a stand-in for libhsa-runtime64.so.1: it has no device";
}

STANDIN_EXPORT int hsa_init() {
  if (fails()) return kOutOfResources;
  ++references;
  ++counted().contexts;
  return kOk;
}

STANDIN_EXPORT int hsa_shut_down() {
  if (references == 0) return kNotInitialized;
  --references;
  --counted().contexts;
  return kOk;
}

STANDIN_EXPORT int hsa_system_get_info(int what, void* value) {
  if (const int error = begin()) return error;
  if (what != 0) return kInvalidArgument;
  *static_cast<uint16_t*>(value) = 1;
  return kOk;
}

STANDIN_EXPORT int hsa_iterate_agents(int (*each)(Agent, void*), void* data) {
  if (const int error = begin()) return error;
  for (const Agent agent : kAgents) {
    if (const int stop = each(agent, data)) return stop;
  }
  return kOk;
}

STANDIN_EXPORT int hsa_agent_get_info(Agent agent, int what, void* value) {
  if (const int error = begin()) return error;
  if (what == 0xa011 && is_gpu(agent)) {
    std::snprintf(static_cast<char*>(value), 21, "GPU-%016x", static_cast<unsigned>(agent.handle));
    return kOk;
  }
  if (what != 17 || agent.handle < 1 || agent.handle > 3) return kInvalidArgument;
  *static_cast<int*>(value) = is_gpu(agent) ? 1 : 0;
  return kOk;
}

STANDIN_EXPORT int hsa_amd_agent_iterate_memory_pools(Agent agent, int (*each)(Pool, void*),
                                                      void* data) {
  if (const int error = begin()) return error;
  if (is_gpu(agent)) return each(kOfGpu[agent.handle - 2], data);
  if (agent.handle != 1) return kInvalidAgent;
  const int stop = each(kArguments, data);
  return stop != kOk ? stop : each(kFine, data);
}

STANDIN_EXPORT int hsa_amd_memory_pool_get_info(Pool pool, int what, void* value) {
  if (const int error = begin()) return error;
  const uint32_t flags = pool.handle == kArguments.handle ? 3 : pool.handle == kFine.handle ? 2 : 4;
  switch (what) {
    case 0: *static_cast<uint32_t*>(value) = 0; return kOk;
    case 1: *static_cast<uint32_t*>(value) = flags; return kOk;
    case 5: *static_cast<bool*>(value) = true; return kOk;
    default: return kInvalidArgument;
  }
}

STANDIN_EXPORT int hsa_amd_memory_pool_allocate(Pool pool, size_t size, uint32_t flags, void** at) {
  if (const int error = begin()) return error;
  if (flags != 0) return kInvalidArgument;
  const bool host = pool.handle == kArguments.handle || pool.handle == kFine.handle;
  const int gpu = pool.handle == kOfGpu[0].handle ? 0 : 1;
  *at = memory().allocate(host ? Place::host : Place::device, size, host ? 0 : gpu, nullptr);
  return *at != nullptr ? kOk : kOutOfResources;
}

STANDIN_EXPORT int hsa_amd_memory_pool_free(void* at) {
  if (references == 0) return kNotInitialized;
  const std::optional<Allocation> found = memory().find(at);
  if (!found || found->at != at) return kInvalidAllocation;
  std::multimap<const void*, Watch> told;
  {
    const std::lock_guard guard(lock);
    const auto [first, last] = watches.equal_range(at);
    told.insert(first, last);
    watches.erase(first, last);
  }
  counted().watches -= told.size();
  for (const auto& [base, watch] : told) watch.call(at, watch.data);
  return memory().free(at, {Place::device, Place::host}) ? kOk : kInvalidAllocation;
}

STANDIN_EXPORT int hsa_amd_agents_allow_access(uint32_t count, const Agent* agents,
                                               const uint32_t* flags, const void* at) {
  if (const int error = begin()) return error;
  if (count == 0 || flags != nullptr || !memory().find(at)) return kInvalidArgument;
  for (uint32_t i = 0; i < count; ++i) {
    if (!is_gpu(agents[i])) return kInvalidAgent;
  }
  return kOk;
}

STANDIN_EXPORT int hsa_amd_pointer_info(const void* at, PointerInfo* info, void* (*)(size_t),
                                        uint32_t*, Agent**) {
  if (const int error = begin()) return error;
  if (at == nullptr || info == nullptr || info->size != sizeof *info) return kInvalidArgument;
  *info = PointerInfo{};
  info->size = sizeof *info;
  const std::optional<Allocation> found = memory().find(at);
  if (!found) return kOk;  // of unknown type
  info->type = found->place == Place::shared ? 4 : 1;
  info->base = info->host_base = found->at;
  info->len_bytes = found->size;
  info->owner = kAgents[found->place == Place::host ? 0 : found->device + 1];
  return kOk;
}

STANDIN_EXPORT int hsa_amd_register_deallocation_callback(void* at, Freed call, void* data) {
  if (const int error = begin()) return error;
  const std::optional<Allocation> found = memory().find(at);
  if (!found || found->at != at) return kInvalidAllocation;
  const std::lock_guard guard(lock);
  watches.emplace(at, Watch{call, data});
  ++counted().watches;
  return kOk;
}

// ---- between processes --------------------------------------------------------------------------

namespace {

struct IpcHandle {
  char bytes[32];
};

}  // namespace

// Of a whole allocation.
STANDIN_EXPORT int hsa_amd_ipc_memory_create(void* at, size_t len, IpcHandle* handle) {
  if (const int error = begin()) return error;
  const std::optional<Allocation> found = memory().find(at);
  standin::Ticket ticket;
  static_assert(sizeof ticket <= sizeof *handle);
  if (!found || found->size != len || !memory().share(at, &ticket)) return kInvalidArgument;
  *handle = IpcHandle{};
  std::memcpy(handle->bytes, &ticket, sizeof ticket);
  return kOk;
}

STANDIN_EXPORT int hsa_amd_ipc_memory_attach(const IpcHandle* handle, size_t len, uint32_t count,
                                             const Agent* agents, void** at) {
  if (const int error = begin()) return error;
  if (count != 1 || !is_gpu(agents[0])) return kInvalidAgent;
  standin::Ticket ticket;
  std::memcpy(&ticket, handle->bytes, sizeof ticket);
  if (ticket.size != len) return kInvalidArgument;
  *at = memory().open(ticket, static_cast<int>(agents[0].handle) - 2, nullptr);
  return *at != nullptr ? kOk : kInvalidArgument;
}

STANDIN_EXPORT int hsa_amd_ipc_memory_detach(void* at) {
  if (references == 0) return kNotInitialized;
  return memory().free(at, {Place::shared}) ? kOk : kInvalidArgument;
}

STANDIN_EXPORT int hsa_memory_copy(void* to, const void* from, size_t n) {
  if (const int error = begin()) return error;
  return memory().copy(to, from, n) ? kOk : kInvalidArgument;
}
