// A STAND-IN for libze_loader.so.1: it has two drivers, with two devices and one, that are none.
// See standin.hpp.
//
// As Intel's driver does, each driver knows the allocations of all its contexts. A device has a
// group of queues that computes and copies, and after it one that only copies. A command list is
// immediate and synchronous, and must not meet two threads at a time.
#include <cstring>
#include <deque>

#include "memory/standin/standin.hpp"

namespace {

using standin::Allocation;
using standin::counted;
using standin::fails;
using standin::memory;
using standin::Place;

constexpr int kOk = 0, kUninitialized = 0x78000001, kInvalidArgument = 0x78000004,
              kInvalidHandle = 0x78000005, kAddressNotFound = 0x78000020, kUnknown = 0x7ffffffe,
              kOutOfDeviceMemory = 0x70000003;

struct Driver {
  int number;
};
struct Device {
  const Driver* driver;
  int number;  // among all
};
struct Context {
  const Driver* driver = nullptr;
  bool alive = false;
};
struct List {
  const Context* context = nullptr;
  const Device* device = nullptr;
  bool alive = false;
  std::atomic<bool> in_use{false};
};

// Each structure of the interface begins with these.
struct Header {
  uint32_t type;
  void* next;
};
struct QueueDesc : Header {
  uint32_t group, index, flags, mode, priority;
};
struct QueueGroup : Header {
  uint32_t flags;
  size_t fill_bytes;
  uint32_t queues;
};
struct MemoryProperties : Header {
  uint32_t memory;
  uint64_t id, page_bytes;
};

Driver drivers[] = {{0}, {1}};
Device devices[] = {{&drivers[0], 0}, {&drivers[0], 1}, {&drivers[1], 2}};

// Handles are addresses of what is in here, which stays.
struct State {
  std::mutex lock;
  std::atomic<bool> started{false};
  std::deque<Context> contexts;
  std::deque<List> lists;
};

State& state() {
  static State& all = *new State();
  return all;
}

int begin() {
  if (!state().started) return kUninitialized;
  return fails() ? kUnknown : kOk;
}

Context* context_of(void* handle) {
  const std::lock_guard guard(state().lock);
  for (Context& each : state().contexts)
    if (&each == handle && each.alive) return &each;
  return nullptr;
}

Device* device_of(void* handle) {
  for (Device& each : devices)
    if (&each == handle) return &each;
  return nullptr;
}

// What that driver has allocated there.
std::optional<Allocation> find(const Context* context, const void* at) {
  std::optional<Allocation> found = memory().find(at);
  return found && found->owner == context->driver ? found : std::nullopt;
}

int allocate(Place place, void* in, void* on, size_t size, void** at) {
  if (const int error = begin()) return error;
  const Context* context = context_of(in);
  const Device* device = device_of(on);
  if (context == nullptr || (place == Place::device && device == nullptr)) return kInvalidHandle;
  if (device != nullptr && device->driver != context->driver) return kInvalidHandle;
  *at = memory().allocate(place, size, device != nullptr ? device->number : -1, context->driver);
  return *at != nullptr ? kOk : kOutOfDeviceMemory;
}

// An enumeration: as many handles as there is room for, or how many there are.
int enumerate(uint32_t* count, void** to, std::initializer_list<void*> all) {
  const auto there = static_cast<uint32_t>(all.size());
  if (*count == 0 || to == nullptr) {
    *count = there;
    return kOk;
  }
  if (*count > there) *count = there;
  for (uint32_t i = 0; i < *count; ++i) to[i] = all.begin()[i];
  return kOk;
}

}  // namespace

STANDIN_EXPORT const char* standin_says() {
  return "a stand-in for libze_loader.so.1: it has no device";
}

STANDIN_EXPORT int zeInit(uint32_t) {
  if (fails()) return kUnknown;
  state().started = true;
  return kOk;
}

STANDIN_EXPORT int zeDriverGet(uint32_t* count, void** to) {
  if (const int error = begin()) return error;
  return enumerate(count, to, {&drivers[0], &drivers[1]});
}

STANDIN_EXPORT int zeDeviceGet(void* driver, uint32_t* count, void** to) {
  if (const int error = begin()) return error;
  if (driver == &drivers[0]) return enumerate(count, to, {&devices[0], &devices[1]});
  if (driver == &drivers[1]) return enumerate(count, to, {&devices[2]});
  return kInvalidHandle;
}

STANDIN_EXPORT int zeDeviceGetSubDevices(void* device, uint32_t* count, void** to) {
  if (const int error = begin()) return error;
  return device_of(device) != nullptr ? enumerate(count, to, {}) : kInvalidHandle;
}

STANDIN_EXPORT int zeDeviceGetCommandQueueGroupProperties(void* device, uint32_t* count,
                                                          QueueGroup* to) {
  if (const int error = begin()) return error;
  if (device_of(device) == nullptr) return kInvalidHandle;
  if (to != nullptr && *count >= 2) {
    if (to[0].type != 0x6 || to[1].type != 0x6) return kInvalidArgument;
    to[0].flags = 3;
    to[1].flags = 2;
    to[0].queues = to[1].queues = 1;
  }
  *count = 2;
  return kOk;
}

STANDIN_EXPORT int zeContextCreate(void* driver, const Header* desc, void** context) {
  if (const int error = begin()) return error;
  if (desc == nullptr || desc->type != 0xd) return kInvalidArgument;
  if (driver != &drivers[0] && driver != &drivers[1]) return kInvalidHandle;
  const std::lock_guard guard(state().lock);
  *context = &state().contexts.emplace_back(Context{static_cast<Driver*>(driver), true});
  ++counted().contexts;
  return kOk;
}

STANDIN_EXPORT int zeContextDestroy(void* handle) {
  Context* context = context_of(handle);
  if (context == nullptr) return kInvalidHandle;
  context->alive = false;
  --counted().contexts;
  return kOk;
}

STANDIN_EXPORT int zeCommandListCreateImmediate(void* context, void* device, const QueueDesc* desc,
                                                void** list) {
  if (const int error = begin()) return error;
  const Context* in = context_of(context);
  const Device* on = device_of(device);
  if (in == nullptr || on == nullptr || in->driver != on->driver) return kInvalidHandle;
  if (desc->type != 0xe || desc->mode != 1 || desc->group > 1) return kInvalidArgument;
  if (desc->group == 1) ++counted().marked;
  const std::lock_guard guard(state().lock);
  List& made = state().lists.emplace_back();
  made.context = in;
  made.device = on;
  made.alive = true;
  ++counted().queues;
  *list = &made;
  return kOk;
}

STANDIN_EXPORT int zeCommandListDestroy(void* handle) {
  const std::lock_guard guard(state().lock);
  for (List& each : state().lists) {
    if (&each != handle || !each.alive) continue;
    each.alive = false;
    --counted().queues;
    return kOk;
  }
  return kInvalidHandle;
}

STANDIN_EXPORT int zeCommandListAppendMemoryCopy(void* handle, void* to, const void* from, size_t n,
                                                 void* signal, uint32_t wait_count, void**) {
  if (const int error = begin()) return error;
  if (signal != nullptr || wait_count != 0) return kInvalidArgument;
  List* list = nullptr;
  {
    const std::lock_guard guard(state().lock);
    for (List& each : state().lists)
      if (&each == handle && each.alive) list = &each;
  }
  if (list == nullptr || list->in_use.exchange(true)) return kInvalidHandle;
  const bool copied = memory().copy(to, from, n);
  list->in_use = false;
  return copied ? kOk : kInvalidArgument;
}

STANDIN_EXPORT int zeMemAllocDevice(void* context, const Header* desc, size_t size, size_t,
                                    void* device, void** at) {
  if (desc == nullptr || desc->type != 0x15) return kInvalidArgument;
  return allocate(Place::device, context, device, size, at);
}

STANDIN_EXPORT int zeMemAllocShared(void* context, const Header* of_device, const Header* of_host,
                                    size_t size, size_t, void* device, void** at) {
  if (of_device->type != 0x15 || of_host->type != 0x16) return kInvalidArgument;
  return allocate(Place::managed, context, device, size, at);
}

STANDIN_EXPORT int zeMemAllocHost(void* context, const Header* desc, size_t size, size_t,
                                  void** at) {
  if (desc == nullptr || desc->type != 0x16) return kInvalidArgument;
  return allocate(Place::host, context, nullptr, size, at);
}

STANDIN_EXPORT int zeMemFree(void* handle, void* at) {
  const Context* context = context_of(handle);
  if (context == nullptr || !find(context, at)) return kInvalidHandle;
  return memory().free(at, {Place::device, Place::managed, Place::host}) ? kOk : kInvalidArgument;
}

// Memory of another driver, or of nobody, is of unknown type.
STANDIN_EXPORT int zeMemGetAllocProperties(void* handle, const void* at,
                                           MemoryProperties* properties, void** device) {
  if (const int error = begin()) return error;
  const Context* context = context_of(handle);
  if (context == nullptr) return kInvalidHandle;
  if (properties->type != 0x17) return kInvalidArgument;
  const std::optional<Allocation> found = find(context, at);
  properties->memory = 0;
  if (!found) return kOk;
  properties->memory = found->place == Place::host ? 1 : found->place == Place::managed ? 3 : 2;
  properties->id = found->id;
  *device = found->device < 0 ? nullptr : &devices[found->device];
  return kOk;
}

STANDIN_EXPORT int zeMemGetAddressRange(void* handle, const void* at, void** base, size_t* size) {
  if (const int error = begin()) return error;
  const Context* context = context_of(handle);
  if (context == nullptr) return kInvalidHandle;
  const std::optional<Allocation> found = find(context, at);
  if (!found) return kAddressNotFound;
  *base = found->at;
  *size = found->size;
  return kOk;
}

// ---- between processes --------------------------------------------------------------------------

namespace {

struct DeviceProperties : Header {
  uint32_t before[6];
  uint64_t most_bytes;
  uint32_t counts[7];
  uint64_t timer;
  uint32_t timer_bits[2];
  char uuid[16];
  char name[256];
};

// It begins with a descriptor of the process that it is of.
struct IpcHandle {
  int file;
  uint64_t size;
  char rest[48];
};
static_assert(sizeof(IpcHandle) == 64);

}  // namespace

STANDIN_EXPORT int zeDeviceGetProperties(void* handle, DeviceProperties* to) {
  if (const int error = begin()) return error;
  const Device* device = device_of(handle);
  if (device == nullptr) return kInvalidHandle;
  if (to->type != 0x3) return kInvalidArgument;
  std::memcpy(to->uuid, "stand-in device", 16);
  to->uuid[15] = static_cast<char>('0' + device->number);
  return kOk;
}

// Of where an allocation begins.
STANDIN_EXPORT int zeMemGetIpcHandle(void* in, const void* at, IpcHandle* handle) {
  if (const int error = begin()) return error;
  const Context* context = context_of(in);
  standin::Ticket ticket;
  if (context == nullptr) return kInvalidHandle;
  if (!find(context, at) || !memory().share(at, &ticket)) return kInvalidArgument;
  *handle = IpcHandle{ticket.file, ticket.size, {}};
  return kOk;
}

STANDIN_EXPORT int zeMemPutIpcHandle(void* in, IpcHandle) {
  if (!state().started) return kUninitialized;
  return context_of(in) != nullptr ? kOk : kInvalidHandle;
}

// The descriptor is one of this process's by now, and the driver's from then on.
STANDIN_EXPORT int zeMemOpenIpcHandle(void* in, void* on, IpcHandle handle, uint32_t flags,
                                      void** at) {
  if (const int error = begin()) return error;
  const Context* context = context_of(in);
  const Device* device = device_of(on);
  if (context == nullptr || device == nullptr || flags != 0) return kInvalidHandle;
  *at = memory().open(handle.file, handle.size, device->number, context->driver);
  return *at != nullptr ? kOk : kInvalidArgument;
}

STANDIN_EXPORT int zeMemCloseIpcHandle(void* in, const void* at) {
  if (context_of(in) == nullptr) return kInvalidHandle;
  return memory().free(at, {Place::shared}) ? kOk : kInvalidArgument;
}
