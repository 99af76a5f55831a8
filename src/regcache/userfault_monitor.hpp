// The monitor that the kernel itself is: fi_mr(3), FI_MR_CACHE_MONITOR=userfaultfd.
//
// Whoever unmaps, moves or drops watched memory, by whatever call, waits in the kernel until a
// thread of ours has read that it does. That thread takes no lock, allocates and unmaps nothing and
// waits for nobody, so the application goes on, whatever it holds. Where somebody has closed the
// descriptor (closefrom) the kernel lets everybody go on and tells nothing more: has_stopped().
//
// What it cannot see: mprotect(2), and what is done to a file through a descriptor, so only memory
// that is private and of no file is watched. Threads: any; one of its own that reads. Invariant:
// what the thread has read is in the cache's Changes before it says that none is under way.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "base/fork_guard.hpp"
#include "regcache/cache.hpp"
#include "regcache/monitor.hpp"

namespace aperture::regcache {

class UserfaultMonitor final : public Monitor {
 public:
  // Of that cache, which outlives it. `why`: static storage, where it fails. Errors: as
  // open_userfault(), no_memory.
  static Result<std::unique_ptr<UserfaultMonitor>> create(Cache& cache, const char*& why) noexcept;
  // The cache keeps nothing that is watched any more.
  ~UserfaultMonitor() override;

  const char* name() const noexcept override { return "userfaultfd"; }
  // Whole mappings: those of which a part alone was watched would be two for the kernel, and the
  // application could not mremap(2) them as the one that it has made.
  Result<Range> watch(const Range& range) noexcept override;
  void forget(const Range& watched) noexcept override;
  bool is_settled() noexcept override;
  bool has_stopped() const noexcept override {
    return stopped_.load(std::memory_order_acquire) || round_.is_over();
  }

 private:
  UserfaultMonitor(Cache& cache, ParentOnlyFd fd, ParentOnlyFd leave) noexcept;
  Status start() noexcept;
  void loop() noexcept;
  bool read_all() noexcept;
  void stop() noexcept;

  Cache& cache_;
  // The thread's, which closes it before it ends: what a thread unmaps when it ends may be watched,
  // and would be waited for by the only one who could read it.
  ParentOnlyFd fd_;
  const int number_;    // of fd_, for asking
  ParentOnlyFd leave_;  // an eventfd: readable once the thread is to end
  ForkRound round_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

}  // namespace aperture::regcache
