// The monitor that the kernel itself is: fi_mr(3), FI_MR_CACHE_MONITOR=userfaultfd.
//
// Whoever unmaps, moves or drops watched memory, however it is called, waits in the kernel until
// a thread of ours has read that it does (userfault_reader.hpp).
//
// What it cannot see is what is done to a file through a descriptor, so only memory that is private
// and of no file is watched. Nor is the kernel's word there for guard pages of madvise(2), shmat(2)
// with SHM_REMAP, pages that another userfaultfd moves away, rights that mprotect(2) takes, and
// _Fork(3): the calls for those are hooked (memhooks.hpp), so that bare system calls for them are
// all that goes unnoticed. Where no call can be hooked, as in a program that is linked statically,
// there is no such monitor. Threads: any.
#pragma once

#include <atomic>
#include <memory>

#include "base/fork_guard.hpp"
#include "regcache/cache.hpp"
#include "regcache/hook_listeners.hpp"
#include "regcache/monitor.hpp"
#include "regcache/userfault_reader.hpp"

namespace aperture::regcache {

class UserfaultMonitor final : public Monitor {
 public:
  // Of that cache, which outlives it. `why`: static storage, where it fails. Errors: as
  // UserfaultReader::open(), HookListener::open() and put_hooks().
  static Result<std::unique_ptr<UserfaultMonitor>> create(Cache& cache, const char*& why) noexcept;
  // The cache keeps nothing that is watched any more.
  ~UserfaultMonitor() override;

  const char* name() const noexcept override { return "userfaultfd"; }
  // Whole mappings: those of which a part alone was watched would be two for the kernel, and the
  // application could not mremap(2) them as the one that it has made.
  Result<Range> watch(const Range& range) noexcept override;
  // A mapping as it is now: what was watched as one may be several, and a part of a larger one.
  Range piece_of(const Range& range) noexcept override;
  void forget(const Range& piece) noexcept override;
  bool is_settled() noexcept override;
  void settle() noexcept override;
  bool has_stopped() const noexcept override { return reader_->has_stopped(); }

 private:
  UserfaultMonitor(Cache& cache, std::shared_ptr<UserfaultReader> reader,
                   HookListener& listener) noexcept
      : cache_(cache), reader_(std::move(reader)), listener_(listener) {}

  Cache& cache_;
  std::shared_ptr<UserfaultReader> reader_;
  HookListener& listener_;
  ForkRound round_;
  std::atomic<bool> has_complained_{false};
  bool has_told_ = false;  // that it has stopped; guarded by the cache's lock
};

}  // namespace aperture::regcache
