// When what is held back is due: a descriptor that is readable from then on.
#pragma once

#include <sys/timerfd.h>

#include <cassert>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/errc.hpp"
#include "base/fd.hpp"

namespace aperture::link::faulty {

class Timer {
 public:
  // Errors: no_fds, no_memory.
  static Result<Timer> make() noexcept {
    ParentOnlyFd fd(
        move_high(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))));
    if (!fd) return errc_from_errno(errno);
    return Timer(std::move(fd));
  }
  int fd() const noexcept { return fd_.get(); }

  // By now_ns(); 0: nothing is due, and the descriptor is quiet.
  void set(uint64_t at_ns) noexcept {
    constexpr uint64_t kSecond = 1'000'000'000;
    assert(at_ns < uint64_t{1} << 63);  // a time, not a difference that went below 0
    if (std::exchange(at_ns_, at_ns) == at_ns) return;
    itimerspec at{};
    at.it_value.tv_sec = static_cast<time_t>(at_ns / kSecond);
    at.it_value.tv_nsec = static_cast<long>(at_ns % kSecond);
    ::timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
  }

 private:
  explicit Timer(ParentOnlyFd fd) noexcept : fd_(std::move(fd)) { assert(fd_); }

  ParentOnlyFd fd_;
  uint64_t at_ns_ = 0;
};

}  // namespace aperture::link::faulty
