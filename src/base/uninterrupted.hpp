// A system call that is made again for as long as signals interrupt it (EINTR): one that wakes
// somebody must not be lost to a signal. No cancellation point (event_fd.hpp). Any thread.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace aperture {

template <typename... Arguments>
long uninterrupted(long number, Arguments... arguments) noexcept {
  long result = 0;
  do {
    result = ::syscall(number, arguments...);
  } while (result < 0 && errno == EINTR);
  return result;
}

}  // namespace aperture
