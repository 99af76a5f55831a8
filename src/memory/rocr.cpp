// Memory of AMD's devices, through the ROCm runtime (rocr_api.hpp).
//
// The runtime gives allocations no identity, and an address that was freed may be memory again. It
// does call back when an allocation is freed, before the address can be used again: each allocation
// that has a registration is watched that way, once and until it is freed, since the runtime takes
// all callbacks of one address away together. What it cannot watch is refused: memory imported from
// another process, or mapped by hsa_amd_vmem_map.
//
// A device's number is its place among the GPUs in the runtime's order, which is HIP's. Copies are
// hsa_memory_copy, which any thread may call and which returns when the bytes are there.
//
// What the runtime has allocated in whole blocks can be shared with another process
// (hsa_amd_ipc_memory_create); what is opened is mapped once in this process. None of this has met
// hardware so far.
#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "base/fork.hpp"
#include "base/no_throw.hpp"
#include "memory/mappings.hpp"
#include "memory/rocr_api.hpp"
#include "memory/vendors.hpp"

namespace aperture::memory {

namespace {

constexpr const char* kForked =
    "this process was forked from one that had ROCr set up: ROCr does not survive a fork.";
constexpr const char* kTooOld =
    "libhsa-runtime64.so.1 lacks calls that copies need: install one of ROCm 4 or later.";
constexpr const char* kNoDevice = "ROCr finds no GPU here: rocminfo says what it sees.";
constexpr const char* kNoStart = "ROCr does not start (hsa_init): rocminfo says what is wrong.";
constexpr const char* kUnknown =
    "no allocation of ROCr's has this address: name memory of hipMalloc or "
    "hsa_amd_memory_pool_allocate, before it is freed.";
constexpr const char* kHost =
    "ROCr has this memory at the host, where the CPU can use it: name it as host memory.";
constexpr const char* kElsewhere =
    "the memory is of another GPU than the one that was named, by its place among ROCr's agents.";
constexpr const char* kTooLong =
    "the range goes past the end of its ROCr allocation: each allocation is named by itself.";
constexpr const char* kUnwatched =
    "ROCr does not tell when this memory is freed, as for what another process exported or "
    "hsa_amd_vmem_map mapped: name memory of hipMalloc or hsa_amd_memory_pool_allocate.";
constexpr const char* kSaidNo =
    "ROCr refused to look at the memory: an earlier fault of a device may have ended its use.";

// One allocation of the application's, from its first registration until it is freed.
struct Allocation {
  explicit Allocation(uint64_t number) noexcept : id(number) {}

  const uint64_t id;  // of this process, never used again
  std::atomic<bool> freed{false};
};
using Life = std::shared_ptr<Allocation>;

// The allocations that are watched. The lock is never held during a call of the runtime's, which
// calls back from whichever thread frees.
class Watched {
 public:
  // The life of the allocation that begins at base. `is_new`: nobody watches it so far. Throws
  // bad_alloc.
  Life at(const void* base, bool& is_new) {
    const std::lock_guard guard(lock_);
    Life& life = lives_[base];
    is_new = life == nullptr;
    try {
      if (is_new) life = std::make_shared<Allocation>(++last_id_);
    } catch (const std::bad_alloc&) {
      lives_.erase(base);
      throw;
    }
    return life;
  }
  // That allocation is freed, or cannot be watched after all. Once it is out of the table nothing
  // else can end it.
  void end(const void* base) noexcept {
    const std::lock_guard guard(lock_);
    const auto found = lives_.find(base);
    if (found == lives_.end()) return;
    assert(!found->second->freed);
    // SYNC POINT: allocation-freed: whoever registers what comes next at this address is not us
    found->second->freed.store(true, std::memory_order_release);
    lives_.erase(found);
  }

 private:
  std::mutex lock_;  // guards what follows
  uint64_t last_id_ = 0;
  std::map<const void*, Life> lives_;  // by first address; each has a callback with the runtime
};

class RocrDriver final : public Driver, private Mappings {
 public:
  RocrDriver(const hsa::Calls& calls, std::vector<hsa::Agent> gpus, hsa::Pool host)
      : hsa_(calls), gpus_(std::move(gpus)), host_(host) {}

  Kind kind() const noexcept override { return Kind::rocr; }
  Result<std::shared_ptr<const Registration>> add(void* at, size_t len, int device,
                                                  const char*& why) noexcept override;
  bool has(const void* at) const noexcept override;
  std::shared_ptr<const Registration> open(const Share& share, size_t len,
                                           pid_t owner) noexcept override;
  void* take_host(size_t n) noexcept override;
  void give_host(void* at, size_t n) noexcept override;

  bool copy(const Allocation& allocation, void* to, const void* from, size_t n) const noexcept;
  // Of what another process shares: it stays memory.
  bool copy_shared(void* to, const void* from, size_t n) const noexcept {
    return is_ours() && hsa_.hsa_memory_copy(to, from, n) == hsa::kSuccess;
  }
  bool share(const std::byte* at, const Allocation& allocation, Share& out) const noexcept;

 private:
  static constexpr int kNone = -1;

  bool is_ours() const noexcept { return process_epoch() == made_in_; }
  bool ask(const void* at, hsa::PointerInfo& info) const noexcept;
  int number_of(hsa::Agent agent) const noexcept;
  Result<hsa::PointerInfo> check(const void* at, int device, const char*& why) const noexcept;
  Result<Life> watch(void* base, const char*& why) noexcept;
  bool name_of_device(hsa::Agent agent, std::array<std::byte, 16>& name) const noexcept;
  bool map(const Share& share, hsa::Agent agent, Mapped& mapped) const noexcept;
  void unmap(const Mapped& mapped) noexcept override;
  static void on_freed(void* base, void* driver) noexcept {
    static_cast<RocrDriver*>(driver)->watched_.end(base);
  }

  const hsa::Calls hsa_;
  const std::vector<hsa::Agent> gpus_;  // by number
  const hsa::Pool host_;                // 0: there is none
  const uint64_t made_in_ = process_epoch();
  Watched watched_;
};

class RocrRegistration final : public Registration {
 public:
  RocrRegistration(const RocrDriver& driver, const void* at, size_t len, Life life)
      : Registration(static_cast<const std::byte*>(at), len),
        driver_(driver),
        life_(std::move(life)) {}

  Kind kind() const noexcept override { return Kind::rocr; }
  bool share(Share& out) const noexcept override { return driver_.share(begin(), *life_, out); }

 private:
  bool put(std::byte* at, const void* from, size_t n) const noexcept override {
    return driver_.copy(*life_, at, from, n);
  }
  bool get(void* to, const std::byte* at, size_t n) const noexcept override {
    return driver_.copy(*life_, to, at, n);
  }

  const RocrDriver& driver_;
  const Life life_;
};

// A range of another process's.
class RocrShared final : public Registration {
 public:
  RocrShared(const RocrDriver& driver, std::shared_ptr<const Mapped> mapped, const std::byte* at,
             size_t len)
      : Registration(at, len), driver_(driver), mapped_(std::move(mapped)) {}

  Kind kind() const noexcept override { return Kind::rocr; }

 private:
  bool put(std::byte* at, const void* from, size_t n) const noexcept override {
    return driver_.copy_shared(at, from, n);
  }
  bool get(void* to, const std::byte* at, size_t n) const noexcept override {
    return driver_.copy_shared(to, at, n);
  }

  const RocrDriver& driver_;
  const std::shared_ptr<const Mapped> mapped_;
};

bool RocrDriver::ask(const void* at, hsa::PointerInfo& info) const noexcept {
  return is_ours() &&
         hsa_.hsa_amd_pointer_info(at, &info, nullptr, nullptr, nullptr) == hsa::kSuccess;
}

int RocrDriver::number_of(hsa::Agent agent) const noexcept {
  for (size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus_[i].handle == agent.handle) return static_cast<int>(i);
  }
  return kNone;
}

bool RocrDriver::has(const void* at) const noexcept {
  hsa::PointerInfo info;
  return at != nullptr && ask(at, info) && info.type != hsa::kUnknown &&
         info.type != hsa::kLocked && number_of(info.owner) != kNone;
}

// What may be registered there, as far as the address alone tells.
Result<hsa::PointerInfo> RocrDriver::check(const void* at, int device,
                                           const char*& why) const noexcept {
  hsa::PointerInfo info;
  if (!ask(at, info)) {
    why = is_ours() ? kSaidNo : kForked;
    return Errc::io;
  }
  if (info.type == hsa::kUnknown) {
    why = kUnknown;
    return Errc::invalid;
  }
  const int number = number_of(info.owner);
  if (info.type == hsa::kLocked || number == kNone) {
    why = kHost;
    return Errc::not_supported;
  }
  if (device != kAnyDevice && device != number) {
    why = kElsewhere;
    return Errc::invalid;
  }
  return info;
}

Result<Life> RocrDriver::watch(void* base, const char*& why) noexcept {
  bool is_new = false;
  auto life = no_throw([&]() -> Result<Life> { return watched_.at(base, is_new); });
  if (!life) {
    why = kNoRoom;
    return life.error();
  }
  // In the table before the runtime calls back, or an end that comes at once would find nothing.
  if (is_new && hsa_.hsa_amd_register_deallocation_callback(base, on_freed, this) != 0) {
    watched_.end(base);
    why = kUnwatched;
    return Errc::io;
  }
  return life;
}

Result<std::shared_ptr<const Registration>> RocrDriver::add(void* at, size_t len, int device,
                                                            const char*& why) noexcept {
  assert(len != 0);
  const Result<hsa::PointerInfo> first = check(at, device, why);
  if (!first) return first.error();
  Result<Life> life = watch(first.value().base, why);
  if (!life) return life.error();
  // Asked again now that it is watched: what was there before may have been freed in between.
  Result<hsa::PointerInfo> info = check(at, device, why);
  if (!info) return info.error();
  const auto* base = static_cast<const std::byte*>(info->base);
  const auto offset = static_cast<size_t>(static_cast<const std::byte*>(at) - base);
  if (base != first.value().base || (*life)->freed) {
    why = kUnknown;
    return Errc::invalid;
  }
  if (offset > info->len_bytes || len > info->len_bytes - offset) {
    why = kTooLong;
    return Errc::invalid;
  }
  auto made = no_throw([&]() -> Result<std::shared_ptr<const Registration>> {
    return std::shared_ptr<const Registration>(
        std::make_shared<RocrRegistration>(*this, at, len, std::move(*life)));
  });
  if (!made) why = kNoRoom;
  return made;
}

bool RocrDriver::copy(const Allocation& allocation, void* to, const void* from,
                      size_t n) const noexcept {
  // SYNC POINT: allocation-freed
  if (!is_ours() || allocation.freed.load(std::memory_order_acquire)) return false;
  return hsa_.hsa_memory_copy(to, from, n) == hsa::kSuccess;
}

// ---- between processes --------------------------------------------------------------------------

// False: the runtime does not say, or the device has no name that another process would know.
bool RocrDriver::name_of_device(hsa::Agent agent, std::array<std::byte, 16>& name) const noexcept {
  constexpr char kPrefix[] = "GPU-";
  constexpr size_t kPrefixBytes = sizeof kPrefix - 1;
  char uuid[64] = {};  // 21 bytes are written
  if (hsa_.hsa_agent_get_info(agent, hsa::kAgentUuid, uuid) != hsa::kSuccess ||
      ::strnlen(uuid, sizeof uuid) != kPrefixBytes + name.size() ||
      std::memcmp(uuid, kPrefix, kPrefixBytes) != 0)
    return false;
  std::memcpy(name.data(), uuid + kPrefixBytes, name.size());
  return true;
}

bool RocrDriver::share(const std::byte* at, const Allocation& allocation,
                       Share& out) const noexcept {
  hsa::PointerInfo info;
  hsa::IpcHandle handle{};
  if (!hsa_.has_shares() || !ask(at, info) || info.type != hsa::kAllocated ||
      !has_its_blocks(reinterpret_cast<uintptr_t>(info.base), info.len_bytes) ||
      !name_of_device(info.owner, out.device) ||
      hsa_.hsa_amd_ipc_memory_create(info.base, info.len_bytes, &handle) != hsa::kSuccess)
    return false;
  // asked last: until it is freed nothing else can have been there
  // SYNC POINT: allocation-freed
  if (allocation.freed.load(std::memory_order_acquire)) return false;
  out.kind = static_cast<uint64_t>(Kind::rocr);
  out.handle = {};
  const uint64_t size = info.len_bytes;  // which the runtime wants to be told
  static_assert(sizeof handle + sizeof size <= sizeof out.handle);
  std::memcpy(out.handle.data(), &handle, sizeof handle);
  std::memcpy(out.handle.data() + sizeof handle, &size, sizeof size);
  out.id = allocation.id;
  out.offset = static_cast<uint64_t>(at - static_cast<const std::byte*>(info.base));
  return true;
}

bool RocrDriver::map(const Share& share, hsa::Agent agent, Mapped& mapped) const noexcept {
  hsa::IpcHandle handle{};
  uint64_t size = 0;
  std::memcpy(&handle, share.handle.data(), sizeof handle);
  std::memcpy(&size, share.handle.data() + sizeof handle, sizeof size);
  void* at = nullptr;
  if (hsa_.hsa_amd_ipc_memory_attach(&handle, size, 1, &agent, &at) != hsa::kSuccess ||
      at == nullptr)
    return false;
  mapped.at = static_cast<std::byte*>(at);
  hsa::PointerInfo info;  // the size was the peer's word
  if (ask(at, info) && info.type != hsa::kUnknown && info.base == at) mapped.size = info.len_bytes;
  return true;
}

void RocrDriver::unmap(const Mapped& mapped) noexcept {
  if (is_ours()) hsa_.hsa_amd_ipc_memory_detach(mapped.at);
}

std::shared_ptr<const Registration> RocrDriver::open(const Share& share, size_t len,
                                                     pid_t owner) noexcept {
  if (!is_ours() || !hsa_.has_shares() || len == 0) return nullptr;
  std::array<std::byte, 16> name{};
  const auto agent = std::find_if(gpus_.begin(), gpus_.end(), [&](hsa::Agent gpu) {
    return name_of_device(gpu, name) && name == share.device;
  });
  if (agent == gpus_.end()) return nullptr;
  auto opened = no_throw([&]() -> Result<std::shared_ptr<const Registration>> {
    auto mapped = find(share, owner, [&](Mapped& one) { return map(share, *agent, one); });
    std::byte* const at = mapped != nullptr ? mapped->place_of(share.offset, len) : nullptr;
    if (at == nullptr) return Errc::not_supported;
    return std::shared_ptr<const Registration>(
        std::make_shared<RocrShared>(*this, std::move(mapped), at, len));
  });
  return opened ? *std::move(opened) : nullptr;
}

// ---- host memory --------------------------------------------------------------------------------

void* RocrDriver::take_host(size_t n) noexcept {
  if (!is_ours() || host_.handle == 0) return nullptr;
  void* at = nullptr;
  if (hsa_.hsa_amd_memory_pool_allocate(host_, n, 0, &at) != hsa::kSuccess) return nullptr;
  assert(at != nullptr && !gpus_.empty());
  const auto count = static_cast<uint32_t>(gpus_.size());
  if (hsa_.hsa_amd_agents_allow_access(count, gpus_.data(), nullptr, at) == hsa::kSuccess)
    return at;
  hsa_.hsa_amd_memory_pool_free(at);
  return nullptr;
}

void RocrDriver::give_host(void* at, size_t) noexcept {
  assert(at != nullptr);
  if (is_ours()) hsa_.hsa_amd_memory_pool_free(at);
}

// What the runtime has, as its iterations find it. Each of them is stopped by an answer other than
// kSuccess, which becomes the answer of the whole.
struct Found {
  const hsa::Calls& hsa;
  std::vector<hsa::Agent> gpus;
  std::vector<hsa::Agent> cpus;
  hsa::Pool host;
  bool is_out_of_memory = false;
};

int note_agent(hsa::Agent agent, void* to) noexcept {
  auto& found = *static_cast<Found*>(to);
  int device = -1;
  const int answer = found.hsa.hsa_agent_get_info(agent, hsa::kAgentDevice, &device);
  if (answer != hsa::kSuccess) return answer;
  const Status noted = no_throw([&] {
    if (device == hsa::kGpu) found.gpus.push_back(agent);
    if (device == hsa::kCpu) found.cpus.push_back(agent);
  });
  found.is_out_of_memory = !noted.ok();
  return noted.ok() ? hsa::kSuccess : hsa::kOutOfResources;
}

// The first pool that the CPU and all devices see at the same time, and that allocates.
int note_pool(hsa::Pool pool, void* to) noexcept {
  auto& found = *static_cast<Found*>(to);
  uint32_t segment = 0;
  uint32_t flags = 0;
  bool allocates = false;
  int answer = found.hsa.hsa_amd_memory_pool_get_info(pool, hsa::kPoolSegment, &segment);
  if (answer != hsa::kSuccess || segment != hsa::kSegmentGlobal) return answer;
  answer = found.hsa.hsa_amd_memory_pool_get_info(pool, hsa::kPoolFlags, &flags);
  if (answer != hsa::kSuccess) return answer;
  answer = found.hsa.hsa_amd_memory_pool_get_info(pool, hsa::kPoolAllocates, &allocates);
  if (answer != hsa::kSuccess) return answer;
  const bool fits = (flags & hsa::kFineGrained) != 0 && (flags & hsa::kKernargs) == 0;
  if (found.host.handle == 0 && allocates && fits) found.host = pool;
  return hsa::kSuccess;
}

// Of a runtime that has started.
Status look_around(Found& found, const char*& why) noexcept {
  const int answer = found.hsa.hsa_iterate_agents(note_agent, &found);
  why = found.is_out_of_memory ? kNoRoom : kNoStart;
  if (found.is_out_of_memory) return Errc::no_memory;
  if (answer != hsa::kSuccess) return Errc::not_supported;
  for (const hsa::Agent cpu : found.cpus) {
    if (found.hsa.hsa_amd_agent_iterate_memory_pools(cpu, note_pool, &found) != hsa::kSuccess)
      return Errc::not_supported;
  }
  why = kNoDevice;
  return found.gpus.empty() ? Status(Errc::not_supported) : Status();
}

}  // namespace

bool rocr_in_use(Library library) noexcept {
  int (*const get_info)(int, void*) = library.find("hsa_system_get_info");
  uint16_t version = 0;
  return get_info != nullptr && get_info(hsa::kVersionMajor, &version) == hsa::kSuccess;
}

Result<Driver*> make_rocr(Library library, const char*& why) noexcept {
  const hsa::Calls calls(library);
  why = kTooOld;
  if (calls.find.missing() != nullptr) return Errc::not_supported;
  const int started = calls.hsa_init();
  // as it answers where there is no driver in the kernel
  why = started == hsa::kOutOfResources ? kNoDevice : kNoStart;
  if (started != hsa::kSuccess) return Errc::not_supported;
  Found found{calls, {}, {}, {}};
  const Status looked = look_around(found, why);
  auto made = no_throw([&]() -> Result<Driver*> {
    if (!looked) return looked.error();
    why = kNoRoom;
    return new RocrDriver(calls, std::move(found.gpus), found.host);
  });
  if (!made) calls.hsa_shut_down();
  return made;
}

}  // namespace aperture::memory
