// Memory of Level Zero's devices, through its core API (ze_api.hpp).
//
// Each driver of the loader's has a context of ours. The specification lets a context know its own
// allocations only; Intel's driver for GPUs, which is what programs meet, finds every allocation of
// the process from any context of the driver, and libfabric's own providers rely upon that as well.
// Where a driver keeps to the letter, the application's memory is unknown here and refused.
//
// A registration is known by its allocation's identifier and range, asked for before each copy.
// Intel's driver may cut small allocations out of larger ones, all of which bear the identifier of
// the whole: one that was freed is seen to be so, but not if another of exactly that range has
// taken its place.
//
// A device's number is that of libfabric's fi_hmem_ze_device: the driver's place in the upper 16
// bits, the device's among the driver's in the lower 16; a part of a device has its device's.
// Copies go through immediate command lists that are synchronous, one for each copy under way.
//
// Device memory in whole blocks can be shared with another process (zeMemGetIpcHandle). Such a
// handle names a descriptor of this process, which stays open as long as the registration. Who
// opens it duplicates that by pidfd_getfd(2), for which the kernel asks for the same right as for
// process_vm_readv(2), by which the handle was read (ADR 11), and the duplicate belongs to the
// driver, as Intel's takes it. What is opened is mapped once in this process. None of this has met
// hardware so far.
#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "base/fd.hpp"
#include "base/fork.hpp"
#include "base/no_throw.hpp"
#include "memory/mappings.hpp"
#include "memory/spare_handles.hpp"
#include "memory/vendors.hpp"
#include "memory/ze_api.hpp"

namespace aperture::memory {

namespace {

constexpr const char* kForked =
    "this process was forked from one that had Level Zero set up: Level Zero does not survive a "
    "fork.";
constexpr const char* kTooOld =
    "libze_loader.so.1 lacks calls that copies need: install one of Level Zero 1.0 or later.";
constexpr const char* kNoDevice =
    "Level Zero finds no GPU here: install Intel's driver for it, or see what "
    "ZE_AFFINITY_MASK leaves.";
constexpr const char* kNoStart =
    "Level Zero does not start: see what zeInit says with ZE_ENABLE_LOADER_DEBUG_TRACE=1.";
constexpr const char* kUnknown =
    "no allocation of Level Zero's has this address: name memory of zeMemAllocDevice or "
    "zeMemAllocShared, before it is freed.";
constexpr const char* kHost =
    "Level Zero has this memory at the host, where the CPU can use it: name it as host memory.";
constexpr const char* kElsewhere =
    "the memory is of another Level Zero device than the one that was named: its number is its "
    "driver's in the upper 16 bits and its own in the lower 16.";
constexpr const char* kTooLong =
    "the range goes past the end of its Level Zero allocation: each allocation is named by itself.";
constexpr const char* kSaidNo =
    "Level Zero refused to look at the memory: its device may have been lost.";

struct Device {
  explicit Device(ze::Handle its_handle, int its_number, uint32_t group)
      : handle(its_handle), number(its_number), copy_group(group) {}

  const ze::Handle handle;
  const int number;
  const uint32_t copy_group;  // of its command queues, the one for copies
  SpareHandles lists;
};

// A driver of the loader's, and what of it is ours.
struct Instance {
  ze::Handle context = nullptr;
  std::list<Device> devices;  // and their parts; never empty
};

// What Level Zero knows of an address: whose it is, and how the allocation is told from others.
struct Facts {
  Instance* instance = nullptr;
  Device* device = nullptr;  // the instance's first, if the memory has none
  uint32_t memory = ze::kUnknown;
  uint64_t id = 0;
  const std::byte* base = nullptr;
  size_t len_bytes = 0;

  bool is_the_same(const Facts& other) const noexcept {
    return instance == other.instance && memory == other.memory && id == other.id &&
           base == other.base && len_bytes == other.len_bytes;
  }
};

class ZeDriver final : public Driver, private Mappings {
 public:
  // Takes the instances over.
  ZeDriver(const ze::Calls& calls, std::list<Instance>& instances) noexcept : ze_(calls) {
    instances_.swap(instances);
    assert(!instances_.empty());
  }

  Kind kind() const noexcept override { return Kind::ze; }
  Result<std::shared_ptr<const Registration>> add(void* at, size_t len, int device,
                                                  const char*& why) noexcept override;
  bool has(const void* at) const noexcept override;
  std::shared_ptr<const Registration> open(const Share& share, size_t len,
                                           pid_t owner) noexcept override;
  void* take_host(size_t n) noexcept override;
  void give_host(void* at, size_t n) noexcept override;

  // To or from `at`, which is device memory.
  bool copy(const Facts& facts, const std::byte* at, void* to, const void* from, size_t n) noexcept;
  // The same in memory that stays what it is.
  bool copy_on(ze::Handle context, Device& device, void* to, const void* from, size_t n) noexcept;

  // Of registered memory. `handle`: the one that was given out before, or will be.
  bool share(const std::byte* at, const Facts& facts, std::optional<ze::IpcHandle>& handle,
             Share& out) const noexcept;
  void put_back(const std::byte* at, const Facts& facts,
                const ze::IpcHandle& handle) const noexcept;

 private:
  bool is_ours() const noexcept { return process_epoch() == made_in_; }
  // The facts of whichever driver knows the address, or of one driver. False: one said no.
  bool ask(const void* at, Facts& facts) const noexcept;
  bool ask(Instance& instance, const void* at, Facts& facts) const noexcept;
  // Whether the memory there is what it was.
  bool is_still(const std::byte* at, const Facts& facts) const noexcept;
  bool name_of_device(const Device& device, std::array<std::byte, 16>& name) const noexcept;
  bool map(const Share& share, pid_t owner, ze::Handle context, ze::Handle device,
           Mapped& mapped) const noexcept;
  void unmap(const Mapped& mapped) noexcept override;

  const ze::Calls ze_;
  const uint64_t made_in_ = process_epoch();
  mutable std::list<Instance> instances_;  // they stay; what changes in them has its own lock
};

class ZeRegistration final : public Registration {
 public:
  ZeRegistration(ZeDriver& driver, const void* at, size_t len, const Facts& facts)
      : Registration(static_cast<const std::byte*>(at), len), driver_(driver), facts_(facts) {}
  ~ZeRegistration() override {
    if (handle_) driver_.put_back(begin(), facts_, *handle_);
  }

  Kind kind() const noexcept override { return Kind::ze; }
  bool share(Share& out) const noexcept override {
    const std::lock_guard guard(sharing_);
    return driver_.share(begin(), facts_, handle_, out);
  }

 private:
  bool put(std::byte* at, const void* from, size_t n) const noexcept override {
    return driver_.copy(facts_, at, at, from, n);
  }
  bool get(void* to, const std::byte* at, size_t n) const noexcept override {
    return driver_.copy(facts_, at, to, at, n);
  }

  ZeDriver& driver_;
  const Facts facts_;
  mutable std::mutex sharing_;                   // guards what follows
  mutable std::optional<ze::IpcHandle> handle_;  // that was given out
};

// A range of another process's.
class ZeShared final : public Registration {
 public:
  ZeShared(ZeDriver& driver, std::shared_ptr<const Mapped> mapped, const std::byte* at, size_t len,
           Device& device)
      : Registration(at, len), driver_(driver), mapped_(std::move(mapped)), device_(device) {}

  Kind kind() const noexcept override { return Kind::ze; }

 private:
  bool put(std::byte* at, const void* from, size_t n) const noexcept override {
    return driver_.copy_on(mapped_->in, device_, at, from, n);
  }
  bool get(void* to, const std::byte* at, size_t n) const noexcept override {
    return driver_.copy_on(mapped_->in, device_, to, at, n);
  }

  ZeDriver& driver_;
  const std::shared_ptr<const Mapped> mapped_;
  Device& device_;
};

bool ZeDriver::ask(Instance& instance, const void* at, Facts& facts) const noexcept {
  ze::MemoryProperties properties;
  ze::Handle handle = nullptr;
  if (ze_.zeMemGetAllocProperties(instance.context, at, &properties, &handle) != ze::kSuccess)
    return false;
  facts.instance = &instance;
  facts.device = &instance.devices.front();
  facts.memory = properties.memory;
  facts.id = properties.id;
  for (Device& device : instance.devices) {
    if (device.handle == handle) facts.device = &device;
  }
  return true;
}

bool ZeDriver::ask(const void* at, Facts& facts) const noexcept {
  if (at == nullptr || !is_ours()) return false;
  for (Instance& instance : instances_) {
    if (!ask(instance, at, facts)) return false;
    if (facts.memory != ze::kUnknown) return true;
  }
  return true;
}

bool ZeDriver::has(const void* at) const noexcept {
  Facts facts;
  return ask(at, facts) && facts.memory == ze::kDevice;
}

Result<std::shared_ptr<const Registration>> ZeDriver::add(void* at, size_t len, int device,
                                                          const char*& why) noexcept {
  assert(len != 0);
  Facts facts;
  void* base = nullptr;
  if (!ask(at, facts)) {
    why = is_ours() ? kSaidNo : kForked;
    return Errc::io;
  }
  if (facts.memory == ze::kHost) {
    why = kHost;
    return Errc::not_supported;
  }
  why = nullptr;
  if (facts.memory == ze::kUnknown || ze_.zeMemGetAddressRange(facts.instance->context, at, &base,
                                                               &facts.len_bytes) != ze::kSuccess) {
    why = kUnknown;
  } else if (device != kAnyDevice && device != facts.device->number) {
    why = kElsewhere;
  }
  if (why != nullptr) return Errc::invalid;
  facts.base = static_cast<const std::byte*>(base);
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(at) - facts.base);
  if (offset > facts.len_bytes || len > facts.len_bytes - offset) {
    why = kTooLong;
    return Errc::invalid;
  }
  auto made = no_throw([&]() -> Result<std::shared_ptr<const Registration>> {
    return std::shared_ptr<const Registration>(
        std::make_shared<ZeRegistration>(*this, at, len, facts));
  });
  if (!made) why = kNoRoom;
  return made;
}

bool ZeDriver::is_still(const std::byte* at, const Facts& facts) const noexcept {
  assert(facts.instance != nullptr);
  Facts now;
  void* base = nullptr;
  if (!is_ours() || !ask(*facts.instance, at, now) ||
      ze_.zeMemGetAddressRange(facts.instance->context, at, &base, &now.len_bytes) != ze::kSuccess)
    return false;
  now.base = static_cast<const std::byte*>(base);
  return now.is_the_same(facts);
}

bool ZeDriver::copy(const Facts& facts, const std::byte* at, void* to, const void* from,
                    size_t n) noexcept {
  assert(facts.device != nullptr);
  return is_still(at, facts) && copy_on(facts.instance->context, *facts.device, to, from, n);
}

bool ZeDriver::copy_on(ze::Handle context, Device& device, void* to, const void* from,
                       size_t n) noexcept {
  if (!is_ours()) return false;
  ze::Handle list = device.lists.take();
  if (list == nullptr) {
    ze::QueueDesc queue;
    queue.group = device.copy_group;
    if (ze_.zeCommandListCreateImmediate(context, device.handle, &queue, &list) != ze::kSuccess)
      return false;
  }
  assert(list != nullptr);
  const bool copied =
      ze_.zeCommandListAppendMemoryCopy(list, to, from, n, nullptr, 0, nullptr) == ze::kSuccess;
  // one that has failed may have anything left in it
  if (!copied || !device.lists.give(list)) ze_.zeCommandListDestroy(list);
  return copied;
}

// ---- between processes --------------------------------------------------------------------------

// A descriptor of that process's, here; not open: it has none of that number, or the kernel does
// not let us.
UniqueFd duplicate_of(pid_t owner, int fd) noexcept {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, owner, 0)));
  if (!process) return {};
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), fd, 0)));
}

bool ZeDriver::name_of_device(const Device& device,
                              std::array<std::byte, 16>& name) const noexcept {
  ze::DeviceProperties properties;
  if (ze_.zeDeviceGetProperties(device.handle, &properties) != ze::kSuccess) return false;
  static_assert(sizeof properties.uuid == sizeof name);
  std::memcpy(name.data(), properties.uuid, name.size());
  return true;
}

bool ZeDriver::share(const std::byte* at, const Facts& facts, std::optional<ze::IpcHandle>& handle,
                     Share& out) const noexcept {
  if (!ze_.has_shares() || facts.memory != ze::kDevice ||
      !has_its_blocks(reinterpret_cast<uintptr_t>(facts.base), facts.len_bytes) ||
      !name_of_device(*facts.device, out.device))
    return false;
  ze::IpcHandle made{};
  if (!handle) {
    if (ze_.zeMemGetIpcHandle(facts.instance->context, facts.base, &made) != ze::kSuccess)
      return false;
    handle = made;
  }
  if (!is_still(at, facts)) return false;  // asked last: the handle is of what is there now
  out.kind = static_cast<uint64_t>(Kind::ze);
  static_assert(sizeof handle->bytes == sizeof out.handle);
  std::memcpy(out.handle.data(), handle->bytes, out.handle.size());
  out.id = facts.id;
  out.offset = static_cast<uint64_t>(at - facts.base);
  return true;
}

// Of memory that was freed the driver has closed it by itself, and its number may be another's.
void ZeDriver::put_back(const std::byte* at, const Facts& facts,
                        const ze::IpcHandle& handle) const noexcept {
  if (ze_.zeMemPutIpcHandle != nullptr && is_still(at, facts))
    ze_.zeMemPutIpcHandle(facts.instance->context, handle);
}

bool ZeDriver::map(const Share& share, pid_t owner, ze::Handle context, ze::Handle device,
                   Mapped& mapped) const noexcept {
  ze::IpcHandle handle{};
  std::memcpy(handle.bytes, share.handle.data(), share.handle.size());
  int number = -1;
  std::memcpy(&number, handle.bytes, sizeof number);
  UniqueFd own = duplicate_of(owner, number);
  if (!own) return false;
  number = own.get();
  std::memcpy(handle.bytes, &number, sizeof number);
  void* at = nullptr;
  if (ze_.zeMemOpenIpcHandle(context, device, handle, 0, &at) != ze::kSuccess || at == nullptr)
    return false;
  own.release();  // the driver closes it with the memory
  mapped.at = static_cast<std::byte*>(at);
  mapped.in = context;
  void* base = nullptr;
  size_t size = 0;
  if (ze_.zeMemGetAddressRange(context, at, &base, &size) == ze::kSuccess && base == at)
    mapped.size = size;
  return true;
}

void ZeDriver::unmap(const Mapped& mapped) noexcept {
  if (is_ours()) ze_.zeMemCloseIpcHandle(mapped.in, mapped.at);
}

std::shared_ptr<const Registration> ZeDriver::open(const Share& share, size_t len,
                                                   pid_t owner) noexcept {
  if (!is_ours() || !ze_.has_shares() || len == 0 || owner <= 0 || owner == ::getpid())
    return nullptr;
  std::array<std::byte, 16> name{};
  Instance* instance = nullptr;
  Device* on = nullptr;
  for (Instance& one : instances_) {
    for (Device& device : one.devices) {
      if (on != nullptr || !name_of_device(device, name) || name != share.device) continue;
      instance = &one;
      on = &device;
    }
  }
  if (on == nullptr) return nullptr;
  auto opened = no_throw([&]() -> Result<std::shared_ptr<const Registration>> {
    auto mapped = find(share, owner, [&](Mapped& one) {
      return map(share, owner, instance->context, on->handle, one);
    });
    std::byte* const at = mapped != nullptr ? mapped->place_of(share.offset, len) : nullptr;
    if (at == nullptr) return Errc::not_supported;
    return std::shared_ptr<const Registration>(
        std::make_shared<ZeShared>(*this, std::move(mapped), at, len, *on));
  });
  return opened ? *std::move(opened) : nullptr;
}

// ---- host memory --------------------------------------------------------------------------------

void* ZeDriver::take_host(size_t n) noexcept {
  if (!is_ours()) return nullptr;
  const ze::HostMemoryDesc desc;
  void* at = nullptr;
  if (ze_.zeMemAllocHost(instances_.front().context, &desc, n, 0, &at) != ze::kSuccess)
    return nullptr;
  return at;
}

void ZeDriver::give_host(void* at, size_t) noexcept {
  assert(at != nullptr);
  if (is_ours()) ze_.zeMemFree(instances_.front().context, at);
}

// What zeXGet(count, things) enumerates; empty: it failed, or there are none. Throws bad_alloc.
template <typename T, typename Get>
std::vector<T> all_of(Get&& get) {
  uint32_t count = 0;
  if (get(&count, nullptr) != ze::kSuccess || count == 0) return {};
  std::vector<T> things(count);
  if (get(&count, things.data()) != ze::kSuccess) return {};
  things.resize(count < things.size() ? count : things.size());
  return things;
}

// An engine that only copies does not wait for the application's kernels.
uint32_t copy_group_of(const ze::Calls& calls, ze::Handle device) {
  const auto groups = all_of<ze::QueueGroup>([&](uint32_t* count, ze::QueueGroup* to) {
    return calls.zeDeviceGetCommandQueueGroupProperties(device, count, to);
  });
  for (size_t i = 0; i < groups.size(); ++i) {
    if ((groups[i].flags & (ze::kCopy | ze::kCompute)) == ze::kCopy)
      return static_cast<uint32_t>(i);
  }
  return 0;
}

void add_devices(const ze::Calls& calls, ze::Handle driver, int driver_number,
                 std::list<Device>& to) {
  const auto devices = all_of<ze::Handle>(
      [&](uint32_t* count, ze::Handle* into) { return calls.zeDeviceGet(driver, count, into); });
  int number = driver_number << 16;
  for (ze::Handle device : devices) {
    to.emplace_back(device, number, copy_group_of(calls, device));
    const auto parts = all_of<ze::Handle>([&](uint32_t* count, ze::Handle* into) {
      return calls.zeDeviceGetSubDevices(device, count, into);
    });
    for (ze::Handle part : parts) to.emplace_back(part, number, copy_group_of(calls, part));
    ++number;
  }
}

// Adds what each driver has, in the loader's order; one without devices is left out, but counted.
Status add_instances(const ze::Calls& calls, std::list<Instance>& to) noexcept {
  return no_throw([&]() -> Status {
    const auto drivers = all_of<ze::Handle>(
        [&](uint32_t* count, ze::Handle* into) { return calls.zeDriverGet(count, into); });
    for (size_t i = 0; i < drivers.size(); ++i) {
      Instance& instance = to.emplace_back();
      add_devices(calls, drivers[i], static_cast<int>(i), instance.devices);
      const ze::ContextDesc desc;
      if (instance.devices.empty() ||
          calls.zeContextCreate(drivers[i], &desc, &instance.context) != ze::kSuccess)
        to.pop_back();
    }
    return {};
  });
}

}  // namespace

bool ze_in_use(Library library) noexcept {
  int (*const get_drivers)(uint32_t*, ze::Handle*) = library.find("zeDriverGet");
  uint32_t count = 0;
  return get_drivers != nullptr && get_drivers(&count, nullptr) == ze::kSuccess && count != 0;
}

Result<Driver*> make_ze(Library library, const char*& why) noexcept {
  const ze::Calls calls(library);
  why = kTooOld;
  if (calls.find.missing() != nullptr) return Errc::not_supported;
  const int started = calls.zeInit(ze::kGpuOnly);
  why = started == ze::kUninitialized ? kNoDevice : kNoStart;
  if (started != ze::kSuccess) return Errc::not_supported;
  std::list<Instance> instances;
  const Status found = add_instances(calls, instances);
  auto made = no_throw([&]() -> Result<Driver*> {
    why = kNoRoom;
    if (!found) return found.error();
    why = kNoDevice;
    if (instances.empty()) return Errc::not_supported;
    why = kNoRoom;
    return new ZeDriver(calls, instances);
  });
  if (!made) {
    for (const Instance& instance : instances) {
      if (instance.context != nullptr) calls.zeContextDestroy(instance.context);
    }
  }
  return made;
}

}  // namespace aperture::memory
