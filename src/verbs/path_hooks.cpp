// The functions of libc that take a path, so that /dev/infiniband and the device's folders of /sys
// exist: see path_table.hpp for what is ours, path_next.hpp for what a hook is. What is done with a
// path of ours the kernel does with one of the tree of path_tree.hpp. Those that list folders are
// in path_folder_hooks.cpp, those that walk through them in path_walk_hooks.cpp.

// The plain functions are defined here, so no header may give them other names or bodies.
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>

#include "base/log.hpp"
#include "verbs/path_fds.hpp"
#include "verbs/path_place.hpp"

namespace aperture::verbs {

namespace {

using Open = int(const char*, int, ...);
using OpenAt = int(int, const char*, int, ...);
using Open2 = int(const char*, int);
using OpenAt2 = int(int, const char*, int);
using FOpen = FILE*(const char*, const char*);
using Stat = int(const char*, struct stat*);
using StatAt = int(int, const char*, struct stat*, int);
using StatX = int(int, const char*, int, unsigned, struct statx*);
using AccessAt = int(int, const char*, int, int);
using ReadLink = ssize_t(const char*, char*, size_t);
using ReadLinkAt = ssize_t(int, const char*, char*, size_t);
using ReadLinkChk = ssize_t(const char*, char*, size_t, size_t);
using ReadLinkAtChk = ssize_t(int, const char*, char*, size_t, size_t);
using RealPath = char*(const char*, char*);
using RealPathChk = char*(const char*, char*, size_t);
using CanonicalName = char*(const char*);
using ChDir = int(const char*);
using GetAttribute = ssize_t(const char*, const char*, void*, size_t);
using ListAttributes = ssize_t(const char*, char*, size_t);
using FReopen = FILE*(const char*, const char*, FILE*);
template <typename Buffer>
using OfFileSystem = int(const char*, Buffer*);
using StatFs = OfFileSystem<struct statfs>;
using StatFs64 = OfFileSystem<struct statfs64>;
using StatVfs = OfFileSystem<struct statvfs>;
using StatVfs64 = OfFileSystem<struct statvfs64>;
using PathConf = long(const char*, int);
using Watch = int(int, const char*, uint32_t);
using SpawnOpen = int(posix_spawn_file_actions_t*, int, const char*, int, mode_t);
using SpawnChDir = int(posix_spawn_file_actions_t*, const char*);
using GetCwd = char*(char*, size_t);
using GetCwdChk = char*(char*, size_t, size_t);

// clang-format off
#define APERTURE_EACH_PATH_HOOK(EACH) \
  EACH(open, Open) EACH(open64, Open) EACH(openat, OpenAt) EACH(openat64, OpenAt) \
  EACH(__open_2, Open2) EACH(__open64_2, Open2) EACH(__openat_2, OpenAt2) \
  EACH(__openat64_2, OpenAt2) EACH(fopen, FOpen) EACH(fopen64, FOpen) \
  EACH(access, Open2) EACH(eaccess, Open2) EACH(euidaccess, Open2) \
  EACH(faccessat, AccessAt) EACH(stat, Stat) EACH(stat64, Stat) EACH(lstat, Stat) \
  EACH(lstat64, Stat) EACH(fstatat, StatAt) EACH(fstatat64, StatAt) EACH(statx, StatX) \
  EACH(readlink, ReadLink) EACH(readlinkat, ReadLinkAt) \
  EACH(__readlink_chk, ReadLinkChk) EACH(__readlinkat_chk, ReadLinkAtChk) \
  EACH(realpath, RealPath) EACH(__realpath_chk, RealPathChk) \
  EACH(canonicalize_file_name, CanonicalName) EACH(chdir, ChDir) EACH(getcwd, GetCwd) \
  EACH(__getcwd_chk, GetCwdChk) EACH(getxattr, GetAttribute) \
  EACH(lgetxattr, GetAttribute) EACH(listxattr, ListAttributes) \
  EACH(llistxattr, ListAttributes) EACH(freopen, FReopen) EACH(freopen64, FReopen) \
  EACH(statfs, StatFs) EACH(statfs64, StatFs64) EACH(statvfs, StatVfs) \
  EACH(statvfs64, StatVfs64) EACH(pathconf, PathConf) EACH(inotify_add_watch, Watch) \
  EACH(posix_spawn_file_actions_addopen, SpawnOpen) \
  EACH(posix_spawn_file_actions_addchdir_np, SpawnChDir)
// clang-format on
APERTURE_DEFINE_EACH_NEXT(path, APERTURE_EACH_PATH_HOOK)

// Whoever opens to write what is only read.
int refuse_writing(const OurPath& place) noexcept {
  APERTURE_WARN("%s: what the device has there is read, not written", place.clean());
  return hook_failed(EACCES);
}

// Opens what is ours and none of the tree's, or refuses what is not done there; false: the kernel
// opens it.
bool open_ours(const OurPath& place, const char* path, int flags, int& fd) noexcept {
  switch (place.kind()) {
    case PathKind::rdma_cm: fd = open_channel(flags); return true;
    case PathKind::device:
      APERTURE_WARN("%s: programs reach the device through libibverbs, not by opening it", path);
      fd = hook_failed(ENXIO);
      return true;
    case PathKind::in_tree:
      if ((flags & O_ACCMODE) == O_RDONLY) return false;
      fd = refuse_writing(place);
      return true;
    case PathKind::foreign: break;
  }
  return false;
}

void fill_statx(PathKind kind, struct statx& out) noexcept {
  struct stat st;
  fill_stat(kind, st);
  std::memset(&out, 0, sizeof out);
  out.stx_mask = STATX_BASIC_STATS;
  out.stx_blksize = static_cast<uint32_t>(st.st_blksize);
  out.stx_nlink = static_cast<uint32_t>(st.st_nlink);
  out.stx_mode = static_cast<uint16_t>(st.st_mode);
  out.stx_rdev_major = major(st.st_rdev);
  out.stx_rdev_minor = minor(st.st_rdev);
}

// What access() says of it; 1: the kernel says it.
int access_ours(const OurPath& place, int how) noexcept {
  if (place.is_node()) return (how & X_OK) == 0 ? 0 : hook_failed(EACCES);
  if (place.is_ours() && (how & W_OK) != 0) return hook_failed(EACCES);  // root could
  return 1;
}

// What a call that resolves paths has given back, or null.
char* out_of_tree(char* resolved) noexcept {
  if (resolved != nullptr) leave_tree(resolved);
  return resolved;
}

const char* file_system_of(const OurPath& place) noexcept {
  return std::strncmp(place.clean(), "/dev/", 5) == 0 ? "/dev" : "/sys";
}

bool has_mode(int flags) noexcept {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

mode_t mode_of(int flags, va_list args) noexcept {
  return has_mode(flags) ? static_cast<mode_t>(va_arg(args, int)) : 0;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;  // NOLINT: the hooks have to stand in the global namespace

// open() and openat(), for files of any size: the arguments in parentheses stand before the path.
#define APERTURE_OPEN_HOOK(name, parameter, argument)                                             \
  APERTURE_HOOK int name(APERTURE_UNPACK parameter const char* path, int flags, ...) {            \
    va_list args;                                                                                 \
    va_start(args, flags);                                                                        \
    const mode_t mode = mode_of(flags, args);                                                     \
    va_end(args);                                                                                 \
    if (!may_be_ours(path)) [[likely]]                                                            \
      return next_##name.get()(APERTURE_UNPACK argument path, flags, mode);                       \
    return at_its_place(start_of_path(APERTURE_FIRST argument), path, [&](const OurPath& place) { \
      int fd;                                                                                     \
      return open_ours(place, path, flags, fd)                                                    \
                 ? fd                                                                             \
                 : next_##name.get()(APERTURE_UNPACK argument place.get(), flags, mode);          \
    });                                                                                           \
  }
APERTURE_OPEN_HOOK(open, (), ());
APERTURE_OPEN_HOOK(open64, (), ());
APERTURE_OPEN_HOOK(openat, (int at, ), (at, ));
APERTURE_OPEN_HOOK(openat64, (int at, ), (at, ));

// What a program calls that was compiled with _FORTIFY_SOURCE and gives no mode.
#define APERTURE_OPEN_2_HOOK(name, parameter, argument)                                           \
  APERTURE_HOOK int name(APERTURE_UNPACK parameter const char* path, int flags) {                 \
    if (!may_be_ours(path)) [[likely]]                                                            \
      return next_##name.get()(APERTURE_UNPACK argument path, flags);                             \
    return at_its_place(start_of_path(APERTURE_FIRST argument), path, [&](const OurPath& place) { \
      int fd;                                                                                     \
      return open_ours(place, path, flags, fd)                                                    \
                 ? fd                                                                             \
                 : next_##name.get()(APERTURE_UNPACK argument place.get(), flags);                \
    });                                                                                           \
  }
APERTURE_OPEN_2_HOOK(__open_2, (), ());
APERTURE_OPEN_2_HOOK(__open64_2, (), ());
APERTURE_OPEN_2_HOOK(__openat_2, (int at, ), (at, ));
APERTURE_OPEN_2_HOOK(__openat64_2, (int at, ), (at, ));

// Nodes are not opened by it, and what is in the tree is only read. freopen() closes the stream
// before it fails: it is given a path that is nowhere.
#define APERTURE_FOPEN_HOOK(name, more, argument, instead)                            \
  APERTURE_HOOK FILE* name(const char* path, const char* mode APERTURE_UNPACK more) { \
    if (!may_be_ours(path)) [[likely]]                                                \
      return next_##name.get()(path, mode APERTURE_UNPACK argument);                  \
    return at_its_place(AT_FDCWD, path, [&](const OurPath& place) -> FILE* {          \
      const bool reads = mode[0] == 'r' && !std::strchr(mode, '+');                   \
      if (!place.is_ours() || (reads && place.kind() == PathKind::in_tree))           \
        return next_##name.get()(place.get(), mode APERTURE_UNPACK argument);         \
      instead;                                                                        \
      refuse_writing(place);                                                          \
      return nullptr;                                                                 \
    });                                                                               \
  }
APERTURE_FOPEN_HOOK(fopen, (), (), );
APERTURE_FOPEN_HOOK(fopen64, (), (), );
APERTURE_FOPEN_HOOK(freopen, (, FILE* stream), (, stream), next_freopen.get()("", mode, stream));
APERTURE_FOPEN_HOOK(freopen64, (, FILE* stream), (, stream),
                    next_freopen64.get()("", mode, stream));

#define APERTURE_IF_ACCESS \
  if (const int answer = access_ours(place, how); answer <= 0) return answer
APERTURE_PATH_HOOK(int, access, (), (, int how), (), (, how), APERTURE_IF_ACCESS);
APERTURE_PATH_HOOK(int, eaccess, (), (, int how), (), (, how), APERTURE_IF_ACCESS);
APERTURE_PATH_HOOK(int, euidaccess, (), (, int how), (), (, how), APERTURE_IF_ACCESS);
APERTURE_PATH_HOOK(int, faccessat, (int at, ), (, int how, int flags), (at, ), (, how, flags),
                   APERTURE_IF_ACCESS);

APERTURE_PATH_HOOK(ssize_t, readlink, (), (, char* to, size_t n), (), (, to, n), );
APERTURE_PATH_HOOK(ssize_t, readlinkat, (int at, ), (, char* to, size_t n), (at, ), (, to, n), );
APERTURE_PATH_HOOK(ssize_t, __readlink_chk, (), (, char* to, size_t n, size_t room), (),
                   (, to, n, room), );
APERTURE_PATH_HOOK(ssize_t, __readlinkat_chk, (int at, ), (, char* to, size_t n, size_t room),
                   (at, ), (, to, n, room), );
APERTURE_PATH_HOOK(int, chdir, (), (), (), (), );

// From a working folder in the tree any relative path leads there.
#define APERTURE_RESOLVE_HOOK(name, more, arguments)                                \
  APERTURE_HOOK char* name(const char* path APERTURE_UNPACK more) {                 \
    if (!may_be_ours(path)) [[likely]]                                              \
      return out_of_tree(next_##name.get()(path APERTURE_UNPACK arguments));        \
    return at_its_place(AT_FDCWD, path, [&](const OurPath& place) {                 \
      return out_of_tree(next_##name.get()(place.get() APERTURE_UNPACK arguments)); \
    });                                                                             \
  }
APERTURE_RESOLVE_HOOK(realpath, (, char* to), (, to));
APERTURE_RESOLVE_HOOK(__realpath_chk, (, char* to, size_t room), (, to, room));
APERTURE_RESOLVE_HOOK(canonicalize_file_name, (), ());

// `ls -l` asks for access lists.
#define APERTURE_ATTRIBUTE_HOOKS(get, list)                                          \
  APERTURE_PATH_HOOK(ssize_t, get, (), (, const char* name, void* to, size_t n), (), \
                     (, name, to, n), )                                              \
  APERTURE_PATH_HOOK(ssize_t, list, (), (, char* to, size_t n), (), (, to, n), )
APERTURE_ATTRIBUTE_HOOKS(getxattr, listxattr);
APERTURE_ATTRIBUTE_HOOKS(lgetxattr, llistxattr);

// A folder of ours is in a file system of the user's, and says that it is in the kernel's.
#define APERTURE_FILE_SYSTEM_HOOK(name, Buffer)                              \
  APERTURE_PATH_HOOK(int, name, (), (, Buffer * out), (), (, out),           \
                     const int result = next_##name.get()(place.get(), out); \
                     if (result == 0 && place.is_ours()) static_cast<void>(  \
                         next_##name.get()(file_system_of(place), out));     \
                     return result)
APERTURE_FILE_SYSTEM_HOOK(statfs, struct statfs);
APERTURE_FILE_SYSTEM_HOOK(statfs64, struct statfs64);
APERTURE_FILE_SYSTEM_HOOK(statvfs, struct statvfs);
APERTURE_FILE_SYSTEM_HOOK(statvfs64, struct statvfs64);
APERTURE_PATH_HOOK(long, pathconf, (), (, int what), (), (, what), );

// Nothing changes there, as with most of what the kernel has in /sys.
APERTURE_HOOK int inotify_add_watch(int fd, const char* path, uint32_t what) noexcept {
  if (!may_be_ours(path)) [[likely]]
    return next_inotify_add_watch.get()(fd, path, what);
  return at_its_place(AT_FDCWD, path, [&](const OurPath& place) {
    return next_inotify_add_watch.get()(fd, place.get(), what);
  });
}

// What a child of posix_spawn() shall open or go to: a relative path from where it is then, which
// nobody knows here.
APERTURE_HOOK int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t* actions, int fd,
                                                   const char* path, int flags,
                                                   mode_t mode) noexcept {
  const auto next = next_posix_spawn_file_actions_addopen.get();
  if (!may_be_ours(path)) [[likely]]
    return next(actions, fd, path, flags, mode);
  return at_its_place(AT_FDCWD, path, [&](const OurPath& place) {
    const bool leads_there = path[0] == '/' && !place.is_node();
    if (place.is_ours() && !leads_there) {
      APERTURE_WARN(
          "%s: posix_spawn() does not open it for the child: %s", path,
          place.is_node() ? "it is a device of the process that opens it" : "the path is relative");
    }
    return next(actions, fd, leads_there ? place.get() : path, flags, mode);
  });
}

APERTURE_HOOK int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t* actions,
                                                       const char* path) noexcept {
  const auto next = next_posix_spawn_file_actions_addchdir_np.get();
  if (path[0] != '/' || !may_be_ours(path)) [[likely]]
    return next(actions, path);
  return at_its_place(AT_FDCWD, path,
                      [&](const OurPath& place) { return next(actions, place.get()); });
}

#define APERTURE_GETCWD_HOOK(name, more, argument)                         \
  APERTURE_HOOK char* name(char* to, size_t n APERTURE_UNPACK more) {      \
    return out_of_tree(next_##name.get()(to, n APERTURE_UNPACK argument)); \
  }
APERTURE_GETCWD_HOOK(getcwd, (), ());
APERTURE_GETCWD_HOOK(__getcwd_chk, (, size_t room), (, room));

// On 64-bit machines struct stat64 is struct stat under another name.
static_assert(sizeof(struct stat) == sizeof(struct stat64));

#define APERTURE_IF_NODE(fill, Type)                   \
  if (place.is_node()) {                               \
    fill(place.kind(), *reinterpret_cast<Type*>(out)); \
    return 0;                                          \
  }
// The second name of each pair is what programs call that were built against a libc before 2.33.
// Its version says which layout they mean, and there is one.
#define APERTURE_STAT_HOOK(name, old_name, Buffer)                  \
  APERTURE_HOOK int name(const char* path, Buffer* out) noexcept {  \
    auto* same = reinterpret_cast<struct stat*>(out);               \
    if (!may_be_ours(path)) [[likely]]                              \
      return next_##name.get()(path, same);                         \
    return at_its_place(AT_FDCWD, path, [&](const OurPath& place) { \
      APERTURE_IF_NODE(fill_stat, struct stat)                      \
      return next_##name.get()(place.get(), same);                  \
    });                                                             \
  }                                                                 \
  APERTURE_HOOK int old_name(int, const char* path, Buffer* out) {  \
    return name(path, out);                                         \
  }
APERTURE_STAT_HOOK(stat, __xstat, struct stat);
APERTURE_STAT_HOOK(stat64, __xstat64, struct stat64);
APERTURE_STAT_HOOK(lstat, __lxstat, struct stat);
APERTURE_STAT_HOOK(lstat64, __lxstat64, struct stat64);

#define APERTURE_STAT_AT_HOOK(name, old_name, Buffer)                                 \
  APERTURE_HOOK int name(int at, const char* path, Buffer* out, int flags) noexcept { \
    auto* same = reinterpret_cast<struct stat*>(out);                                 \
    if (!may_be_ours(path)) [[likely]]                                                \
      return next_##name.get()(at, path, same, flags);                                \
    return at_its_place(at, path, [&](const OurPath& place) {                         \
      APERTURE_IF_NODE(fill_stat, struct stat)                                        \
      return next_##name.get()(at, place.get(), same, flags);                         \
    });                                                                               \
  }                                                                                   \
  APERTURE_HOOK int old_name(int, int at, const char* path, Buffer* out, int flags) { \
    return name(at, path, out, flags);                                                \
  }
APERTURE_STAT_AT_HOOK(fstatat, __fxstatat, struct stat);
APERTURE_STAT_AT_HOOK(fstatat64, __fxstatat64, struct stat64);

APERTURE_PATH_HOOK(int, statx, (int at, ), (, int flags, unsigned mask, struct statx* out), (at, ),
                   (, flags, mask, out), APERTURE_IF_NODE(fill_statx, struct statx));
