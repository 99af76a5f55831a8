// The functions of libc that this library stands in front of, so that /dev/infiniband/rdma_cm and a
// few files of /sys exist: see path_fds.hpp and path_table.hpp for what is ours.
//
// For everything else a hook is a load and a jump to the next definition: it works before
// constructors have run, in signal handlers and in children of vfork(), leaves errno alone and is a
// cancellation point where libc's is. None is noexcept: cancellation unwinds through them. They are
// exported without a version, so that they stand in for every version of their names
// (path_hooks.map.in). Any thread.

// The plain functions are defined here, so no header may give them other names or bodies.
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <new>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "verbs/path_fds.hpp"
#include "verbs/path_table.hpp"
#include "verbs/rdma_cm_commands.hpp"

#define APERTURE_HOOK extern "C" [[gnu::visibility("default"), gnu::used]]

namespace aperture::verbs {

namespace {

void* find_next(const char* name) noexcept {
  const int saved = errno;
  void* found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    // loaded behind libc, with dlopen()
    void* libc = ::dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (libc != nullptr) found = ::dlsym(libc, name);
  }
  errno = saved;
  return found;
}

// The next definition of a function, looked up once.
template <typename Function>
class Next {
 public:
  constexpr explicit Next(const char* name) noexcept : name_(name) {}
  Function* get() noexcept {
    // relaxed: the same value whoever finds it, and code is always there
    void* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) [[unlikely]] {
      found = find_next(name_);
      found_.store(found, std::memory_order_relaxed);
    }
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* const name_;
  std::atomic<void*> found_{nullptr};
};

// The types of the functions that are hooked.
using Open = int(const char*, int, ...);
using OpenAt = int(int, const char*, int, ...);
using Open2 = int(const char*, int);
using OpenAt2 = int(int, const char*, int);
using FOpen = FILE*(const char*, const char*);
using Fcntl = int(int, int, ...);
using Stat = int(const char*, struct stat*);
using FdStat = int(int, struct stat*);
using Write = ssize_t(int, const void*, size_t);
using OfFd = int(int);
using Dup2 = int(int, int);
using Dup3 = int(int, int, int);
using CloseRange = int(unsigned, unsigned, int);
using CloseFrom = void(int);

// Each function that is hooked, and its type.
// clang-format off
#define APERTURE_EACH_HOOK(EACH)                                                         \
  EACH(write, Write) EACH(close, OfFd) EACH(dup, OfFd) EACH(dup2, Dup2) EACH(dup3, Dup3) \
  EACH(fcntl, Fcntl) EACH(fcntl64, Fcntl) EACH(close_range, CloseRange)                  \
  EACH(closefrom, CloseFrom) EACH(open, Open) EACH(open64, Open) EACH(openat, OpenAt)    \
  EACH(openat64, OpenAt) EACH(__open_2, Open2) EACH(__open64_2, Open2)                   \
  EACH(__openat_2, OpenAt2) EACH(__openat64_2, OpenAt2) EACH(fopen, FOpen)               \
  EACH(fopen64, FOpen) EACH(access, Open2) EACH(stat, Stat) EACH(stat64, Stat)           \
  EACH(lstat, Stat) EACH(lstat64, Stat) EACH(fstat, FdStat) EACH(fstat64, FdStat)
// clang-format on

#define APERTURE_DEFINE_NEXT(name, Type) constinit Next<Type> next_##name(#name);
APERTURE_EACH_HOOK(APERTURE_DEFINE_NEXT)

// So that the first call of a hook in a signal handler does not have to look anything up.
[[gnu::constructor]] void find_all() noexcept {
#define APERTURE_FIND_NEXT(name, Type) next_##name.get();
  APERTURE_EACH_HOOK(APERTURE_FIND_NEXT)
}

int failed(int error) noexcept {
  errno = error;
  return -1;
}

// A descriptor from which the text can be read, as from a file of /sys.
int open_text(const char* path, int flags) noexcept {
  if ((flags & O_ACCMODE) != O_RDONLY) return failed(EACCES);
  try {
    const std::string text = text_of_path(path);
    UniqueFd fd(::memfd_create("aperture-sysfs", (flags & O_CLOEXEC) != 0 ? MFD_CLOEXEC : 0));
    if (!fd) return -1;
    if (next_write.get()(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::lseek(fd.get(), 0, SEEK_SET) != 0) {
      return failed(EIO);
    }
    return fd.release();
  } catch (const std::bad_alloc&) {
    return failed(ENOMEM);
  }
}

// Opens what is ours into `fd`; false: it is not.
bool open_ours(const char* path, int flags, int& fd) noexcept {
  if (!may_be_ours(path)) [[likely]]
    return false;
  switch (kind_of_path(path)) {
    case PathKind::rdma_cm: fd = open_channel(flags); return true;
    case PathKind::file: fd = open_text(path, flags); return true;
    case PathKind::device:
      APERTURE_WARN("%s: programs reach the device through libibverbs, not by opening it", path);
      fd = failed(ENXIO);
      return true;
    case PathKind::folder:
    case PathKind::foreign: break;
  }
  return false;
}

// The same for fopen(): only files can be ours there, and only to be read.
bool fopen_ours(const char* path, const char* mode, int& fd) noexcept {
  const bool reads = mode[0] == 'r' && std::strchr(mode, '+') == nullptr;
  return reads && may_be_ours(path) && kind_of_path(path) == PathKind::file &&
         open_ours(path, O_RDONLY | O_CLOEXEC, fd);
}

bool stat_ours(const char* path, struct stat* out) noexcept {
  if (!may_be_ours(path)) [[likely]]
    return false;
  const PathKind kind = kind_of_path(path);
  if (kind == PathKind::foreign) return false;
  fill_stat(kind, *out);
  return true;
}

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
  return failed(s.error() == Errc::no_memory ? ENOMEM : EMFILE);
}

bool has_mode(int flags) noexcept {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

mode_t mode_of(int flags, va_list args) noexcept {
  return has_mode(flags) ? static_cast<mode_t>(va_arg(args, int)) : 0;
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
  if (error != 0) return failed(error);
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
  return next != nullptr ? next(first, last, flags) : failed(ENOSYS);
}

APERTURE_HOOK void closefrom(int first) noexcept {
  forget_range(first < 0 ? 0 : static_cast<unsigned>(first), ~0u);
  if (const auto next = next_closefrom.get(); next != nullptr) next(first);
}

// open() and openat(), for files of any size: the arguments in parentheses stand before the path.
#define APERTURE_UNPACK(...) __VA_ARGS__
#define APERTURE_OPEN_HOOK(name, parameter, argument)                                  \
  APERTURE_HOOK int name(APERTURE_UNPACK parameter const char* path, int flags, ...) { \
    int fd;                                                                            \
    if (open_ours(path, flags, fd)) [[unlikely]]                                       \
      return fd;                                                                       \
    va_list args;                                                                      \
    va_start(args, flags);                                                             \
    const mode_t mode = mode_of(flags, args);                                          \
    va_end(args);                                                                      \
    return next_##name.get()(APERTURE_UNPACK argument path, flags, mode);              \
  }
APERTURE_OPEN_HOOK(open, (), ())
APERTURE_OPEN_HOOK(open64, (), ())
APERTURE_OPEN_HOOK(openat, (int at, ), (at, ))
APERTURE_OPEN_HOOK(openat64, (int at, ), (at, ))

// What a program calls that was compiled with _FORTIFY_SOURCE and gives no mode.
#define APERTURE_OPEN_2_HOOK(name, parameter, argument)                                          \
  APERTURE_HOOK int name(APERTURE_UNPACK parameter const char* path, int flags) {                \
    int fd;                                                                                      \
    return open_ours(path, flags, fd) ? fd                                                       \
                                      : next_##name.get()(APERTURE_UNPACK argument path, flags); \
  }
APERTURE_OPEN_2_HOOK(__open_2, (), ())
APERTURE_OPEN_2_HOOK(__open64_2, (), ())
APERTURE_OPEN_2_HOOK(__openat_2, (int at, ), (at, ))
APERTURE_OPEN_2_HOOK(__openat64_2, (int at, ), (at, ))

#define APERTURE_FOPEN_HOOK(name)                                          \
  APERTURE_HOOK FILE* name(const char* path, const char* mode) {           \
    int fd;                                                                \
    if (!fopen_ours(path, mode, fd)) return next_##name.get()(path, mode); \
    return fd < 0 ? nullptr : ::fdopen(fd, "r");                           \
  }
APERTURE_FOPEN_HOOK(fopen)
APERTURE_FOPEN_HOOK(fopen64)

APERTURE_HOOK int access(const char* path, int how) noexcept {
  struct stat st;
  if (!stat_ours(path, &st)) [[likely]]
    return next_access.get()(path, how);
  const unsigned wanted = static_cast<unsigned>(how) & 7;  // R_OK, W_OK, X_OK as the mode has them
  return (st.st_mode & wanted) == wanted ? 0 : failed(EACCES);
}

// On 64-bit machines struct stat64 is struct stat under another name.
static_assert(sizeof(struct stat) == sizeof(struct stat64));

// The second name of each pair is what programs call that were built against a libc before 2.33.
// Its version says which layout they mean, and there is one.
#define APERTURE_STAT_HOOK(name, old_name, Which, ours, buffer)    \
  APERTURE_HOOK int name(Which which, buffer* out) noexcept {      \
    auto* same = reinterpret_cast<struct stat*>(out);              \
    return ours(which, same) ? 0 : next_##name.get()(which, same); \
  }                                                                \
  APERTURE_HOOK int old_name(int, Which which, buffer* out) {      \
    return name(which, out);                                       \
  }
APERTURE_STAT_HOOK(stat, __xstat, const char*, stat_ours, struct stat)
APERTURE_STAT_HOOK(stat64, __xstat64, const char*, stat_ours, struct stat64)
APERTURE_STAT_HOOK(lstat, __lxstat, const char*, stat_ours, struct stat)
APERTURE_STAT_HOOK(lstat64, __lxstat64, const char*, stat_ours, struct stat64)
APERTURE_STAT_HOOK(fstat, __fxstat, int, fstat_ours, struct stat)
APERTURE_STAT_HOOK(fstat64, __fxstat64, int, fstat_ours, struct stat64)
