// Reading what the kernel tells: see userfault_reader.hpp.
#include "regcache/userfault_reader.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "base/event_fd.hpp"
#include "base/no_throw.hpp"
#include "base/per_process.hpp"
#include "regcache/userfault.hpp"

namespace aperture::regcache {

// Caches come and go one at a time.
struct UserfaultReader::Registry {
  std::mutex mutex;
  std::weak_ptr<UserfaultReader> reader;
};

UserfaultReader::Registry* UserfaultReader::registry() noexcept {
  static constinit PerProcess<Registry> the_one;
  Registry* found = nullptr;
  return no_throw([&] { found = &the_one.get(); }) ? found : nullptr;
}

Result<std::shared_ptr<UserfaultReader>> UserfaultReader::open(Cache& cache,
                                                               const char*& why) noexcept {
  why = "there is no memory for it";
  if (const Status s = guard_against_fork(); !s) return s.error();
  Registry* const all = registry();
  if (all == nullptr) return Errc::no_memory;
  const std::lock_guard guard(all->mutex);
  std::shared_ptr<UserfaultReader> reader = all->reader.lock();
  if (reader == nullptr || reader->has_stopped()) {
    auto made = make(why);
    if (!made) return made.error();
    reader = *std::move(made);
    all->reader = reader;
  }
  if (!reader->add(cache)) {
    why = "too many caches have one";
    return Errc::no_space;
  }
  return reader;
}

void UserfaultReader::close(std::shared_ptr<UserfaultReader>& reader, const Cache& cache) noexcept {
  assert(reader != nullptr);
  if (reader->round_.is_over()) {  // a child has no such thread, and a registry of its own
    reader.reset();
    return;
  }
  Registry* const all = registry();
  assert(all != nullptr);  // since open() has found it
  const std::lock_guard guard(all->mutex);
  reader->remove(cache);
  // in the lock: while its descriptor is there, no other one can watch what it has watched
  reader.reset();
}

Result<std::shared_ptr<UserfaultReader>> UserfaultReader::make(const char*& why) noexcept {
  Result<UniqueFd> fd = open_userfault(why);
  if (!fd) return fd.error();
  ParentOnlyFd leave(move_high(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))));
  if (!leave) return errc_from_errno(errno);
  std::shared_ptr<UserfaultReader> reader;
  const Status made = no_throw([&]() -> Status {
    reader.reset(new UserfaultReader(ParentOnlyFd(std::move(*fd)), std::move(leave)));
    return reader->start();
  });
  if (!made) return made.error();
  return reader;
}

UserfaultReader::UserfaultReader(ParentOnlyFd fd, ParentOnlyFd leave) noexcept
    : fd_(std::move(fd)), number_(fd_.get()), leave_(std::move(leave)) {
  assert(number_ >= 0 && leave_);
}

UserfaultReader::~UserfaultReader() {
  if (!thread_.joinable()) return;
  if (round_.is_over()) {
    thread_.detach();
    return;
  }
  signal_eventfd(leave_.get());
  thread_.join();
}

Status UserfaultReader::start() noexcept {
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

// --- caches ---

bool UserfaultReader::add(Cache& cache) noexcept {
  const std::lock_guard in_order(watching_);
  for (std::atomic<Cache*>& place : caches_) {
    if (place.load() != nullptr) continue;
    // SYNC POINT: userfault-caches: seq_cst: the thread finds it, or is waited for
    place.store(&cache);
    wait_for_reader();  // what it reads by now might have been watched already
    return true;
  }
  return false;
}

void UserfaultReader::remove(const Cache& cache) noexcept {
  const std::lock_guard in_order(watching_);
  for (std::atomic<Cache*>& place : caches_) {
    if (place.load() == &cache) place.store(nullptr);  // SYNC POINT: userfault-caches
  }
  wait_for_reader();
}

// Until it is done with what it is telling. It waits for nobody.
void UserfaultReader::wait_for_reader() const noexcept {
  const uint64_t turn = telling_.load();
  if (turn % 2 == 0) return;
  while (telling_.load() == turn) std::this_thread::yield();
}

Status UserfaultReader::watch(const Range& range) noexcept {
  const std::lock_guard in_order(watching_);
  return has_stopped() ? Errc::shut_down : register_range(number_, range);
}

void UserfaultReader::forget(const Range& range, const Cache& cache) noexcept {
  const std::lock_guard in_order(watching_);
  const auto wants = [&](const std::atomic<Cache*>& place) {
    Cache* const other = place.load();
    return other != nullptr && other != &cache && other->has_any(range);
  };
  if (has_stopped() || std::any_of(caches_.begin(), caches_.end(), wants)) return;
  // it may have become another one's, from whom kernels before Linux 6.17 would take it
  if (register_range(number_, range)) unregister_range(number_, range);
}

bool UserfaultReader::is_settled() noexcept {
  if (has_stopped()) return false;
  const Underway underway = ask_underway(number_);
  if (underway == Underway::no_more) stopped_.store(true, std::memory_order_release);
  return underway == Underway::none;
}

// --- the thread: no lock, no memory, no waiting but for the kernel ---

size_t UserfaultReader::begin_telling(Caches& told) noexcept {
  telling_.fetch_add(1);
  size_t n = 0;
  // SYNC POINT: userfault-caches: seq_cst
  for (const std::atomic<Cache*>& place : caches_) {
    if (Cache* const cache = place.load(); cache != nullptr) told[n++] = cache;
  }
  return n;
}

void UserfaultReader::end_telling() noexcept {
  [[maybe_unused]] const uint64_t before = telling_.fetch_add(1);
  assert(before % 2 == 1);
}

void UserfaultReader::loop() noexcept {
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
}

// All that is kept is as good as stale.
void UserfaultReader::stop() noexcept {
  stopped_.store(true, std::memory_order_release);
  Caches told;
  const size_t n = begin_telling(told);
  for (size_t i = 0; i < n; ++i) {
    told[i]->changes().put({{0, ~uint64_t{0}}, Change::Kind::unmapped});
    told[i]->on_changes();
  }
  end_telling();
}

// False: it is no userfaultfd any more.
bool UserfaultReader::read_all() noexcept {
  // the number may be a file of the application's by now, whose bytes are not ours to read
  if (ask_underway(number_) == Underway::no_more) return false;
  Caches told;
  const size_t n = begin_telling(told);
  const auto put = [&](const Range& range, Change::Kind kind) {
    for (size_t i = 0; i < n; ++i) told[i]->changes().put({range, kind});
  };
  for (size_t i = 0; i < n; ++i) told[i]->changes().begin();
  for (uffd_msg event; read_event(number_, event);) {
    switch (event.event) {
      case UFFD_EVENT_UNMAP:
        put({event.arg.remove.start, event.arg.remove.end}, Change::Kind::unmapped);
        break;
      case UFFD_EVENT_REMOVE:
        put({event.arg.remove.start, event.arg.remove.end}, Change::Kind::dropped);
        break;
      case UFFD_EVENT_REMAP:
        // the old place is told as unmapped where it is so; with MREMAP_DONTUNMAP it is emptied
        put({event.arg.remap.from, event.arg.remap.from + event.arg.remap.len},
            Change::Kind::unmapped);
        put({event.arg.remap.to, event.arg.remap.to + event.arg.remap.len}, Change::Kind::moved);
        break;
      default: break;
    }
  }
  for (size_t i = 0; i < n; ++i) {
    told[i]->changes().end();
    told[i]->on_changes();
  }
  end_telling();
  return true;
}

}  // namespace aperture::regcache
