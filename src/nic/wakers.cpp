// What wakes a sleeping engine: see wakers.hpp.
#include "nic/wakers.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>

#include "base/event_fd.hpp"

namespace aperture::nic {

namespace {

// Asleep, what waits for a peer that may not ring is looked at after the first time, and each time
// after twice as long, up to the second.
constexpr uint64_t kLookAgainNs = 2'000'000;
constexpr uint64_t kLookAtLeastNs = 16'000'000;

}  // namespace

Wakers::Wakers() noexcept : life_(Life::now()) {
  assert(life_.has_begun());
}

Status Wakers::open() noexcept {
  assert(!doorbell_ && !sleep_ && !alarm_);
  Result<UniqueFd> doorbell = make_doorbell();
  if (!doorbell) return doorbell.error();
  doorbell_ = *std::move(doorbell);
  sleep_ = ParentOnlyFd(move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))));
  if (!sleep_) return errc_from_errno(errno);
  alarm_ = ParentOnlyFd(
      move_high(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))));
  if (!alarm_) return errc_from_errno(errno);
  if (Status s = watch(doorbell_.get()); !s) return s;
  return watch(alarm_.get());
}

// --- descriptors ---

Status Wakers::add(int fd, uint32_t events) noexcept {
  assert(fd >= 0 && sleep_);
  epoll_event event{};
  event.events = events;
  if (::epoll_ctl(sleep_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errc_from_errno(errno);
  ++watched_fds_;
  return {};
}

Status Wakers::watch(int fd) noexcept {
  return add(fd, EPOLLIN);
}

Status Wakers::watch_asleep(int fd) noexcept {
  try {
    asleep_only_.push_back(fd);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  const Status s = add(fd, 0);
  if (!s) asleep_only_.pop_back();
  return s;
}

void Wakers::forget(int fd) noexcept {
  std::erase(asleep_only_, fd);
  if (life_.is_over()) return;  // the epoll is the parent's
  if (::epoll_ctl(sleep_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0) --watched_fds_;
}

void Wakers::arm(bool armed) noexcept {
  if (armed) were_armed_ = true;
  if (life_.is_over()) return;
  epoll_event event{};
  if (armed) event.events = EPOLLIN;
  for (const int fd : asleep_only_) ::epoll_ctl(sleep_.get(), EPOLL_CTL_MOD, fd, &event);
}

// --- paths ---

bool Wakers::control_path(const WakePath& path, int operation, bool heard) const noexcept {
  epoll_event event{};
  if (heard) event.events = EPOLLIN;
  return ::epoll_ctl(path.fd, operation, sleep_.get(), &event) == 0;
}

bool Wakers::make_room_for_path() noexcept {
  if (path_count_ < paths_.size()) return true;
  WakePath** const end = paths_.data() + path_count_;
  WakePath** const idle =
      std::find_if(paths_.data(), end, [](const WakePath* path) { return !path->is_taken; });
  if (idle == end) return false;
  WakePath& given = **idle;
  forget_path(given);
  given.on_given_away();
  return true;
}

bool Wakers::take_path(WakePath& path) noexcept {
  assert(path.fd >= 0);
  if (life_.is_over()) return false;
  if (!path.is_there) {
    if (!make_room_for_path() || !control_path(path, EPOLL_CTL_ADD, true)) return false;
    paths_[path_count_++] = &path;
    path.is_there = path.is_heard = true;
  } else if (!path.is_heard) {
    if (!control_path(path, EPOLL_CTL_MOD, true)) return false;
    path.is_heard = true;
  }
  path.is_taken = true;
  return true;
}

void Wakers::hush_path(WakePath& path) noexcept {
  path.is_taken = false;
  if (!path.is_heard || life_.is_over()) return;
  path.is_heard = false;
  control_path(path, EPOLL_CTL_MOD, false);
}

void Wakers::forget_path(WakePath& path) noexcept {
  path.is_taken = false;
  if (!path.is_there) return;
  path.is_there = path.is_heard = false;
  WakePath** const end = paths_.data() + path_count_;
  WakePath** const at = std::find(paths_.data(), end, &path);
  assert(at != end);
  *at = paths_[--path_count_];
  if (!life_.is_over()) control_path(path, EPOLL_CTL_DEL, false);
}

bool Wakers::is_rung() const noexcept {
  return is_readable(sleep_.get());
}

// --- sleeping and waking ---

// Each time, since a ring may come late: from a peer that saw us asleep before. Left there, it
// would end the next sleep for nothing, and that one's rings come late, too.
void Wakers::drain() noexcept {
  were_armed_ = false;
  if (drain_doorbell(doorbell_.get())) ++wakings_;
}

void Wakers::look_again_later() noexcept {
  look_again_ns_ = std::clamp(2 * look_again_ns_, kLookAgainNs, kLookAtLeastNs);
  set_alarm(look_again_ns_);
}

// 0: none; the descriptor is quiet then, whatever it was before. True: an earlier one was over.
bool Wakers::set_alarm(uint64_t after_ns) noexcept {
  assert(after_ns < 1'000'000'000);
  const bool was_set = alarm_set_;
  alarm_set_ = after_ns != 0;
  if (life_.is_over()) return false;
  itimerspec at{}, before{};
  at.it_value.tv_nsec = static_cast<long>(after_ns);
  ::timerfd_settime(alarm_.get(), 0, &at, &before);
  return was_set && before.it_value.tv_sec == 0 && before.it_value.tv_nsec == 0;
}

bool Wakers::is_woken_by_socket() const noexcept {
  constexpr uint32_t kOwn = 2;  // the doorbell and the alarm, which say it themselves
  return watched_fds_ > kOwn && is_readable(sleep_.get());
}

void Wakers::wake_up() noexcept {
  if (is_woken_by_socket()) ++wakings_;
  if (alarm_set_ && set_alarm(0)) ++wakings_;
  arm(false);
}

}  // namespace aperture::nic
