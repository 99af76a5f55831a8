// The monitor that hooks calls for memory: fi_mr(3), FI_MR_CACHE_MONITOR=memhooks.
//
// Whoever unmaps, maps over, moves or drops memory, shrinks the heap or frees a block does so by a
// call of the C library, and that is noticed on its way there (hooked_calls.hpp). No thread of ours
// is there and the kernel is asked for nothing while a resource is found, but it sees less than
// userfaultfd does. It is there because the page names it, and never what is used unless asked for.
//
// What it cannot see:
// - a bare system call, by syscall(2) or in assembly, as Go's runtime makes; what io_uring or a
//   userfaultfd of the application's does to pages;
// - a call through an address that dlsym(3) gave, or that was kept before there were hooks (as by
//   ctypes of Python, foreign functions of Java and .NET), or from a namespace of dlmopen(3);
// - a call of a library to its own allocator, by which it is bound directly (-Bsymbolic);
// - what an object does in its constructors, and until the next use of a cache: then everything
//   that was kept before is dropped.
// Where an allocator is linked into the program, or asks the kernel by bare system calls (the
// sanitizers'), and in a program that is linked statically, there is no such monitor. Where another
// library writes over the hooks, they are put before its own again. Memory on threads' stacks is
// never kept, since the C library reuses them without a call, nor is any but private memory of no
// file, as with userfaultfd.
//
// Threads: any; none of its own. Invariant: what is watched is found by hooks before the cache is
// told that it is.
#pragma once

#include <atomic>
#include <memory>

#include "base/fork_guard.hpp"
#include "regcache/cache.hpp"
#include "regcache/hook_listeners.hpp"
#include "regcache/monitor.hpp"

namespace aperture::regcache {

class MemhooksMonitor final : public Monitor {
 public:
  // Of that cache, which outlives it. `why`: static storage, where it fails. Errors: no_memory,
  // not_supported, no_space (HookListener::kMost have one).
  static Result<std::unique_ptr<MemhooksMonitor>> create(Cache& cache, const char*& why) noexcept;
  // The cache keeps nothing that is watched any more. The last one takes the hooks out.
  ~MemhooksMonitor() override;

  const char* name() const noexcept override { return "memhooks"; }
  Result<Range> watch(const Range& range) noexcept override;
  void forget(const Range& piece) noexcept override;
  bool is_settled() noexcept override;
  void settle() noexcept override;
  bool has_stopped() const noexcept override { return round_.is_over(); }

 private:
  // To all that is loaded. Errors: as put_hooks().
  Status hook_all() noexcept;
  MemhooksMonitor(Cache& cache, HookListener& listener) noexcept
      : cache_(cache), listener_(listener) {}

  Cache& cache_;
  HookListener& listener_;
  ForkRound round_;
  std::atomic<bool> has_complained_{false};
};

}  // namespace aperture::regcache
