// A STAND-IN for libcuda.so.1: it has two devices that are none. See standin.hpp.
//
// What the driver API asks of its callers is an error here where it is not kept: cuInit first, a
// current context, a stream and memory of that context. A copy on a stream is done when the stream
// is waited for and not before.
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>

#include "memory/standin/standin.hpp"

namespace {

using standin::Allocation;
using standin::counted;
using standin::fails;
using standin::memory;
using standin::Place;

constexpr int kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3,
              kInvalidDevice = 101, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600,
              kUnknown = 999;
constexpr int kDevices = 2;

struct Context {
  int device = 0;
  bool alive = false;
  int references = 0;  // of a primary one
};

struct Copy {
  void* to;
  const void* from;
  size_t n;
  uint64_t over_at;
  bool looked;  // somebody has asked for it
};

struct Stream {
  const Context* context = nullptr;
  bool alive = false;
  std::vector<Copy> under_way;
};

// Handles are addresses of what is in here, which stays.
struct State {
  std::mutex lock;
  std::atomic<bool> started{false};
  std::array<Context, kDevices> primary{Context{0}, Context{1}};
  std::deque<Context> created;
  std::deque<Stream> streams;

  bool is_context(const Context* context) {
    if (context == nullptr || !context->alive) return false;
    for (const Context& each : primary)
      if (&each == context) return true;
    for (const Context& each : created)
      if (&each == context) return true;
    return false;
  }
  bool is_stream(const Stream* stream) {
    for (const Stream& each : streams)
      if (&each == stream) return each.alive;
    return false;
  }
};

State& state() {
  static State& all = *new State();
  return all;
}

thread_local std::vector<Context*> current;  // the last is the current context

Context* now() {
  return current.empty() ? nullptr : current.back();
}

// What a call that needs a current context begins with.
int begin(bool may_fail = true) {
  if (!state().started) return kNotInitialized;
  if (may_fail && fails()) return kUnknown;
  const std::lock_guard guard(state().lock);
  return state().is_context(now()) ? kOk : kInvalidContext;
}

int begin_anywhere() {
  if (!state().started) return kNotInitialized;
  return fails() ? kUnknown : kOk;
}

const void* pointer(unsigned long long at) {
  return reinterpret_cast<const void*>(at);
}

int allocate(Place place, size_t size, void** at) {
  if (const int error = begin()) return error;
  *at = memory().allocate(place, size, now()->device, now());
  return *at != nullptr ? kOk : kOutOfMemory;
}

// Under the lock.
void end_streams_of(const Context* context) {
  for (Stream& stream : state().streams) {
    if (stream.context != context || !stream.alive) continue;
    stream.alive = false;
    --counted().queues;
  }
}

// Memory that the current context may copy: no other context's.
bool is_reachable(const void* at) {
  const std::optional<Allocation> found = memory().find(at);
  return found && (found->place == Place::managed || found->owner == now());
}

// CUDA_MEMCPY2D
struct Rows {
  size_t from_x, from_y;
  unsigned from_type;
  const void* from_host;
  unsigned long long from_device;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  unsigned to_type;
  void* to_host;
  unsigned long long to_device;
  void* to_array;
  size_t to_pitch;
  size_t width, height;
};

int copy_later(void* to, const void* from, size_t n, const void* device_side, void* handle) {
  if (const int error = begin()) return error;
  auto* stream = static_cast<Stream*>(handle);
  const bool reachable = is_reachable(device_side);
  const std::lock_guard guard(state().lock);
  if (!state().is_stream(stream) || stream->context != now()) return kInvalidHandle;
  if (!reachable) return kInvalidValue;
  stream->under_way.push_back({to, from, n, standin::copy_engine().begin(n), false});
  size_t at_once = 0;
  for (const Stream& each : state().streams) at_once += each.under_way.size();
  if (at_once > counted().at_once) counted().at_once = at_once;
  return kOk;
}

// A device that takes its time: STANDIN_PAUSE_MS before it copies, said by a byte to the descriptor
// STANDIN_PAUSE_TELLS.
void take_time() {
  const char* const milliseconds = std::getenv("STANDIN_PAUSE_MS");
  const char* const tells = std::getenv("STANDIN_PAUSE_TELLS");
  if (milliseconds == nullptr) return;
  if (tells != nullptr && ::write(std::atoi(tells), "p", 1) != 1) return;
  ::usleep(1000 * static_cast<unsigned>(std::atoi(milliseconds)));
}

}  // namespace

STANDIN_EXPORT const char* standin_says() {
  return "a stand-in for libcuda.so.1: it has no device";
}

STANDIN_EXPORT int cuInit(unsigned flags) {
  if (fails()) return kUnknown;
  if (flags != 0) return kInvalidValue;
  state().started = true;
  return kOk;
}

STANDIN_EXPORT int cuDeviceGetCount(int* count) {
  if (const int error = begin_anywhere()) return error;
  *count = kDevices;
  return kOk;
}

STANDIN_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (const int error = begin_anywhere()) return error;
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  ::usleep(1000);  // it takes its time, in which other threads come
  const std::lock_guard guard(state().lock);
  Context& primary = state().primary[static_cast<size_t>(device)];
  ++primary.references;
  ++counted().contexts;
  primary.alive = true;
  *context = &primary;
  return kOk;
}

STANDIN_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  const std::lock_guard guard(state().lock);
  Context& primary = state().primary[static_cast<size_t>(device)];
  if (primary.references == 0) return kInvalidContext;
  primary.alive = --primary.references != 0;
  --counted().contexts;
  return kOk;
}

STANDIN_EXPORT int cuDevicePrimaryCtxReset_v2(int device) {
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  const std::lock_guard guard(state().lock);
  end_streams_of(&state().primary[static_cast<size_t>(device)]);
  return kOk;
}

STANDIN_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  if (const int error = begin_anywhere()) return error;
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  const std::lock_guard guard(state().lock);
  *flags = 0;
  *active = state().primary[static_cast<size_t>(device)].alive ? 1 : 0;
  return kOk;
}

STANDIN_EXPORT int cuCtxCreate_v2(void** context, unsigned, int device) {
  if (const int error = begin_anywhere()) return error;
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  const std::lock_guard guard(state().lock);
  Context& created = state().created.emplace_back(Context{device, true, 1});
  ++counted().contexts;
  current.push_back(&created);
  *context = &created;
  return kOk;
}

STANDIN_EXPORT int cuCtxDestroy_v2(void* handle) {
  const std::lock_guard guard(state().lock);
  auto* context = static_cast<Context*>(handle);
  if (!state().is_context(context)) return kInvalidContext;
  context->alive = false;
  --counted().contexts;
  end_streams_of(context);
  if (now() == context) current.pop_back();
  return kOk;
}

STANDIN_EXPORT int cuCtxGetCurrent(void** context) {
  if (!state().started) return kNotInitialized;
  *context = now();
  return kOk;
}

STANDIN_EXPORT int cuCtxSetCurrent(void* context) {
  if (!state().started) return kNotInitialized;
  if (!current.empty()) current.pop_back();
  if (context != nullptr) current.push_back(static_cast<Context*>(context));
  return kOk;
}

STANDIN_EXPORT int cuCtxPushCurrent_v2(void* handle) {
  if (const int error = begin_anywhere()) return error;
  const std::lock_guard guard(state().lock);
  auto* context = static_cast<Context*>(handle);
  if (!state().is_context(context)) return kInvalidContext;
  current.push_back(context);
  return kOk;
}

STANDIN_EXPORT int cuCtxPopCurrent_v2(void** context) {
  if (current.empty()) return kInvalidContext;
  *context = now();
  current.pop_back();
  return kOk;
}

STANDIN_EXPORT int cuMemAlloc_v2(unsigned long long* at, size_t size) {
  return allocate(Place::device, size, reinterpret_cast<void**>(at));
}

STANDIN_EXPORT int cuMemAllocManaged(unsigned long long* at, size_t size, unsigned flags) {
  if (flags != 1) return kInvalidValue;  // CU_MEM_ATTACH_GLOBAL
  return allocate(Place::managed, size, reinterpret_cast<void**>(at));
}

STANDIN_EXPORT int cuMemFree_v2(unsigned long long at) {
  if (const int error = begin(false)) return error;
  return memory().free(pointer(at), {Place::device, Place::managed}) ? kOk : kInvalidValue;
}

STANDIN_EXPORT int cuMemHostAlloc(void** at, size_t size, unsigned) {
  return allocate(Place::host, size, at);
}

STANDIN_EXPORT int cuMemFreeHost(void* at) {
  if (const int error = begin(false)) return error;
  return memory().free(at, {Place::host}) ? kOk : kInvalidValue;
}

STANDIN_EXPORT int cuMemGetAddressRange_v2(unsigned long long* base, size_t* size,
                                           unsigned long long at) {
  if (const int error = begin()) return error;
  const std::optional<Allocation> found = memory().find(pointer(at));
  if (!found) return kInvalidValue;
  *base = reinterpret_cast<unsigned long long>(found->at);
  *size = found->size;
  return kOk;
}

// What nobody allocated has attributes of zero, and no error.
STANDIN_EXPORT int cuPointerGetAttributes(unsigned count, const int* attributes, void** data,
                                          unsigned long long at) {
  if (const int error = begin_anywhere()) return error;
  const std::optional<Allocation> found = memory().find(pointer(at));
  const Allocation known = found.value_or(Allocation{});
  for (unsigned i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case 1: *static_cast<const void**>(data[i]) = known.owner; break;
      case 2:
        *static_cast<unsigned*>(data[i]) = !found ? 0 : known.place == Place::host ? 1 : 2;
        break;
      case 7: *static_cast<unsigned long long*>(data[i]) = known.id; break;
      // a truth value, of which no more than one byte is written
      case 8: *static_cast<bool*>(data[i]) = found && known.place == Place::managed; break;
      case 9: *static_cast<int*>(data[i]) = found ? known.device : -2; break;
      default: return kInvalidValue;
    }
  }
  return kOk;
}

STANDIN_EXPORT int cuPointerSetAttribute(const void* value, int attribute, unsigned long long at) {
  if (const int error = begin()) return error;
  const std::optional<Allocation> found = memory().find(pointer(at));
  if (!found || attribute != 6 || *static_cast<const unsigned*>(value) != 1) return kInvalidValue;
  ++counted().marked;
  return kOk;
}

STANDIN_EXPORT int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t n) {
  if (const int error = begin()) return error;
  return memory().copy(const_cast<void*>(pointer(to)), from, n) ? kOk : kInvalidValue;
}

STANDIN_EXPORT int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t n) {
  if (const int error = begin()) return error;
  return memory().copy(to, pointer(from), n) ? kOk : kInvalidValue;
}

STANDIN_EXPORT int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t n,
                                        void* stream) {
  return copy_later(const_cast<void*>(pointer(to)), from, n, pointer(to), stream);
}

// From the host to the device, rows behind one another on both sides: what our driver asks for.
STANDIN_EXPORT int cuMemcpy2DAsync_v2(const Rows* rows, void* stream) {
  const bool flat = rows->from_pitch == rows->width && rows->to_pitch == rows->width;
  const bool plain = rows->from_x == 0 && rows->from_y == 0 && rows->to_x == 0 && rows->to_y == 0;
  if (rows->from_type != 1 || rows->to_type != 2 || !flat || !plain) return kInvalidValue;
  return copy_later(const_cast<void*>(pointer(rows->to_device)), rows->from_host,
                    rows->width * rows->height, pointer(rows->to_device), stream);
}

STANDIN_EXPORT int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t n, void* stream) {
  return copy_later(to, pointer(from), n, pointer(from), stream);
}

// ---- between processes --------------------------------------------------------------------------

namespace {

// CUipcMemHandle and CUuuid
struct Handle {
  char bytes[64];
};
struct Uuid {
  char bytes[16];
};

}  // namespace

STANDIN_EXPORT int cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  if (const int error = begin_anywhere()) return error;
  if (device < 0 || device >= kDevices) return kInvalidDevice;
  *uuid = Uuid{"stand-in device"};
  uuid->bytes[15] = static_cast<char>('0' + device);
  return kOk;
}

// Of where an allocation begins.
STANDIN_EXPORT int cuIpcGetMemHandle(Handle* handle, unsigned long long at) {
  if (const int error = begin()) return error;
  standin::Ticket ticket;
  if (!memory().share(pointer(at), &ticket)) return kInvalidValue;
  *handle = Handle{};
  std::memcpy(handle->bytes, &ticket, sizeof ticket);
  return kOk;
}

// Not in the process that it is of.
STANDIN_EXPORT int cuIpcOpenMemHandle_v2(unsigned long long* at, Handle handle, unsigned flags) {
  if (const int error = begin()) return error;
  if (flags != 1) return kInvalidValue;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
  standin::Ticket ticket;
  std::memcpy(&ticket, handle.bytes, sizeof ticket);
  void* const opened = memory().open(ticket, now()->device, now());
  if (opened == nullptr) return kInvalidContext;
  *at = reinterpret_cast<unsigned long long>(opened);
  return kOk;
}

STANDIN_EXPORT int cuIpcCloseMemHandle(unsigned long long at) {
  if (const int error = begin(false)) return error;
  return memory().free(pointer(at), {Place::shared}) ? kOk : kInvalidValue;
}

STANDIN_EXPORT int cuStreamCreate(void** stream, unsigned flags) {
  if (const int error = begin()) return error;
  if (flags > 1) return kInvalidValue;
  const std::lock_guard guard(state().lock);
  *stream = &state().streams.emplace_back(Stream{now(), true, {}});
  ++counted().queues;
  return kOk;
}

namespace {

// What a call that asks for a stream's copies begins with. Where it fails it is they that have.
int begin_to_ask(Stream* stream) {
  const int error = begin();
  if (error == kOk) return kOk;
  const std::lock_guard guard(state().lock);
  if (state().is_stream(stream)) stream->under_way.clear();
  return error;
}

int do_copies(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (!memory().copy(copy.to, copy.from, copy.n)) return kInvalidValue;
  }
  return kOk;
}

}  // namespace

STANDIN_EXPORT int cuStreamSynchronize(void* handle) {
  auto* stream = static_cast<Stream*>(handle);
  if (const int error = begin_to_ask(stream)) return error;
  std::vector<Copy> copies;
  {
    const std::lock_guard guard(state().lock);
    if (!state().is_stream(stream)) return kInvalidHandle;
    copies.swap(stream->under_way);
  }
  if (!copies.empty()) {
    take_time();
    standin::CopyEngine::wait(copies.back().over_at);
  }
  return do_copies(copies);
}

STANDIN_EXPORT int cuStreamQuery(void* handle) {
  auto* stream = static_cast<Stream*>(handle);
  if (const int error = begin_to_ask(stream)) return error;
  std::vector<Copy> copies;
  {
    const std::lock_guard guard(state().lock);
    if (!state().is_stream(stream)) return kInvalidHandle;
    if (!stream->under_way.empty()) {
      Copy& last = stream->under_way.back();
      if (!standin::CopyEngine::is_over(last.over_at, last.looked)) return kNotReady;
    }
    copies.swap(stream->under_way);
  }
  return do_copies(copies);
}

STANDIN_EXPORT int cuStreamDestroy_v2(void* handle) {
  const std::lock_guard guard(state().lock);
  auto* stream = static_cast<Stream*>(handle);
  if (!state().is_stream(stream)) return kInvalidHandle;
  stream->alive = false;
  --counted().queues;
  counted().loose += stream->under_way.size();
  return kOk;
}
