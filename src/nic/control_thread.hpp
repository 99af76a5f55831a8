// The control thread: one per process, asleep in epoll. It connects, accepts, watches for death and
// runs timers, and the engine lets it progress data when nobody polls.
//
// Started at first use with all signals blocked, never stopped: it lives until the process ends. A
// forked child that opens something starts its own; its parent's is not looked at there.
// The callbacks run one at a time on it, must not block and must not throw. post() and run() are
// for any thread; everything else is called on the control thread only (from a callback).
//
// Posts and timers cannot fail: where the heap has no memory for them they are taken from the
// reserve (base/reserve.hpp). Once that is used up as well the process ends, since whoever waits
// for them could not be told.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "base/callback.hpp"
#include "base/errc.hpp"
#include "base/fork_guard.hpp"
#include "base/reserve.hpp"
#include "nic/posted_work.hpp"

namespace aperture::nic {

class ControlThread {
 public:
  using Work = Callback<>;
  using OnEvents = Callback<uint32_t>;  // of epoll
  using WatchId = uint64_t;             // never 0
  using TimerId = uint64_t;             // never 0

  // Errors: no_fds, no_memory.
  static Result<ControlThread*> instance() noexcept;

  const Life& life() const noexcept { return life_; }
  bool is_current() const noexcept { return std::this_thread::get_id() == thread_id_; }

  // Runs the work soon, in the order of the posts of each thread. Dropped where it is the parent's.
  void post(Work work) noexcept;
  // Runs the work and returns when it is done; at once when called on the control thread.
  void run(Work work) noexcept;

  // Level-triggered. The descriptor stays the caller's, who unwatches before closing it. After
  // unwatch() the callback does not run any more, whatever was pending; a callback may unwatch
  // itself. Errors: no_memory, io.
  Result<WatchId> watch(int fd, uint32_t epoll_events, OnEvents on_events) noexcept;
  void rewatch(WatchId id, uint32_t epoll_events) noexcept;
  void unwatch(WatchId id) noexcept;  // 0 and unknown ids are ignored

  // Once, at now_ns() time `at_ns` or soon after (about a millisecond's grain).
  TimerId add_timer(uint64_t at_ns, Work work) noexcept;
  void cancel_timer(TimerId id) noexcept;  // 0 and unknown ids are ignored

 private:
  struct Watched {
    int fd;
    OnEvents on_events;
  };

  ControlThread(ParentOnlyFd epoll, ParentOnlyFd wake) noexcept;  // its life has begun
  static Result<ControlThread*> create() noexcept;
  Status start() noexcept;
  void loop() noexcept;
  void dispatch(uint64_t id, uint32_t epoll_events) noexcept;
  void run_timers() noexcept;
  int timeout_ms() const noexcept;

  const Life life_;
  ParentOnlyFd epoll_;
  ParentOnlyFd wake_;  // eventfd; watched under id 0
  std::thread::id thread_id_;

  // the control thread's own
  std::unordered_map<WatchId, std::shared_ptr<Watched>> watched_;
  using TimerKey = std::pair<uint64_t, TimerId>;  // by time, then by age
  template <typename K, typename V>
  using Map = std::map<K, V, std::less<K>, reserve::Allocator<std::pair<const K, V>>>;
  Map<TimerKey, Work> timers_;
  Map<TimerId, uint64_t> timer_times_;
  uint64_t next_id_ = 1;

  PostedWork posted_;
  std::mutex starting_;  // held until thread_id_ is there
};

}  // namespace aperture::nic
