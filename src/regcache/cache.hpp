// Resources for memory, kept while nobody uses them in case they are wanted again: fi_mr(3),
// "Memory registration cache".
//
// A cache that is wrong is worse than none. So a resource is handed out only if its memory is what
// it was when the resource was made: a monitor tells what has changed, and while it cannot say that
// nothing has (Monitor::is_settled()), what is asked for is made anew and kept by nobody. A
// resource that went stale while it was in use stays with its users and is given back after the
// last of them.
//
// Threads: any, in acquire(), release() and trim(). The lock is held for short looks alone; the
// registrar and the monitor's calls that may wait are called without it, nothing is allocated or
// freed with it, and whoever finds it taken leaves changes to its holder (on_changes()). So a
// thread of the application that changes memory in a signal handler, in the middle of a call of
// ours, waits for nobody. Invariants: an entry that is kept is found by all whom it serves and is
// not stale; each resource is given back once; entries and bytes that are kept are within the
// limits.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "regcache/changes.hpp"
#include "regcache/entry.hpp"
#include "regcache/forks.hpp"
#include "regcache/index.hpp"
#include "regcache/monitor.hpp"
#include "regcache/recent_drops.hpp"

namespace aperture::regcache {

struct Options {
  // FI_MR_CACHE_MAX_SIZE: bytes that are kept. What is in use counts, what is not kept does not.
  uint64_t max_bytes = ~uint64_t{0};
  // FI_MR_CACHE_MAX_COUNT: resources that are kept, kMostCount at most.
  size_t max_count = 1024;

  // APERTURE_MR_CACHE_CHECK: each hit is checked against what the kernel says (oracle.hpp).
  bool check = false;

  static constexpr size_t kMostCount = size_t{1} << 20;
};

struct Counts {
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t not_kept = 0;  // of the misses
  uint64_t stale = 0;     // resources whose memory has changed
  uint64_t evicted = 0;   // resources that made room for others
  uint64_t caught = 0;    // resources that were stale unknown to the monitor: who checks finds them
};

class Cache {
 public:
  // A resource in use. Not copied; to be given to release() once.
  class Use {
   public:
    Use() noexcept = default;
    explicit operator bool() const noexcept { return entry_ != nullptr; }
    Registrar::Resource resource() const noexcept { return entry_->resource; }
    // At least what was asked for.
    const Range& range() const noexcept { return entry_->range; }

   private:
    friend class Cache;
    explicit Use(Entry* entry) noexcept : entry_(entry) {}
    Entry* entry_ = nullptr;
  };

  // The registrar outlives it. Errors: no_memory, invalid (a limit of no resources).
  static Result<std::unique_ptr<Cache>> create(Registrar& registrar,
                                               const Options& options) noexcept;
  // Nothing is in use, and no monitor calls any more. All resources are given back.
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Whom it asks, before the first acquire(); it outlives the last use. Without one nothing is
  // kept.
  void set_monitor(Monitor& monitor) noexcept { monitor_ = &monitor; }
  Changes& changes() noexcept { return changes_; }

  // Errors: invalid (no bytes, or past the end of the address space), no_memory, the registrar's.
  Result<Use> acquire(const void* addr, size_t len, Access access) noexcept;
  void release(Use use) noexcept;
  // Gives back what nobody uses: all of it, or what is over anyway.
  void trim() noexcept;
  void give_back_what_is_over() noexcept;

  // The monitor has put changes. Any thread and any moment, as Changes::put().
  void on_changes() noexcept;

  Counts counts() const noexcept;
  size_t kept() const noexcept;
  // Whether something of that range is kept, in use, or being made.
  bool has_any(const Range& range) noexcept;

 private:
  class Guard;

  Cache(Registrar& registrar, const Options& options) noexcept;

  // With the lock.
  bool is_settled() noexcept;
  void take_changes() noexcept;
  void take(const Change& change) noexcept;
  void let_go(Entry& entry) noexcept;
  void end(Entry& entry) noexcept;
  void note_adrift(const Range& range) noexcept;
  bool make_room(uint64_t bytes) noexcept;
  bool keep(Entry& entry) noexcept;
  // Without it.
  Entry* look_up(const Range& range, Access access, bool& settled) noexcept;
  Range range_to_keep(const Range& wanted, Access access) noexcept;
  std::unique_ptr<Oracle::View> look(const Range& range) const noexcept;
  bool is_right(Entry& found) noexcept;
  Result<Use> make(const Range& range, Access access, bool keep) noexcept;
  bool watch(Entry& entry) noexcept;
  void forget(const Range& watched) noexcept;

  Registrar& registrar_;
  const Options options_;  // within our own limits
  Monitor* monitor_ = nullptr;
  Changes changes_;

  mutable std::mutex mutex_;  // of all that follows
  Index index_;
  List<Entry> kept_;   // the one used last at the back
  List<Entry> loose_;  // being made, or in use and not kept
  List<Entry> over_;   // to be given back
  uint64_t kept_bytes_ = 0;
  // Where what is watched was moved to: nobody has asked for that there.
  std::array<Range, 16> adrift_;
  size_t adrift_count_ = 0;
  RecentDrops drops_;
  Forks forks_;  // those that have been taken into account
  Counts counts_;
  std::atomic<bool> any_over_{false};  // over_ or adrift_ is not empty: a hint

  // Ranges begin and cease to be watched in one order. Never taken with mutex_ held.
  std::mutex watching_;
};

}  // namespace aperture::regcache
