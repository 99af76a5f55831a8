// The Nth system call fails, for each N, as each_allocation.hpp has allocations fail: for want of
// descriptors, memory or the like, or because a signal has come (EINTR). A call that can fail in
// more than one way counts more than once. Included by one source of a program, whose functions
// stand before the C library's, syscall(2) among them. What fails only by a mistake (close, munmap,
// asking for a state) succeeds.
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
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>

#include "base/each_allocation.hpp"
#include "base/system_call.hpp"

namespace aperture::nth {

inline bool may_fail(const void* caller) noexcept;

// The C library's own.
template <typename Call>
Call* real(const char* name, Call*) noexcept {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

inline void note_failed(const char* call, int why) noexcept {
  if (failed_name != nullptr) {
    std::snprintf(failed_name, kNameBytes, "%s with %s", call, ::strerrorname_np(why));
  }
}

inline bool fails(const char* call, const void* caller, int why) noexcept {
  if (!may_fail(caller) || !is_the_nth()) return false;
  note_failed(call, why);
  errno = why;
  return true;
}

inline mode_t kind_of(int fd) noexcept {
  struct stat st {};
  return ::fstat(fd, &st) == 0 ? st.st_mode & S_IFMT : S_IFSOCK;
}

// EAGAIN of what never blocks (an eventfd is of no kind), EIO of a file.
inline bool read_fails(const char* call, const void* caller, int fd) noexcept {
  if (fails(call, caller, EINTR)) return true;
  return fails(call, caller, kind_of(fd) == S_IFREG ? EIO : EAGAIN);
}

// EAGAIN is true only of what is full: an eventfd or a pipe is readable then, and `passed_on` sees
// to it. A pipe may lack the memory for its page.
template <typename PassedOn>
bool write_fails(const char* call, const void* caller, int fd, PassedOn&& passed_on) noexcept {
  if (fails(call, caller, EINTR)) return true;
  const mode_t kind = kind_of(fd);
  if (kind == S_IFREG || kind == S_IFSOCK) return fails(call, caller, ENOSPC);
  if (kind == S_IFIFO && fails(call, caller, ENOMEM)) return true;
  if (!may_fail(caller) || !is_the_nth()) return false;
  note_failed(call, EAGAIN);
  passed_on();
  errno = EAGAIN;
  return true;
}

// What the number of a system call says of it. No cancellation points: base/event_fd.hpp.
template <typename PassedOn>
bool raw_fails(long number, long fd, const void* caller, PassedOn&& passed_on) noexcept {
  switch (number) {
    case SYS_read: return read_fails("SYS_read", caller, static_cast<int>(fd));
    case SYS_write: return write_fails("SYS_write", caller, static_cast<int>(fd), passed_on);
    case SYS_sendto:
    case SYS_sendmsg: return fails("SYS_send", caller, EINTR) || fails("SYS_send", caller, ENOBUFS);
    case SYS_recvmmsg:
      return fails("SYS_recvmmsg", caller, EINTR) || fails("SYS_recvmmsg", caller, ENOMEM);
    case SYS_epoll_pwait: return fails("SYS_epoll_pwait", caller, EINTR);
    case SYS_ppoll: return fails("SYS_ppoll", caller, EINTR) || fails("SYS_ppoll", caller, ENOMEM);
    case SYS_membarrier: return fails("SYS_membarrier", caller, ENOMEM);
    default: return false;
  }
}

}  // namespace aperture::nth

namespace aperture::test {

inline long on_system_call(const SystemCall& call) noexcept {
  const auto pass_on = [&] { return call.pass_on(); };
  return nth::raw_fails(call.number, call.a[0], call.caller, pass_on) ? -1 : pass_on();
}

}  // namespace aperture::test

#pragma GCC visibility push(default)  // a library finds them here

// One call that is passed on, or fails with -1, for one of the reasons.
#define APERTURE_FAILS_FOR(type, name, parameters, arguments, ...)                        \
  extern "C" type name parameters {                                                       \
    static auto* const passed_on = aperture::nth::real(#name, &name);                     \
    for (const int why : {__VA_ARGS__})                                                   \
      if (aperture::nth::fails(#name, __builtin_return_address(0), why)) return (type)-1; \
    return passed_on arguments;                                                           \
  }
#define APERTURE_FAILING(type, name, why, parameters, arguments) \
  APERTURE_FAILS_FOR(type, name, parameters, arguments, why)
// The same for what a signal may interrupt.
#define APERTURE_INTERRUPTED(type, name, why, parameters, arguments) \
  APERTURE_FAILS_FOR(type, name, parameters, arguments, EINTR, why)

APERTURE_FAILING(int, socket, EMFILE, (int family, int type, int protocol) noexcept,
                 (family, type, protocol))
APERTURE_FAILING(int, bind, EADDRINUSE, (int fd, const sockaddr* at, socklen_t len) noexcept,
                 (fd, at, len))
APERTURE_FAILING(int, listen, EADDRINUSE, (int fd, int backlog) noexcept, (fd, backlog))
APERTURE_FAILING(int, connect, ENOBUFS, (int fd, const sockaddr* to, socklen_t len), (fd, to, len))
APERTURE_INTERRUPTED(int, accept4, EMFILE, (int fd, sockaddr* from, socklen_t* len, int flags),
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
APERTURE_INTERRUPTED(ssize_t, sendmsg, ENOBUFS, (int fd, const msghdr* message, int flags),
                     (fd, message, flags))
APERTURE_INTERRUPTED(ssize_t, recvmsg, ENOMEM, (int fd, msghdr* message, int flags),
                     (fd, message, flags))
APERTURE_INTERRUPTED(ssize_t, send, ENOBUFS, (int fd, const void* bytes, size_t len, int flags),
                     (fd, bytes, len, flags))
APERTURE_INTERRUPTED(ssize_t, recv, ENOMEM, (int fd, void* bytes, size_t len, int flags),
                     (fd, bytes, len, flags))
APERTURE_FAILING(int, memfd_create, EMFILE, (const char* name, unsigned flags) noexcept,
                 (name, flags))
APERTURE_FAILING(int, ftruncate, ENOSPC, (int fd, off_t size) noexcept, (fd, size))
APERTURE_INTERRUPTED(int, fallocate, ENOSPC, (int fd, int mode, off_t at, off_t len),
                     (fd, mode, at, len))
APERTURE_FAILING(int, epoll_create1, EMFILE, (int flags) noexcept, (flags))
APERTURE_FAILING(int, eventfd, EMFILE, (unsigned count, int flags) noexcept, (count, flags))
APERTURE_FAILING(int, timerfd_create, EMFILE, (clockid_t clock, int flags) noexcept, (clock, flags))
APERTURE_FAILING(int, pipe2, EMFILE, (int* both, int flags) noexcept, (both, flags))

APERTURE_INTERRUPTED(ssize_t, sendto, ENOBUFS,
                     (int fd, const void* bytes, size_t len, int flags, const sockaddr* to,
                      socklen_t to_len),
                     (fd, bytes, len, flags, to, to_len))
APERTURE_FAILING(int, epoll_wait, EINTR, (int epoll, epoll_event* events, int most, int timeout_ms),
                 (epoll, events, most, timeout_ms))
APERTURE_FAILING(int, madvise, ENOMEM, (void* at, size_t len, int advice) noexcept,
                 (at, len, advice))

// Those that fail in more than one way, with other values, or in part.
extern "C" {
ssize_t read(int fd, void* bytes, size_t len) {
  static auto* const passed_on = aperture::nth::real("read", &read);
  if (aperture::nth::read_fails("read", __builtin_return_address(0), fd)) return -1;
  return passed_on(fd, bytes, len);
}

ssize_t pread(int fd, void* bytes, size_t len, off_t at) {
  static auto* const passed_on = aperture::nth::real("pread", &pread);
  if (aperture::nth::read_fails("pread", __builtin_return_address(0), fd)) return -1;
  return passed_on(fd, bytes, len, at);
}

ssize_t write(int fd, const void* bytes, size_t len) {
  static auto* const passed_on = aperture::nth::real("write", &write);
  const auto pass_on = [&] { return passed_on(fd, bytes, len); };
  if (aperture::nth::write_fails("write", __builtin_return_address(0), fd, pass_on)) return -1;
  return pass_on();
}

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
