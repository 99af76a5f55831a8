// The one userfaultfd of a process, and the thread that reads it.
//
// Memory is watched by one descriptor at a time, and the kernel joins mappings that lie side by
// side, so caches that had one each would lock each other out. All of them hear of all changes. The
// thread takes no lock, allocates and unmaps nothing and waits for nobody, so the application goes
// on, whatever it holds. Where somebody has closed the descriptor (closefrom) the kernel lets
// everybody go on and tells nothing more: has_stopped().
//
// Threads: any. Invariants: what the thread has read is in each cache's Changes before it says that
// none is under way; a cache is told of nothing before open() and after close().
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "base/fork_guard.hpp"
#include "regcache/cache.hpp"

namespace aperture::regcache {

class UserfaultReader {
 public:
  static constexpr size_t kMost = 64;  // caches

  // That cache hears of changes from now on, until close(). `why`: static storage, where it fails.
  // Errors: as open_userfault(), no_memory, no_space (kMost hear already).
  static Result<std::shared_ptr<UserfaultReader>> open(Cache& cache, const char*& why) noexcept;
  // When this returns no call to the cache is in progress. The last one ends the thread. The cache
  // keeps nothing that is watched any more.
  static void close(std::shared_ptr<UserfaultReader>& reader, const Cache& cache) noexcept;
  ~UserfaultReader();
  UserfaultReader(const UserfaultReader&) = delete;
  UserfaultReader& operator=(const UserfaultReader&) = delete;

  // Errors: as register_range(), shut_down.
  Status watch(const Range& range) noexcept;
  // Nothing of that mapping is wanted any more by that cache. What others want goes on, and so does
  // what another userfaultfd watches.
  void forget(const Range& range, const Cache& cache) noexcept;
  // False: a change may be over for the application which no cache has been told of.
  bool is_settled() noexcept;
  bool has_stopped() const noexcept {
    return stopped_.load(std::memory_order_acquire) || round_.is_over();
  }

 private:
  struct Registry;
  using Caches = std::array<Cache*, kMost>;

  static Registry* registry() noexcept;
  static Result<std::shared_ptr<UserfaultReader>> make(const char*& why) noexcept;
  UserfaultReader(ParentOnlyFd fd, ParentOnlyFd leave) noexcept;
  Status start() noexcept;
  bool add(Cache& cache) noexcept;
  void remove(const Cache& cache) noexcept;
  void wait_for_reader() const noexcept;

  // Of the thread, but for stop().
  void loop() noexcept;
  bool read_all() noexcept;
  void stop() noexcept;
  size_t begin_telling(Caches& told) noexcept;
  void end_telling() noexcept;

  // The thread's, which closes it before it ends: what a thread unmaps when it ends may be watched,
  // and would be waited for by the only one who could read it.
  ParentOnlyFd fd_;
  const int number_;    // of fd_, for asking
  ParentOnlyFd leave_;  // an eventfd: readable once the thread is to end
  ForkRound round_;
  std::atomic<bool> stopped_{false};
  std::array<std::atomic<Cache*>, kMost> caches_{};
  std::atomic<uint64_t> telling_{0};  // odd: caches that were found are being told
  std::mutex watching_;               // ranges begin and cease to be watched in one order
  std::thread thread_;
};

}  // namespace aperture::regcache
