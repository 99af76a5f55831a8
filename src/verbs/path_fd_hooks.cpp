// The functions of libc that take a descriptor, so that those of /dev/infiniband/rdma_cm are event
// channels: see path_fds.hpp, and path_next.hpp for what a hook is.

// The plain functions are defined here, so no header may give them other names or bodies.
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdarg>

#include "verbs/path_fds.hpp"
#include "verbs/path_next.hpp"
#include "verbs/path_table.hpp"
#include "verbs/rdma_cm_commands.hpp"

namespace aperture::verbs {

namespace {

using Fcntl = int(int, int, ...);
using FdStat = int(int, struct stat*);
using Write = ssize_t(int, const void*, size_t);
using OfFd = int(int);
using Dup2 = int(int, int);
using Dup3 = int(int, int, int);
using CloseRange = int(unsigned, unsigned, int);
using CloseFrom = void(int);

// clang-format off
#define APERTURE_EACH_DESCRIPTOR_HOOK(EACH) \
  EACH(write, Write) EACH(close, OfFd) EACH(dup, OfFd) EACH(dup2, Dup2) EACH(dup3, Dup3) \
  EACH(fcntl, Fcntl) EACH(fcntl64, Fcntl) EACH(close_range, CloseRange) \
  EACH(closefrom, CloseFrom) EACH(fstat, FdStat) EACH(fstat64, FdStat)
// clang-format on
APERTURE_DEFINE_EACH_NEXT(descriptor, APERTURE_EACH_DESCRIPTOR_HOOK)

bool fstat_ours(int fd, struct stat* out) noexcept {
  if (!is_marked(fd)) [[likely]]
    return false;
  if (channel_behind(fd) == nullptr) return false;
  fill_stat(PathKind::rdma_cm, *out);
  return true;
}

// What a call has made another descriptor of fd.
int copy_made(int fd, int copy) noexcept {
  if (copy < 0) return copy;
  const Status s = copied(fd, copy);
  if (s.ok()) return copy;
  next_close.get()(copy);
  return hook_failed(s.error() == Errc::no_memory ? ENOMEM : EMFILE);
}

int fcntl_ours(int fd, int command, void* argument) noexcept {
  const int result = next_fcntl.get()(fd, command, argument);
  const bool copies = command == F_DUPFD || command == F_DUPFD_CLOEXEC;
  return copies ? copy_made(fd, result) : result;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;  // NOLINT: the hooks have to stand in the global namespace

APERTURE_HOOK ssize_t write(int fd, const void* bytes, size_t size) {
  if (!is_marked(fd)) [[likely]]
    return next_write.get()(fd, bytes, size);
  const auto channel = channel_behind(fd);
  if (channel == nullptr) return next_write.get()(fd, bytes, size);
  const int saved = errno;
  const int error = rdma_cm::carry_out(channel, fd, bytes, size);
  if (error != 0) return hook_failed(error);
  errno = saved;
  return static_cast<ssize_t>(size);
}

APERTURE_HOOK int close(int fd) {
  if (is_marked(fd)) [[unlikely]]
    forget(fd);
  return next_close.get()(fd);
}

APERTURE_HOOK int dup(int fd) noexcept {
  const int copy = next_dup.get()(fd);
  return is_marked(fd) ? copy_made(fd, copy) : copy;
}

APERTURE_HOOK int dup2(int fd, int copy) noexcept {
  const int made = next_dup2.get()(fd, copy);
  if (made < 0 || fd == copy) return made;
  if (is_marked(copy)) [[unlikely]]
    forget(copy);
  return is_marked(fd) ? copy_made(fd, made) : made;
}

APERTURE_HOOK int dup3(int fd, int copy, int flags) noexcept {
  const int made = next_dup3.get()(fd, copy, flags);
  if (made < 0) return made;
  if (is_marked(copy)) [[unlikely]]
    forget(copy);
  return is_marked(fd) ? copy_made(fd, made) : made;
}

// Its third argument is an int, a long or a pointer, all passed alike on the machines that we run
// on; where there is none, what is passed on is not looked at.
#define APERTURE_FCNTL_HOOK(name)                      \
  APERTURE_HOOK int name(int fd, int command, ...) {   \
    va_list args;                                      \
    va_start(args, command);                           \
    void* const argument = va_arg(args, void*);        \
    va_end(args);                                      \
    if (!is_marked(fd)) [[likely]]                     \
      return next_##name.get()(fd, command, argument); \
    return fcntl_ours(fd, command, argument);          \
  }
APERTURE_FCNTL_HOOK(fcntl)
APERTURE_FCNTL_HOOK(fcntl64)

APERTURE_HOOK int close_range(unsigned first, unsigned last, int flags) noexcept {
  constexpr int kCloseOnExec = 4;  // CLOSE_RANGE_CLOEXEC: nothing is closed now
  if ((flags & kCloseOnExec) == 0 && first <= last) forget_range(first, last);
  const auto next = next_close_range.get();
  return next != nullptr ? next(first, last, flags) : hook_failed(ENOSYS);
}

APERTURE_HOOK void closefrom(int first) noexcept {
  forget_range(first < 0 ? 0 : static_cast<unsigned>(first), ~0u);
  if (const auto next = next_closefrom.get(); next != nullptr) next(first);
}

// On 64-bit machines struct stat64 is struct stat under another name.
static_assert(sizeof(struct stat) == sizeof(struct stat64));

// The second name of each pair is what programs call that were built against a libc before 2.33.
// Its version says which layout they mean, and there is one.
#define APERTURE_FD_STAT_HOOK(name, old_name, Buffer)              \
  APERTURE_HOOK int name(int fd, Buffer* out) noexcept {           \
    auto* same = reinterpret_cast<struct stat*>(out);              \
    return fstat_ours(fd, same) ? 0 : next_##name.get()(fd, same); \
  }                                                                \
  APERTURE_HOOK int old_name(int, int fd, Buffer* out) {           \
    return name(fd, out);                                          \
  }
APERTURE_FD_STAT_HOOK(fstat, __fxstat, struct stat)
APERTURE_FD_STAT_HOOK(fstat64, __fxstat64, struct stat64)
