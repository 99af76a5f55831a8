// Eventfds: see event_fd.hpp.
#include "base/event_fd.hpp"

#include <poll.h>
#include <sys/syscall.h>

#include <cstdint>
#include <ctime>

#include "base/uninterrupted.hpp"

namespace aperture {

void signal_eventfd(int fd) noexcept {
  if (fd < 0) return;
  const uint64_t one = 1;
  (void)uninterrupted(SYS_write, fd, &one, sizeof one);  // full: it is readable
}

void drain_eventfd(int fd) noexcept {
  if (fd < 0) return;
  uint64_t count = 0;
  (void)uninterrupted(SYS_read, fd, &count, sizeof count);
}

bool is_readable(int fd) noexcept {
  pollfd look{fd, POLLIN, 0};
  const timespec now{};
  return uninterrupted(SYS_ppoll, &look, 1, &now, nullptr, 0) == 1;
}

}  // namespace aperture
