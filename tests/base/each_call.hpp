// The Nth system call fails, for each N, as each_allocation.hpp has allocations fail: for want of
// descriptors, memory or the like. Included by one source of a program, whose functions stand
// before the C library's. What does not concern resources (close, read, write, polling) succeeds.
//
// Which callers count, the including program says: may_fail(caller).
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <cerrno>
#include <cstdarg>

#include "base/each_allocation.hpp"

namespace aperture::nth {

inline bool may_fail(const void* caller) noexcept;

// The C library's own.
template <typename Call>
Call* real(const char* name, Call*) noexcept {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

inline bool fails(const char* call, const void* caller, int why) noexcept {
  if (!may_fail(caller) || !is_the_nth()) return false;
  if (is_one_alone) std::fprintf(stderr, "%s() fails\n", call);
  errno = why;
  return true;
}

}  // namespace aperture::nth

#pragma GCC visibility push(default)  // a library finds them here

// One call that is passed on, or fails with -1.
#define APERTURE_FAILING(type, name, why, parameters, arguments)                        \
  extern "C" type name parameters {                                                     \
    static auto* const passed_on = aperture::nth::real(#name, &name);                   \
    if (aperture::nth::fails(#name, __builtin_return_address(0), why)) return (type)-1; \
    return passed_on arguments;                                                         \
  }

APERTURE_FAILING(int, socket, EMFILE, (int family, int type, int protocol) noexcept,
                 (family, type, protocol))
APERTURE_FAILING(int, bind, EADDRINUSE, (int fd, const sockaddr* at, socklen_t len) noexcept,
                 (fd, at, len))
APERTURE_FAILING(int, listen, EADDRINUSE, (int fd, int backlog) noexcept, (fd, backlog))
APERTURE_FAILING(int, connect, ENOBUFS, (int fd, const sockaddr* to, socklen_t len), (fd, to, len))
APERTURE_FAILING(int, accept4, EMFILE, (int fd, sockaddr* from, socklen_t* len, int flags),
                 (fd, from, len, flags))
APERTURE_FAILING(int, getsockname, ENOBUFS, (int fd, sockaddr* name, socklen_t* len) noexcept,
                 (fd, name, len))
APERTURE_FAILING(int, getpeername, ENOBUFS, (int fd, sockaddr* name, socklen_t* len) noexcept,
                 (fd, name, len))
APERTURE_FAILING(int, setsockopt, ENOBUFS,
                 (int fd, int level, int name, const void* value, socklen_t len) noexcept,
                 (fd, level, name, value, len))
APERTURE_FAILING(int, getsockopt, ENOBUFS,
                 (int fd, int level, int name, void* value, socklen_t* len) noexcept,
                 (fd, level, name, value, len))
APERTURE_FAILING(ssize_t, sendmsg, ENOBUFS, (int fd, const msghdr* message, int flags),
                 (fd, message, flags))
APERTURE_FAILING(ssize_t, recvmsg, ENOMEM, (int fd, msghdr* message, int flags),
                 (fd, message, flags))
APERTURE_FAILING(ssize_t, send, ENOBUFS, (int fd, const void* bytes, size_t len, int flags),
                 (fd, bytes, len, flags))
APERTURE_FAILING(ssize_t, recv, ENOMEM, (int fd, void* bytes, size_t len, int flags),
                 (fd, bytes, len, flags))
APERTURE_FAILING(int, memfd_create, EMFILE, (const char* name, unsigned flags) noexcept,
                 (name, flags))
APERTURE_FAILING(int, ftruncate, ENOSPC, (int fd, off_t size) noexcept, (fd, size))
APERTURE_FAILING(int, fallocate, ENOSPC, (int fd, int mode, off_t at, off_t len),
                 (fd, mode, at, len))
APERTURE_FAILING(int, epoll_create1, EMFILE, (int flags) noexcept, (flags))
APERTURE_FAILING(int, eventfd, EMFILE, (unsigned count, int flags) noexcept, (count, flags))
APERTURE_FAILING(int, timerfd_create, EMFILE, (clockid_t clock, int flags) noexcept, (clock, flags))
APERTURE_FAILING(int, pipe2, EMFILE, (int* both, int flags) noexcept, (both, flags))

// Those that fail with other values, or in part.
extern "C" {
void* mmap(void* at, size_t len, int protection, int flags, int fd, off_t offset) noexcept {
  static auto* const passed_on = aperture::nth::real("mmap", &mmap);
  if (aperture::nth::fails("mmap", __builtin_return_address(0), ENOMEM)) return MAP_FAILED;
  return passed_on(at, len, protection, flags, fd, offset);
}

// What is taken out of an epoll, or changed there, needs nothing.
int epoll_ctl(int epoll, int what, int fd, epoll_event* event) noexcept {
  static auto* const passed_on = aperture::nth::real("epoll_ctl", &epoll_ctl);
  if (what == EPOLL_CTL_ADD &&
      aperture::nth::fails("epoll_ctl", __builtin_return_address(0), ENOSPC))
    return -1;
  return passed_on(epoll, what, fd, event);
}

int open(const char* path, int flags, ...) {
  static auto* const passed_on = aperture::nth::real("open", &open);
  if (aperture::nth::fails("open", __builtin_return_address(0), EMFILE)) return -1;
  va_list more;
  va_start(more, flags);
  const auto mode =
      static_cast<mode_t>((flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, int) : 0);
  va_end(more);
  return passed_on(path, flags, mode);
}

// One more descriptor may not be had; flags and seals can always be asked for.
int fcntl(int fd, int what, ...) {
  static auto* const passed_on = aperture::nth::real("fcntl", &fcntl);
  if (what == F_DUPFD_CLOEXEC && aperture::nth::fails("fcntl", __builtin_return_address(0), EMFILE))
    return -1;
  va_list more;
  va_start(more, what);
  void* const argument = va_arg(more, void*);
  va_end(more);
  return passed_on(fd, what, argument);
}

// std::thread's own call is the C++ library's: whoever makes it counts.
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) noexcept {
  static auto* const passed_on = aperture::nth::real("pthread_create", &pthread_create);
  if (aperture::nth::is_the_nth()) return EAGAIN;
  return passed_on(thread, attributes, run, argument);
}
}

#pragma GCC visibility pop
