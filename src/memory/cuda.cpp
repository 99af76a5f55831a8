// Memory of CUDA's devices, through the driver API (cuda_api.hpp).
//
// A registration is known by its allocation's buffer id, which CUDA never uses twice; each copy
// asks for it first. Copies go through streams of our own that wait for no other stream, so that a
// kernel of the application's that waits for a message cannot hold the message up. In return the
// application has to have finished its work on the memory, as for any NIC. What it calls
// synchronous (a cudaMemset, a copy within the device) CUDA finishes before it returns, because
// each registration sets SYNC_MEMOPS; but not for memory of cuMemMap, which lacks that attribute.
//
// A copy runs in the context of the memory. Streams are kept between copies in primary contexts
// alone, each of which is retained for good: any other may be destroyed at any time and its handle
// used again, and makes a stream for one copy. The application's current context is the same after
// every call.
//
// Memory of cuMemAlloc can be shared with another process (cuIpcGetMemHandle); managed memory and
// that of pools and of cuMemMap cannot. A handle is of whole blocks of the driver's, and small
// allocations come out of one such block: only what has its blocks to itself is shared, so that
// memory which is freed stays nobody's while somebody has it open. What is opened is mapped once in
// this process, into the primary context of its device, and for as long as anything of it is held.
#include <atomic>
#include <cassert>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/fork.hpp"
#include "base/no_throw.hpp"
#include "memory/cuda_api.hpp"
#include "memory/mappings.hpp"
#include "memory/spare_handles.hpp"
#include "memory/vendors.hpp"

namespace aperture::memory {

namespace {

constexpr const char* kForked =
    "this process was forked from one that had CUDA set up: CUDA does not survive a fork.";
constexpr const char* kTooOld =
    "the driver behind libcuda.so.1 lacks calls that copies need: install one for CUDA 11 or "
    "later.";
constexpr const char* kNoDevice = "CUDA finds no device here: nvidia-smi says what it sees.";
constexpr const char* kNoStart = "CUDA's driver does not start: nvidia-smi says what is wrong.";
constexpr const char* kUnknown =
    "no CUDA allocation has this address: name memory of cuMemAlloc or cudaMalloc, before it is "
    "freed.";
constexpr const char* kHost =
    "CUDA has this memory at the host, where the CPU can use it: name it as host memory.";
constexpr const char* kElsewhere =
    "the memory is of another CUDA device than the one that was named: ask "
    "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL for it.";
constexpr const char* kTooLong =
    "the range goes past the end of its CUDA allocation: each allocation is named by itself.";
constexpr const char* kSaidNo =
    "CUDA's driver refused to look at the memory: an earlier error of a kernel may have ended its "
    "context.";

// What CUDA knows of an address.
struct Facts {
  cu::Context context = nullptr;  // null: of no context (a memory pool, cuMemMap)
  unsigned type = 0;              // 0: not CUDA's
  unsigned long long id = 0;
  unsigned managed = 0;
  int device = -1;
};

// Where copies of an allocation run.
struct Home {
  cu::Context context = nullptr;
  SpareHandles* streams = nullptr;  // null: none are kept, the context is the application's own
};

// The context is current while this exists, and what was current before is so again afterwards.
class InContext {
 public:
  InContext(const cu::Calls& calls, cu::Context context) noexcept
      : cu_(calls), entered_(calls.cuCtxPushCurrent(context) == cu::kSuccess) {
    assert(context != nullptr);
  }
  ~InContext() {
    cu::Context left = nullptr;
    if (entered_) cu_.cuCtxPopCurrent(&left);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  explicit operator bool() const noexcept { return entered_; }

 private:
  const cu::Calls& cu_;
  const bool entered_;
};

class CudaDriver final : public Driver, private Mappings {
 public:
  CudaDriver(const cu::Calls& calls, size_t count) : cu_(calls), devices_(count) {}

  Kind kind() const noexcept override { return Kind::cuda; }
  Result<std::shared_ptr<const Registration>> add(void* at, size_t len, int device,
                                                  const char*& why) noexcept override;
  bool has(const void* at) const noexcept override;
  std::shared_ptr<const Registration> open(const Share& share, size_t len,
                                           pid_t owner) noexcept override;
  bool has_pinned(const void* at, size_t n) const noexcept override;
  void* take_host(size_t n) noexcept override;
  void give_host(void* at, size_t n) noexcept override;

  // False: anything failed.
  bool put(const Home& home, std::byte* at, const void* from, size_t n) noexcept {
    return copy(home, [&](cu::Stream on) { return submit_in(at, from, n, on); });
  }
  bool get(const Home& home, void* to, const std::byte* at, size_t n) noexcept {
    return copy(home, [&](cu::Stream on) { return submit_out(to, at, n, on); });
  }
  // As Registration has them.
  Flight::State begin_put(const Home& home, void*& stream, std::byte* at, const void* from,
                          size_t n) noexcept {
    const InContext inside(cu_, home.context);
    const bool begun =
        inside && begin(home, stream, [&](cu::Stream on) { return submit_in(at, from, n, on); });
    return begun ? Flight::State::under_way : Flight::State::failed;
  }
  Flight::State begin_get(const Home& home, void*& stream, void* to, const std::byte* at,
                          size_t n) noexcept {
    const InContext inside(cu_, home.context);
    const bool begun =
        inside && begin(home, stream, [&](cu::Stream on) { return submit_out(to, at, n, on); });
    return begun ? Flight::State::under_way : Flight::State::failed;
  }
  Flight::State settle(const Home& home, void* stream, bool wait) noexcept;
  bool is_still(const std::byte* at, unsigned long long id) const noexcept;
  bool share(const std::byte* at, unsigned long long id, const Home& home,
             Share& out) const noexcept;

 private:
  struct Device {
    std::atomic<cu::Context> primary{nullptr};  // retained for good; null: not used so far
    SpareHandles streams;                       // of that context
  };

  // All three with the home's context current. begin() calls submit(stream); false: failed.
  template <typename Submit>
  bool begin(const Home& home, cu::Stream& stream, Submit&& submit) noexcept;
  void end(const Home& home, cu::Stream stream, bool copied) noexcept;
  // The two, with a wait in between. False: anything failed.
  template <typename Submit>
  bool copy(const Home& home, Submit&& submit) noexcept;
  int submit_in(std::byte* at, const void* from, size_t n, cu::Stream stream) const noexcept;
  int submit_out(void* to, const std::byte* at, size_t n, cu::Stream stream) const noexcept {
    return cu_.cuMemcpyDtoHAsync(to, reinterpret_cast<cu::Pointer>(at), n, stream);
  }
  int device_named(const std::array<std::byte, 16>& name) const noexcept;
  bool map(const Share& share, cu::Context context, Mapped& mapped) const noexcept;
  void unmap(const Mapped& mapped) noexcept override;

  bool is_ours() const noexcept { return process_epoch() == made_in_; }
  bool ask(const void* at, Facts& facts) const noexcept;
  Result<Facts> check(const void* at, int device, const char*& why) const noexcept;
  bool is_one_allocation(const Home& home, const void* at, size_t len, bool& whole) const noexcept;
  bool find_home(const Facts& facts, Home& home) noexcept;
  cu::Context primary_of(int device) noexcept;
  cu::Context any_primary() noexcept;

  const cu::Calls cu_;
  const uint64_t made_in_ = process_epoch();
  std::vector<Device> devices_;  // by ordinal
};

class CudaRegistration final : public Registration {
 public:
  CudaRegistration(CudaDriver& driver, const void* at, size_t len, unsigned long long id, Home home)
      : Registration(static_cast<const std::byte*>(at), len),
        driver_(driver),
        id_(id),
        home_(home) {}

  Kind kind() const noexcept override { return Kind::cuda; }
  bool share(Share& out) const noexcept override { return driver_.share(begin(), id_, home_, out); }

 private:
  bool put(std::byte* at, const void* from, size_t n) const noexcept override {
    return driver_.is_still(at, id_) && driver_.put(home_, at, from, n);
  }
  bool get(void* to, const std::byte* at, size_t n) const noexcept override {
    return driver_.is_still(at, id_) && driver_.get(home_, to, at, n);
  }
  Flight::State begin_put(void*& queue, std::byte* at, const void* from,
                          size_t n) const noexcept override {
    if (!driver_.is_still(at, id_)) return Flight::State::failed;
    return driver_.begin_put(home_, queue, at, from, n);
  }
  Flight::State begin_get(void*& queue, void* to, const std::byte* at,
                          size_t n) const noexcept override {
    if (!driver_.is_still(at, id_)) return Flight::State::failed;
    return driver_.begin_get(home_, queue, to, at, n);
  }
  Flight::State settle(void* queue, bool wait) const noexcept override {
    return driver_.settle(home_, queue, wait);
  }

  CudaDriver& driver_;
  const unsigned long long id_;
  const Home home_;
};

// A range of another process's. What is mapped stays memory, so nothing is asked before a copy.
class CudaShared final : public Registration {
 public:
  CudaShared(CudaDriver& driver, std::shared_ptr<const Mapped> mapped, const std::byte* at,
             size_t len, Home home)
      : Registration(at, len), driver_(driver), mapped_(std::move(mapped)), home_(home) {}

  Kind kind() const noexcept override { return Kind::cuda; }

 private:
  bool put(std::byte* at, const void* from, size_t n) const noexcept override {
    return driver_.put(home_, at, from, n);
  }
  bool get(void* to, const std::byte* at, size_t n) const noexcept override {
    return driver_.get(home_, to, at, n);
  }
  Flight::State begin_put(void*& queue, std::byte* at, const void* from,
                          size_t n) const noexcept override {
    return driver_.begin_put(home_, queue, at, from, n);
  }
  Flight::State begin_get(void*& queue, void* to, const std::byte* at,
                          size_t n) const noexcept override {
    return driver_.begin_get(home_, queue, to, at, n);
  }
  Flight::State settle(void* queue, bool wait) const noexcept override {
    return driver_.settle(home_, queue, wait);
  }

  CudaDriver& driver_;
  const std::shared_ptr<const Mapped> mapped_;
  const Home home_;
};

bool CudaDriver::ask(const void* at, Facts& facts) const noexcept {
  int attributes[] = {cu::kContext, cu::kMemoryType, cu::kBufferId, cu::kIsManaged,
                      cu::kDeviceOrdinal};
  void* data[] = {&facts.context, &facts.type, &facts.id, &facts.managed, &facts.device};
  static_assert(std::size(attributes) == std::size(data));
  return is_ours() && cu_.cuPointerGetAttributes(std::size(data), attributes, data,
                                                 reinterpret_cast<cu::Pointer>(at)) == cu::kSuccess;
}

bool CudaDriver::is_still(const std::byte* at, unsigned long long id) const noexcept {
  Facts facts;
  return ask(at, facts) && facts.type != 0 && facts.id == id;
}

bool CudaDriver::has(const void* at) const noexcept {
  Facts facts;
  return ask(at, facts) && facts.type == cu::kDevice && facts.managed == 0;
}

// What may be registered there, as far as the address alone tells.
Result<Facts> CudaDriver::check(const void* at, int device, const char*& why) const noexcept {
  Facts facts;
  if (!ask(at, facts)) {
    why = is_ours() ? kSaidNo : kForked;
    return Errc::io;
  }
  if (facts.type == 0) {
    why = kUnknown;
    return Errc::invalid;
  }
  if (facts.type != cu::kDevice && facts.managed == 0) {
    why = kHost;
    return Errc::not_supported;
  }
  if (device != kAnyDevice && device != facts.device) {
    why = kElsewhere;
    return Errc::invalid;
  }
  return facts;
}

// Null: the driver refused.
cu::Context CudaDriver::primary_of(int device) noexcept {
  assert(device >= 0 && static_cast<size_t>(device) < devices_.size());
  std::atomic<cu::Context>& primary = devices_[static_cast<size_t>(device)].primary;
  // relaxed, both: the handle is CUDA's word for what it guards itself
  cu::Context context = primary.load(std::memory_order_relaxed);
  if (context != nullptr) return context;
  if (cu_.cuDevicePrimaryCtxRetain(&context, device) != cu::kSuccess) return nullptr;
  cu::Context before = nullptr;
  // another thread's reference is enough
  if (!primary.compare_exchange_strong(before, context, std::memory_order_relaxed))
    cu_.cuDevicePrimaryCtxRelease(device);
  return context;
}

cu::Context CudaDriver::any_primary() noexcept {
  for (const Device& device : devices_) {
    // relaxed: as in primary_of()
    if (cu::Context context = device.primary.load(std::memory_order_relaxed)) return context;
  }
  return primary_of(0);
}

bool CudaDriver::find_home(const Facts& facts, Home& home) noexcept {
  const bool on_a_device = facts.device >= 0 && static_cast<size_t>(facts.device) < devices_.size();
  const int device = on_a_device ? facts.device : 0;
  unsigned flags = 0;
  int active = 0;
  home.context = facts.context;
  // A primary context that nobody uses is not the memory's, and is not made for it.
  if (facts.context != nullptr &&
      (cu_.cuDevicePrimaryCtxGetState(device, &flags, &active) != cu::kSuccess || active == 0))
    return true;
  const cu::Context primary = primary_of(device);
  if (home.context == nullptr) home.context = primary;
  if (primary != nullptr && home.context == primary)
    home.streams = &devices_[static_cast<size_t>(device)].streams;
  return home.context != nullptr;
}

// False: the driver refused. Else `whole` tells.
bool CudaDriver::is_one_allocation(const Home& home, const void* at, size_t len,
                                   bool& whole) const noexcept {
  const auto place = reinterpret_cast<cu::Pointer>(at);
  cu::Pointer base = 0;
  size_t size = 0;
  const InContext inside(cu_, home.context);
  if (!inside || cu_.cuMemGetAddressRange(&base, &size, place) != cu::kSuccess) return false;
  whole = place >= base && len <= size && place - base <= size - len;
  // refused for memory of cuMemMap; see above
  const unsigned on = 1;
  if (whole) cu_.cuPointerSetAttribute(&on, cu::kSyncMemops, place);
  return true;
}

Result<std::shared_ptr<const Registration>> CudaDriver::add(void* at, size_t len, int device,
                                                            const char*& why) noexcept {
  assert(len != 0);
  const Result<Facts> facts = check(at, device, why);
  if (!facts) return facts.error();
  Home home;
  bool whole = false;
  if (!find_home(facts.value(), home) || !is_one_allocation(home, at, len, whole)) {
    why = kSaidNo;
    return Errc::io;
  }
  if (!whole) {
    why = kTooLong;
    return Errc::invalid;
  }
  assert(home.context != nullptr);
  auto made = no_throw([&]() -> Result<std::shared_ptr<const Registration>> {
    return std::shared_ptr<const Registration>(
        std::make_shared<CudaRegistration>(*this, at, len, facts.value().id, home));
  });
  if (!made) why = kNoRoom;
  return made;
}

// What is short CUDA writes into its commands, which wait for the context's turn at the device:
// where another process uses it too that is 274 us (H200, driver 580). Two rows go by the copy
// engine, as what is long does, in 9.
int CudaDriver::submit_in(std::byte* at, const void* from, size_t n,
                          cu::Stream stream) const noexcept {
  constexpr size_t kLongestInCommands = 65536;
  const auto to = reinterpret_cast<cu::Pointer>(at);
  if (n > kLongestInCommands || n == 1) return cu_.cuMemcpyHtoDAsync(to, from, n, stream);
  cu::Rows rows;
  rows.from_host = from;
  rows.to_device = to;
  rows.height = 2;
  rows.width = rows.from_pitch = rows.to_pitch = n / 2;
  const int first = cu_.cuMemcpy2DAsync(&rows, stream);
  if (first != cu::kSuccess || n % 2 == 0) return first;
  rows.from_host =
      static_cast<const std::byte*>(from) + n - 2;  // the last, and the one before again
  rows.to_device = to + n - 2;
  rows.width = rows.from_pitch = rows.to_pitch = 1;
  const int second = cu_.cuMemcpy2DAsync(&rows, stream);
  // the rows before are under way, and must not land once the copy has been refused
  if (second != cu::kSuccess) cu_.cuStreamSynchronize(stream);
  return second;
}

template <typename Submit>
bool CudaDriver::begin(const Home& home, cu::Stream& stream, Submit&& submit) noexcept {
  stream = home.streams != nullptr ? home.streams->take() : nullptr;
  if (stream != nullptr) {
    if (submit(stream) == cu::kSuccess) return true;
    // a kept one is no stream any more once the application has reset the device
    cu_.cuStreamDestroy(stream);
  }
  if (cu_.cuStreamCreate(&stream, cu::kStreamNonBlocking) != cu::kSuccess) return false;
  assert(stream != nullptr);
  if (submit(stream) == cu::kSuccess) return true;
  cu_.cuStreamDestroy(stream);
  return false;
}

void CudaDriver::end(const Home& home, cu::Stream stream, bool copied) noexcept {
  assert(stream != nullptr);
  // one that has failed may have work left that is not another copy's to wait for
  if (!copied || home.streams == nullptr || !home.streams->give(stream))
    cu_.cuStreamDestroy(stream);
}

template <typename Submit>
bool CudaDriver::copy(const Home& home, Submit&& submit) noexcept {
  const InContext inside(cu_, home.context);
  cu::Stream stream = nullptr;
  if (!inside || !begin(home, stream, submit)) return false;
  const bool copied = cu_.cuStreamSynchronize(stream) == cu::kSuccess;
  end(home, stream, copied);
  return copied;
}

Flight::State CudaDriver::settle(const Home& home, void* stream, bool wait) noexcept {
  const InContext inside(cu_, home.context);  // asked all the same where that is gone
  const int answer = wait ? cu_.cuStreamSynchronize(stream) : cu_.cuStreamQuery(stream);
  if (!wait && answer == cu::kNotReady) return Flight::State::under_way;
  end(home, stream, answer == cu::kSuccess);
  return answer == cu::kSuccess ? Flight::State::copied : Flight::State::failed;
}

// ---- between processes --------------------------------------------------------------------------

bool CudaDriver::share(const std::byte* at, unsigned long long id, const Home& home,
                       Share& out) const noexcept {
  Facts facts;
  if (!cu_.has_shares() || !ask(at, facts) || facts.type != cu::kDevice || facts.managed != 0 ||
      facts.id != id) {
    return false;
  }
  cu::Pointer base = 0;
  size_t size = 0;
  cu::IpcHandle handle{};
  cu::Uuid uuid{};
  const auto place = reinterpret_cast<cu::Pointer>(at);
  const InContext inside(cu_, home.context);
  if (!inside || cu_.cuMemGetAddressRange(&base, &size, place) != cu::kSuccess ||
      !has_its_blocks(base, size) || cu_.cuIpcGetMemHandle(&handle, base) != cu::kSuccess ||
      cu_.cuDeviceGetUuid(&uuid, facts.device) != cu::kSuccess) {
    return false;
  }
  out.kind = static_cast<uint64_t>(Kind::cuda);
  std::memcpy(out.device.data(), uuid.bytes, out.device.size());
  std::memcpy(out.handle.data(), handle.bytes, out.handle.size());
  out.id = id;
  out.offset = place - base;
  return true;
}

// -1: this process has no such device.
int CudaDriver::device_named(const std::array<std::byte, 16>& name) const noexcept {
  for (size_t i = 0; i < devices_.size(); ++i) {
    cu::Uuid uuid{};
    const auto device = static_cast<cu::Device>(i);
    if (cu_.cuDeviceGetUuid(&uuid, device) == cu::kSuccess &&
        std::memcmp(uuid.bytes, name.data(), name.size()) == 0) {
      return device;
    }
  }
  return -1;
}

bool CudaDriver::map(const Share& share, cu::Context context, Mapped& mapped) const noexcept {
  cu::IpcHandle handle{};
  std::memcpy(handle.bytes, share.handle.data(), share.handle.size());
  cu::Pointer at = 0;
  cu::Pointer base = 0;
  size_t size = 0;
  const InContext inside(cu_, context);
  if (!inside || cu_.cuIpcOpenMemHandle(&at, handle, cu::kLazyPeerAccess) != cu::kSuccess)
    return false;
  mapped.at = reinterpret_cast<std::byte*>(at);
  mapped.in = context;
  if (cu_.cuMemGetAddressRange(&base, &size, at) == cu::kSuccess && base == at) mapped.size = size;
  return true;
}

void CudaDriver::unmap(const Mapped& mapped) noexcept {
  if (!is_ours()) return;
  const InContext inside(cu_, mapped.in);
  if (inside) cu_.cuIpcCloseMemHandle(reinterpret_cast<cu::Pointer>(mapped.at));
}

std::shared_ptr<const Registration> CudaDriver::open(const Share& share, size_t len,
                                                     pid_t owner) noexcept {
  if (!is_ours() || !cu_.has_shares() || len == 0) return nullptr;
  const int device = device_named(share.device);
  const cu::Context context = device >= 0 ? primary_of(device) : nullptr;
  if (context == nullptr) return nullptr;
  const Home home{context, &devices_[static_cast<size_t>(device)].streams};
  auto opened = no_throw([&]() -> Result<std::shared_ptr<const Registration>> {
    auto mapped = find(share, owner, [&](Mapped& one) { return map(share, context, one); });
    std::byte* const at = mapped != nullptr ? mapped->place_of(share.offset, len) : nullptr;
    if (at == nullptr) return Errc::not_supported;
    return std::shared_ptr<const Registration>(
        std::make_shared<CudaShared>(*this, std::move(mapped), at, len, home));
  });
  return opened ? *std::move(opened) : nullptr;
}

// ---- host memory --------------------------------------------------------------------------------

bool CudaDriver::has_pinned(const void* at, size_t n) const noexcept {
  assert(n != 0);
  Facts first;
  Facts last;
  const auto* const bytes = static_cast<const std::byte*>(at);
  return ask(bytes, first) && first.type == cu::kHost && ask(bytes + n - 1, last) &&
         last.type == cu::kHost && last.id == first.id;
}

void* CudaDriver::take_host(size_t n) noexcept {
  const cu::Context context = is_ours() ? any_primary() : nullptr;
  if (context == nullptr) return nullptr;
  const InContext inside(cu_, context);
  void* at = nullptr;
  if (!inside || cu_.cuMemHostAlloc(&at, n, cu::kHostPortable) != cu::kSuccess) return nullptr;
  return at;
}

void CudaDriver::give_host(void* at, size_t) noexcept {
  assert(at != nullptr);
  const cu::Context context = is_ours() ? any_primary() : nullptr;
  if (context == nullptr) return;
  const InContext inside(cu_, context);
  cu_.cuMemFreeHost(at);
}

}  // namespace

bool cuda_in_use(Library library) noexcept {
  int (*const count_devices)(int*) = library.find("cuDeviceGetCount");
  int count = 0;
  return count_devices != nullptr && count_devices(&count) == cu::kSuccess && count > 0;
}

Result<Driver*> make_cuda(Library library, const char*& why) noexcept {
  const cu::Calls calls(library);
  why = kTooOld;
  if (calls.find.missing() != nullptr) return Errc::not_supported;
  const int started = calls.cuInit(0);
  int count = 0;
  why = kNoStart;
  if (started == cu::kSuccess && calls.cuDeviceGetCount(&count) != cu::kSuccess)
    return Errc::not_supported;
  why = started == cu::kSuccess || started == cu::kNoDevice ? kNoDevice : kNoStart;
  if (started != cu::kSuccess || count <= 0) return Errc::not_supported;
  why = kNoRoom;
  return no_throw(
      [&]() -> Result<Driver*> { return new CudaDriver(calls, static_cast<size_t>(count)); });
}

}  // namespace aperture::memory
