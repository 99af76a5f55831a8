// The calls of epoll, with their errors as failures of the measure.
#include "stopwatch/epoll.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstring>

#include "stopwatch/failure.hpp"
#include "stopwatch/patience.hpp"

namespace aperture::bench {

Epoll::Epoll() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) throw Failure("epoll_create1: %s", std::strerror(errno));
}

void Epoll::add(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw Failure("epoll_ctl: %s", std::strerror(errno));
  }
}

int Epoll::sleep(epoll_event (&events)[kBatch], const char* awaited) {
  const int longest_ms = patience_ms();
  int n;
  do {
    n = ::epoll_wait(fd_.get(), events, kBatch, longest_ms);
  } while (n < 0 && errno == EINTR);
  if (n < 0) throw Failure("epoll_wait: %s", std::strerror(errno));
  if (n == 0) throw Failure("slept %d ms in epoll for %s", longest_ms, awaited);
  return n;
}

void make_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    throw Failure("fcntl: %s", std::strerror(errno));
  }
}

}  // namespace aperture::bench
