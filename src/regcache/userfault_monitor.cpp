// Reading what the kernel tells: see userfault_monitor.hpp.
#include "regcache/userfault_monitor.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <cassert>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "base/event_fd.hpp"
#include "regcache/mappings.hpp"
#include "regcache/userfault.hpp"

namespace aperture::regcache {

Result<std::unique_ptr<UserfaultMonitor>> UserfaultMonitor::create(Cache& cache,
                                                                   const char*& why) noexcept {
  why = "there is no memory for it";
  if (const Status s = guard_against_fork(); !s) return s.error();
  Result<UniqueFd> fd = open_userfault(why);
  if (!fd) return fd.error();
  ParentOnlyFd leave(move_high(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))));
  if (!leave) return errc_from_errno(errno);
  std::unique_ptr<UserfaultMonitor> monitor(
      new (std::nothrow) UserfaultMonitor(cache, ParentOnlyFd(std::move(*fd)), std::move(leave)));
  if (monitor == nullptr) return Errc::no_memory;
  if (const Status s = monitor->start(); !s) return s.error();
  return monitor;
}

UserfaultMonitor::UserfaultMonitor(Cache& cache, ParentOnlyFd fd, ParentOnlyFd leave) noexcept
    : cache_(cache), fd_(std::move(fd)), number_(fd_.get()), leave_(std::move(leave)) {
  assert(number_ >= 0 && leave_);
}

UserfaultMonitor::~UserfaultMonitor() {
  if (!thread_.joinable()) return;
  if (round_.is_over()) {  // a child has no such thread
    thread_.detach();
    return;
  }
  signal_eventfd(leave_.get());
  thread_.join();
}

Status UserfaultMonitor::start() noexcept {
  sigset_t all, before;
  ::sigfillset(&all);  // a handler of the application's might unmap what only this thread can read
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread_ = std::thread([this] { loop(); });
    ::pthread_setname_np(thread_.native_handle(), "aperture-mr");
  } catch (const std::exception&) {  // system_error or bad_alloc
    status = Errc::no_memory;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

Result<Range> UserfaultMonitor::watch(const Range& range) noexcept {
  assert(!range.is_empty());
  if (has_stopped()) return Errc::shut_down;
  // first, since it could not be taken back: some of it may be watched for others
  const Range whole = mapped_alone_around(range);
  if (whole.is_empty()) return Errc::not_supported;
  if (const Status s = register_range(number_, whole); !s) return s.error();
  // and again: what takes its place from now on is told
  if (mapped_alone_around(range).is_empty()) return Errc::not_supported;
  return whole;
}

void UserfaultMonitor::forget(const Range& watched) noexcept {
  assert(!watched.is_empty());
  if (!has_stopped()) unregister_range(number_, watched);
}

bool UserfaultMonitor::is_settled() noexcept {
  if (has_stopped()) return false;
  const Underway underway = ask_underway(number_);
  if (underway == Underway::no_more) stop();
  return underway == Underway::none;
}

// All that is kept is as good as stale.
void UserfaultMonitor::stop() noexcept {
  stopped_.store(true, std::memory_order_release);
  cache_.changes().put({{0, ~uint64_t{0}}, Change::Kind::unmapped});
}

// --- the thread: no lock, no memory, no waiting but for the kernel ---

void UserfaultMonitor::loop() noexcept {
  bool ours = true;
  for (bool leave = false; ours && !leave;) {
    pollfd fds[] = {{number_, POLLIN, 0}, {leave_.get(), POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0) continue;
    if (fds[0].revents != 0) ours = read_all();
    leave = fds[1].revents != 0;
  }
  stop();
  // nobody waits for us any more, not even ourselves
  if (ours) {
    fd_.reset();
  } else {
    fd_.abandon();
  }
  cache_.on_changes();
}

// False: it is no userfaultfd any more.
bool UserfaultMonitor::read_all() noexcept {
  // the number may be a file of the application's by now, whose bytes are not ours to read
  if (ask_underway(number_) == Underway::no_more) return false;
  Changes& changes = cache_.changes();
  changes.begin();
  for (uffd_msg event; read_event(number_, event);) {
    switch (event.event) {
      case UFFD_EVENT_UNMAP:
        changes.put({{event.arg.remove.start, event.arg.remove.end}, Change::Kind::unmapped});
        break;
      case UFFD_EVENT_REMOVE:
        changes.put({{event.arg.remove.start, event.arg.remove.end}, Change::Kind::dropped});
        break;
      case UFFD_EVENT_REMAP:
        // the old place is told as unmapped where it is so; with MREMAP_DONTUNMAP it is emptied
        changes.put({{event.arg.remap.from, event.arg.remap.from + event.arg.remap.len},
                     Change::Kind::unmapped});
        changes.put(
            {{event.arg.remap.to, event.arg.remap.to + event.arg.remap.len}, Change::Kind::moved});
        break;
      default: break;
    }
  }
  changes.end();
  cache_.on_changes();
  return true;
}

}  // namespace aperture::regcache
