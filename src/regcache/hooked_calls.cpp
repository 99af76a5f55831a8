// The hooks: see hooked_calls.hpp.
#include "regcache/hooked_calls.hpp"

#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <utility>

#include "base/barrier.hpp"
#include "regcache/forks.hpp"
#include "regcache/hook_listeners.hpp"

namespace aperture::regcache {

namespace {

constexpr size_t kChains = 8;  // functions for one call: libc's, and those of others before it
using Row = std::array<uintptr_t, kChains>;

constinit std::array<std::array<std::atomic<uintptr_t>, kChains>, kHookedCalls> g_next{};
constinit std::atomic<UsableSize> g_usable_size{nullptr};

template <HookedCall kCall, size_t kChain, typename Function>
Function* next() noexcept {
  // SYNC POINT: linkage: relaxed, since hook_before() has passed a heavy barrier before any word
  // leads here
  const uintptr_t addr = g_next[static_cast<size_t>(kCall)][kChain].load(std::memory_order_relaxed);
  return reinterpret_cast<Function*>(addr);
}

using Of = HookedChange::Of;
using Told = HookedChange::Told;

constexpr int kLastAdvice = 25;  // of those that are known here, but for guard pages

// What drops pages, and the kernel says so.
bool is_told(int advice) noexcept {
  constexpr int kFree = 8, kRemove = 9, kDontneedLocked = 24;
  return advice == MADV_DONTNEED || advice == kFree || advice == kRemove ||
         advice == kDontneedLocked;
}
// What is certain to leave the contents of pages alone: all else that a kernel may know changes
// them, as do guard pages (102, 103 since Linux 6.13), and it may not say so.
bool keeps_contents(int advice) noexcept {
  return advice >= 0 && advice <= kLastAdvice && !is_told(advice);
}
Told told(int advice) noexcept {
  return is_told(advice) ? Told::by_the_kernel : Told::by_nobody;
}

uint64_t break_now() noexcept {
  return static_cast<uint64_t>(::syscall(SYS_brk, nullptr));
}

struct Munmap {
  template <size_t kChain>
  static int hook(void* addr, size_t len) {
    const HookedChange change(addr, len);
    return next<HookedCall::munmap, kChain, int(void*, size_t)>()(addr, len);
  }
};

struct Mmap {
  template <size_t kChain>
  static void* hook(void* addr, size_t len, int prot, int flags, int fd, off_t offset) {
    auto* const call = next<HookedCall::mmap, kChain, void*(void*, size_t, int, int, int, off_t)>();
    if ((flags & MAP_FIXED) == 0) return call(addr, len, prot, flags, fd, offset);
    const HookedChange change(addr, len);
    return call(addr, len, prot, flags, fd, offset);
  }
};

struct Mremap {
  // As who calls it with four arguments, and as who has five.
  template <size_t kChain>
  static void* hook(void* addr, size_t old_len, size_t len, int flags, void* to) {
    const bool has_place = (flags & MREMAP_FIXED) != 0;
    const HookedChange from(addr, old_len);
    const HookedChange there(to, has_place ? len : 0);
    return next<HookedCall::mremap, kChain, void*(void*, size_t, size_t, int, ...)>()(
        addr, old_len, len, flags, to);
  }
};

struct Madvise {
  template <size_t kChain>
  static int hook(void* addr, size_t len, int advice) {
    auto* const call = next<HookedCall::madvise, kChain, int(void*, size_t, int)>();
    if (keeps_contents(advice)) return call(addr, len, advice);
    const HookedChange change(addr, len, Of::pages, told(advice));
    return call(addr, len, advice);
  }
};

struct ProcessMadvise {
  template <size_t kChain>
  static ssize_t hook(int process, const iovec* places, size_t count, int advice, unsigned flags) {
    auto* const call = next<HookedCall::process_madvise, kChain,
                            ssize_t(int, const iovec*, size_t, int, unsigned)>();
    if (keeps_contents(advice)) return call(process, places, count, advice, flags);
    const HookedChange change(HookedChange::kAnything, Of::pages, told(advice));
    return call(process, places, count, advice, flags);
  }
};

struct Brk {
  template <size_t kChain>
  static int hook(void* end) {
    const auto now = HookedChange::any_listener() ? break_now() : 0;
    const HookedChange change(Range{reinterpret_cast<uint64_t>(end), now});
    return next<HookedCall::brk, kChain, int(void*)>()(end);
  }
};

struct Sbrk {
  template <size_t kChain>
  static void* hook(intptr_t more) {
    const auto now = more < 0 && HookedChange::any_listener() ? break_now() : 0;
    const HookedChange change(Range{now + static_cast<uint64_t>(more), now});
    return next<HookedCall::sbrk, kChain, void*(intptr_t)>()(more);
  }
};

struct Shmat {
  template <size_t kChain>
  static void* hook(int id, const void* addr, int flags) {
    auto* const call = next<HookedCall::shmat, kChain, void*(int, const void*, int)>();
    if ((flags & SHM_REMAP) == 0) return call(id, addr, flags);
    // its length is the segment's
    const HookedChange change(HookedChange::kAnything, Of::pages, Told::by_nobody);
    return call(id, addr, flags);
  }
};

bool takes_none(int rights) noexcept {
  return (rights & (PROT_READ | PROT_WRITE)) == (PROT_READ | PROT_WRITE);
}

struct Mprotect {
  template <size_t kChain>
  static int hook(void* addr, size_t len, int rights) {
    auto* const call = next<HookedCall::mprotect, kChain, int(void*, size_t, int)>();
    if (takes_none(rights)) return call(addr, len, rights);
    const HookedChange change(addr, len, Of::pages, Told::by_nobody);
    return call(addr, len, rights);
  }
};

struct PkeyMprotect {
  template <size_t kChain>
  static int hook(void* addr, size_t len, int rights, int key) {
    auto* const call = next<HookedCall::pkey_mprotect, kChain, int(void*, size_t, int, int)>();
    const HookedChange change(addr, len, Of::pages, Told::by_nobody);
    return call(addr, len, rights, key);
  }
};

struct Ioctl {
  // As who calls it with two arguments, and as who has three.
  template <size_t kChain>
  static int hook(int fd, unsigned long request, void* argument) {
    constexpr auto kMove = uint32_t{_IOC(_IOC_READ | _IOC_WRITE, 0xAA, 0x05, 40)};  // Linux 6.8
    auto* const call = next<HookedCall::ioctl, kChain, int(int, unsigned long, ...)>();
    if (static_cast<uint32_t>(request) != kMove) return call(fd, request, argument);
    // where its pages come from stands in what the kernel alone may read
    const HookedChange change(HookedChange::kAnything, Of::pages, Told::by_nobody);
    return call(fd, request, argument);
  }
};

struct Fork {
  template <size_t kChain>
  static pid_t hook() {
    fork_begins();
    const pid_t child = next<HookedCall::fork, kChain, pid_t()>()();
    child == 0 ? forks_of_parent_are_over() : fork_is_over();
    return child;
  }
};

Range block_of(void* block) noexcept {
  const auto begin = reinterpret_cast<uint64_t>(block);
  // relaxed: set before this could be called
  return {begin, begin + g_usable_size.load(std::memory_order_relaxed)(block)};
}

struct Free {
  template <size_t kChain>
  static void hook(void* block) {
    auto* const call = next<HookedCall::free, kChain, void(void*)>();
    if (block == nullptr || !HookedChange::any_listener()) return call(block);
    const HookedChange change(block_of(block), Of::blocks);
    call(block);
  }
};

struct Realloc {
  template <size_t kChain>
  static void* hook(void* block, size_t len) {
    auto* const call = next<HookedCall::realloc, kChain, void*(void*, size_t)>();
    if (block == nullptr || !HookedChange::any_listener()) return call(block, len);
    const HookedChange change(block_of(block), Of::blocks);
    return call(block, len);
  }
};

template <typename Hooks, size_t... kChain>
Row row(std::index_sequence<kChain...>) noexcept {
  return {reinterpret_cast<uintptr_t>(&Hooks::template hook<kChain>)...};
}
template <typename... Hooks>
std::array<Row, kHookedCalls> rows() noexcept {
  static_assert(sizeof...(Hooks) == kHookedCalls);
  return {row<Hooks>(std::make_index_sequence<kChains>())...};
}

// In the order of HookedCall.
const std::array<Row, kHookedCalls>& hooks() noexcept {
  static const auto all = rows<Munmap, Mmap, Mremap, Madvise, ProcessMadvise, Brk, Sbrk, Shmat,
                               Mprotect, PkeyMprotect, Ioctl, Fork, Free, Realloc>();
  return all;
}

}  // namespace

uintptr_t hook_before(HookedCall call, uintptr_t next) noexcept {
  assert(next != 0 && function_behind(next) == 0);
  const auto kind = static_cast<size_t>(call);
  for (size_t chain = 0; chain < kChains; ++chain) {
    std::atomic<uintptr_t>& behind = g_next[kind][chain];
    const uintptr_t there = behind.load(std::memory_order_relaxed);  // relaxed: written here alone
    if (there == next) return hooks()[kind][chain];
    if (there != 0) continue;
    behind.store(next, std::memory_order_relaxed);  // relaxed: the barrier orders
    heavy_barrier();
    return hooks()[kind][chain];
  }
  return 0;
}

uintptr_t function_behind(uintptr_t hook) noexcept {
  for (size_t kind = 0; kind < kHookedCalls; ++kind) {
    const Row& row = hooks()[kind];
    const auto at = std::find(row.begin(), row.end(), hook);
    if (at == row.end()) continue;
    // relaxed: as above
    return g_next[kind][static_cast<size_t>(at - row.begin())].load(std::memory_order_relaxed);
  }
  return 0;
}

void set_usable_size(UsableSize usable_size) noexcept {
  assert(usable_size != nullptr);
  g_usable_size.store(usable_size, std::memory_order_relaxed);  // relaxed: as next() says
}

}  // namespace aperture::regcache
