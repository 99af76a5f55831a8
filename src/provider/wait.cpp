// Wait objects and sleeping: see wait.hpp. Wait sets are in wait_set.cpp.
#include "provider/wait.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/cancellable.h"
#include "provider/errors.hpp"

namespace aperture::provider {

namespace {

constexpr int kSleepRounds = 4;
constexpr int kBackToSleepRounds = 64;

bool watch(int epoll, int fd) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

int get_pollfds(fi_wait_pollfd* out, int fd) noexcept {
  const size_t room = out->nfds;
  if (room != 0 && out->fd == nullptr) return -FI_EINVAL;
  // both also where there is no room: that is how the index is asked for
  out->change_index = 1;  // the one descriptor never changes
  out->nfds = 1;
  if (room == 0) return -FI_ETOOSMALL;
  out->fd[0].fd = fd;
  out->fd[0].events = POLLIN;
  out->fd[0].revents = 0;
  return 0;
}

}  // namespace

const char* wait_name(fi_wait_obj obj) noexcept {
  switch (obj) {
    case FI_WAIT_NONE: return "FI_WAIT_NONE";
    case FI_WAIT_UNSPEC: return "FI_WAIT_UNSPEC";
    case FI_WAIT_SET: return "FI_WAIT_SET";
    case FI_WAIT_FD: return "FI_WAIT_FD";
    case FI_WAIT_MUTEX_COND: return "FI_WAIT_MUTEX_COND";
    case FI_WAIT_YIELD: return "FI_WAIT_YIELD";
    case FI_WAIT_POLLFD: return "FI_WAIT_POLLFD";
  }
  return "an unknown wait object";
}

int check_wait_obj(const char* call, fi_wait_obj obj, const fid_wait* set) noexcept {
  switch (obj) {
    case FI_WAIT_NONE:
    case FI_WAIT_UNSPEC:
    case FI_WAIT_FD:
    case FI_WAIT_YIELD:
    case FI_WAIT_POLLFD: return 0;
    case FI_WAIT_SET:
      if (set != nullptr && set->fid.fclass == FI_CLASS_WAIT) return 0;
      return refuse(
          -FI_EINVAL,
          "%s: FI_WAIT_SET is asked for, but attr->wait_set is no wait set; open one with "
          "fi_wait_open or use FI_WAIT_FD",
          call);
    case FI_WAIT_MUTEX_COND:
      return refuse(-FI_ENOSYS,
                    "%s: FI_WAIT_MUTEX_COND is not offered: nothing could signal a condition while "
                    "progress is the application's; use FI_WAIT_FD or FI_WAIT_UNSPEC",
                    call);
  }
  return refuse(-FI_EINVAL, "%s: wait object %d is none that fi_cq(3) knows", call,
                static_cast<int>(obj));
}

fi_wait_obj settle_wait_obj(fi_wait_obj obj) noexcept {
  return obj == FI_WAIT_UNSPEC ? FI_WAIT_FD : obj;
}

bool has_fd(fi_wait_obj obj) noexcept {
  return obj == FI_WAIT_FD || obj == FI_WAIT_POLLFD || obj == FI_WAIT_SET;
}

int check_blocking(const char* call, fi_wait_obj obj) noexcept {
  if (obj != FI_WAIT_NONE && obj != FI_WAIT_SET) return 0;
  return refuse(-FI_EINVAL,
                "%s: the object was opened with %s; open it with FI_WAIT_UNSPEC to block", call,
                wait_name(obj));
}

int control_wait(const char* call, fi_wait_obj obj, int fd, int command, void* arg) noexcept {
  if (command != FI_GETWAIT && command != FI_GETWAITOBJ)
    return refuse(-FI_ENOSYS, "%s: command %d is not offered", call, command);
  if (arg == nullptr) return refuse(-FI_EINVAL, "%s: arg is NULL", call);
  if (command == FI_GETWAITOBJ) {
    *static_cast<fi_wait_obj*>(arg) = obj;
    return 0;
  }
  if (obj == FI_WAIT_POLLFD) return get_pollfds(static_cast<fi_wait_pollfd*>(arg), fd);
  if (obj == FI_WAIT_FD) {
    *static_cast<int*>(arg) = fd;
    return 0;
  }
  return refuse(-FI_ENODATA,
                "%s: FI_GETWAIT: the object was opened with %s, which has nothing to wait on "
                "natively; open it with FI_WAIT_FD",
                call, wait_name(obj));
}

int Deadline::remaining_ms() const noexcept {
  if (at_ns_ == kNever) return -1;
  const uint64_t now = now_ns();
  if (now >= at_ns_) return 0;
  const uint64_t ms = (at_ns_ - now + 999'999) / 1'000'000;
  return static_cast<int>(std::min<uint64_t>(ms, std::numeric_limits<int>::max()));
}

Slept sleep_on(fi_wait_obj obj, int fd, const Deadline& deadline, int second) {
  if (obj == FI_WAIT_YIELD) {
    aperture_cancellable_yield();
    return Slept::woken;
  }
  pollfd p[] = {{fd, POLLIN, 0}, {second, POLLIN, 0}};  // poll() ignores one that is negative
  const int n = aperture_cancellable_poll(p, 2, deadline.remaining_ms(), nullptr, nullptr);
  if (n > 0) return Slept::woken;
  return n == 0 ? Slept::timed_out : Slept::interrupted;
}

Sleeper::~Sleeper() {
  if (domain_ == nullptr || !has_place_) return;
  nic::EngineGuard guard(*domain_->engine);
  if (armed_) disarm();
  if (epoll_) domain_->engine->wakers().forget_path(*this);
  assert(domain_->sleepers.size() < domain_->sleepers_opened);
  --domain_->sleepers_opened;
}

Slept Sleeper::sleep(fi_wait_obj obj, const Deadline& deadline) const {
  return sleep_on(obj, epoll_.get(), deadline, domain_->engine->wakers().sleep_fd());
}

int Sleeper::open(Domain& domain, fi_wait_obj obj, qp::WakeFd& wake_fd) {
  assert(domain_ == nullptr);
  domain_ = &domain;
  wake_fd_ = &wake_fd;
  if (!has_fd(obj)) return 0;
  {
    nic::EngineGuard guard(*domain.engine);
    domain.sleepers.reserve(domain.sleepers_opened + 1);  // so that arm() never allocates
    ++domain.sleepers_opened;
    has_place_ = true;
  }
  if (Status s = wake_fd.open(); !s)
    return refuse(fi_code(s),
                  "opening a wait object: %s; raise the limit of descriptors (ulimit -n)",
                  describe(s.error()));
  epoll_ = move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC)));
  if (!epoll_ || !watch(epoll_.get(), wake_fd.get()))
    return refuse(-FI_EMFILE,
                  "opening a wait object: %s; raise the limit of descriptors (ulimit -n)",
                  std::strerror(errno));
  WakePath::fd = epoll_.get();
  nic::EngineGuard guard(*domain.engine);
  // for programs that wait for it and have never called fi_trywait()
  if (domain.engine->wakers().take_path(*this)) domain.engine->wakers().leave_path(*this);
  return 0;
}

bool Sleeper::try_sleep(Waits waits, bool (*ready)(const void*), const void* what) noexcept {
  const bool reachable = waits == Waits::in_call || domain_->engine->wakers().take_path(*this);
  for (int round = 0; round < kSleepRounds; ++round) {
    domain_->engine->poll();
    if (ready(what) || !reachable) break;
    arm();
    if (domain_->engine->sleep().prepare()) {
      domain_->engine->auto_progress().leave_to_application();
      return true;
    }
  }
  wake_up();
  keep_asleep(*domain_);
  return false;
}

void Sleeper::arm() noexcept {
  if (!armed_) {
    armed_ = true;
    assert(domain_->sleepers.size() < domain_->sleepers.capacity());
    domain_->sleepers.push_back(this);
    // what an earlier hand_back() left there: whoever it was for is covered by what is armed now
    if (domain_->engine->lock().threaded()) wake_fd_->disarm();
  }
  wake_fd_->arm();
}

// The doorbell stays readable until somebody goes to sleep again: whoever is blocked has been woken
// by it, or will be.
void Sleeper::disarm() noexcept {
  assert(armed_);
  armed_ = false;
  domain_->engine->wakers().leave_path(*this);
  [[maybe_unused]] const size_t gone = std::erase(domain_->sleepers, this);
  assert(gone == 1);
  if (!domain_->engine->lock().threaded()) {
    wake_fd_->disarm();
  } else if (domain_->engine->wakers().is_rung()) {
    wake_fd_->stand_down();
  } else {
    wake_fd_->hand_back();
  }
}

// Our poll woke the engine while others rely on its doorbell. If things arrive faster than we can
// fall asleep, they are woken instead and look for themselves.
void Sleeper::put_back_to_sleep(Domain& domain) noexcept {
  for (int round = 0; round < kBackToSleepRounds; ++round) {
    if (domain.engine->sleep().prepare()) return;
    domain.engine->poll();
  }
  for (Sleeper* sleeper : domain.sleepers) sleeper->ring();
}

// Threads that sleep on the descriptor, although one has read it since, have been woken by the
// doorbell and may not have looked yet, or count on its next ring.
void Sleeper::on_given_away() noexcept {
  if (domain_->engine->lock().threaded()) ring();
}

void Sleeper::ring() noexcept {
  wake_fd_->wake();
}

}  // namespace aperture::provider
