// The control thread's loop: see control_thread.hpp.
#include "nic/control_thread.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <condition_variable>
#include <new>
#include <stdexcept>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"

namespace aperture::nic {

namespace {

constexpr uint64_t kWakeId = 0;

// struct sched_attr of sched_setattr(2), which older C libraries do not declare.
struct SchedAttr {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns;
  uint64_t deadline_ns;
  uint64_t period_ns;
};

// Asks for short turns that come soon: on a busy machine a peer's death must not wait for the whole
// turns of everybody else. Linux 6.12 and later honour it; nobody has to.
void ask_for_short_turns() noexcept {
  SchedAttr attr{};
  attr.size = sizeof attr;
  attr.nice = ::getpriority(PRIO_PROCESS, 0);
  attr.runtime_ns = 100'000;
  ::syscall(SYS_sched_setattr, 0, &attr, 0);
}

}  // namespace

ControlThread::ControlThread(ParentOnlyFd epoll, ParentOnlyFd wake) noexcept
    : life_(Life::now()), epoll_(std::move(epoll)), wake_(std::move(wake)) {
  assert(life_.has_begun());
}

Result<ControlThread*> ControlThread::instance() noexcept {
  static constinit PerProcess<ControlThread> the_one;
  return the_one.get(create);
}

Result<ControlThread*> ControlThread::create() noexcept {
  if (const Status s = guard_against_fork(); !s) return s.error();
  ParentOnlyFd epoll(move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))));
  if (!epoll) return errc_from_errno(errno);
  ParentOnlyFd wake(move_high(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))));
  if (!wake) return errc_from_errno(errno);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return errc_from_errno(errno);
  }
  std::unique_ptr<ControlThread> self(new (std::nothrow)
                                          ControlThread(std::move(epoll), std::move(wake)));
  if (self == nullptr) return Errc::no_memory;
  // While the process may still have one thread, for which the kernel does it at once: with more it
  // waits until every core has been seen between two tasks, some 10 ms. Whether it could is asked
  // where it is told to peers (identity.cpp).
  register_for_heavy_barriers();
  if (const Status s = self->start(); !s) return s.error();
  return self.release();
}

Status ControlThread::start() noexcept {
  sigset_t all, before;
  ::sigfillset(&all);
  // the application's signals are for its own threads; but a fault in a guarded copy must find its
  // handler here too: blocked, it would end the process (base/guarded_copy.hpp)
  for (const int fault : {SIGSEGV, SIGBUS}) ::sigdelset(&all, fault);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    const std::lock_guard guard(starting_);  // thread_id_ is written before the loop reads anything
    std::thread thread([this] { loop(); });
    thread_id_ = thread.get_id();
    ::pthread_setname_np(thread.native_handle(), "aperture-ctl");
    thread.detach();
  } catch (const std::exception&) {  // system_error or bad_alloc
    status = Errc::no_memory;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void ControlThread::post(Work work) noexcept {
  if (life_.is_over()) return;
  if (posted_.put(std::move(work))) signal_eventfd(wake_.get());
}

void ControlThread::run(Work work) noexcept {
  if (life_.is_over()) return;
  if (is_current()) {
    work();
    return;
  }
  std::mutex mutex;
  std::condition_variable done_changed;
  bool done = false;
  post([&] {
    work();
    const std::lock_guard guard(mutex);
    done = true;
    done_changed.notify_one();  // under the lock: the waiter's variables live until it is released
  });
  std::unique_lock lock(mutex);
  done_changed.wait(lock, [&] { return done; });
}

Result<ControlThread::WatchId> ControlThread::watch(int fd, uint32_t epoll_events,
                                                    OnEvents on_events) noexcept {
  assert(is_current() && fd >= 0);
  const WatchId id = next_id_++;
  const Status kept = no_throw([&] {
    watched_.emplace(id, std::make_shared<Watched>(Watched{fd, std::move(on_events)}));
  });
  if (!kept) return kept.error();
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const Errc why = errc_from_errno(errno);
    watched_.erase(id);
    return why;
  }
  return id;
}

void ControlThread::rewatch(WatchId id, uint32_t epoll_events) noexcept {
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  epoll_event event{};
  event.events = epoll_events;
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, it->second->fd, &event);
}

void ControlThread::unwatch(WatchId id) noexcept {
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second->fd, nullptr);
  watched_.erase(it);
}

ControlThread::TimerId ControlThread::add_timer(uint64_t at_ns, Work work) noexcept {
  assert(is_current());
  const TimerId id = next_id_++;
  timers_.emplace(std::pair(at_ns, id), std::move(work));
  timer_times_.emplace(id, at_ns);
  return id;
}

void ControlThread::cancel_timer(TimerId id) noexcept {
  const auto it = timer_times_.find(id);
  if (it == timer_times_.end()) return;
  timers_.erase({it->second, id});
  timer_times_.erase(it);
  assert(timers_.size() == timer_times_.size());
}

void ControlThread::loop() noexcept {
  { const std::lock_guard guard(starting_); }  // thread_id_ is there
  ask_for_short_turns();
  std::array<epoll_event, 64> events;
  for (;;) {
    const int n = ::epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms());
    for (int i = 0; i < n; ++i) dispatch(events[i].data.u64, events[i].events);
    posted_.run();
    run_timers();
  }
}

void ControlThread::dispatch(uint64_t id, uint32_t epoll_events) noexcept {
  if (id == kWakeId) {
    drain_eventfd(wake_.get());
    return;
  }
  const auto it = watched_.find(id);
  if (it == watched_.end()) return;  // unwatched by a callback before it
  const std::shared_ptr<Watched> keep = it->second;
  keep->on_events(epoll_events);
}

void ControlThread::run_timers() noexcept {
  if (timers_.empty()) return;
  const uint64_t now = now_ns();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    auto node = timers_.extract(timers_.begin());
    timer_times_.erase(node.key().second);
    node.mapped()();
  }
}

int ControlThread::timeout_ms() const noexcept {
  if (timers_.empty()) return -1;
  const uint64_t now = now_ns();
  const uint64_t at = timers_.begin()->first.first;
  if (at <= now) return 0;
  // rounded up: waking early would only mean to wait again
  return static_cast<int>(std::min<uint64_t>((at - now + kNsPerMs - 1) / kNsPerMs, 3'600'000));
}

}  // namespace aperture::nic
