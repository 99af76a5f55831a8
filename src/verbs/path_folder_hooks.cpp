// The functions of libc that list a folder: a listing of a folder of the kernel's has the folders
// of ours in it that path_table.hpp names and the kernel has not, behind its own entries.
//
// A stream that has such names is in a table from opendir() to closedir(): for any other stream a
// hook is a load and a jump. A stream is used by one thread at a time, as libc demands, and so is
// its place in the table; no lock is held, so that a child of fork() finds the table whole.

// The plain functions are defined here, so no header may give them other names or bodies.
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cassert>
#include <cstring>
#include <string_view>

#include "base/log.hpp"
#include "verbs/path_place.hpp"

namespace aperture::verbs {

namespace {

using OpenDir = DIR*(const char*);
using OpenDirOf = DIR*(int);
using CloseDir = int(DIR*);
using RewindDir = void(DIR*);
using SeekDir = void(DIR*, long);
template <typename Entry>
using Read = Entry*(DIR*);
template <typename Entry>
using ReadInto = int(DIR*, Entry*, Entry**);
template <typename Entry>
using Choose = int(const Entry*);
template <typename Entry>
using Order = int(const Entry**, const Entry**);
using ReadDir = Read<dirent>;
using ReadDir64 = Read<dirent64>;
using ReadDirR = ReadInto<dirent>;
using ReadDirR64 = ReadInto<dirent64>;
using ScanDir = int(const char*, dirent***, Choose<dirent>*, Order<dirent>*);
using ScanDir64 = int(const char*, dirent64***, Choose<dirent64>*, Order<dirent64>*);
using ScanDirAt = int(int, const char*, dirent***, Choose<dirent>*, Order<dirent>*);
using ScanDirAt64 = int(int, const char*, dirent64***, Choose<dirent64>*, Order<dirent64>*);

// clang-format off
#define APERTURE_EACH_FOLDER_HOOK(EACH) \
  EACH(opendir, OpenDir) EACH(fdopendir, OpenDirOf) EACH(closedir, CloseDir) \
  EACH(rewinddir, RewindDir) EACH(seekdir, SeekDir) EACH(readdir, ReadDir) \
  EACH(readdir64, ReadDir64) EACH(readdir_r, ReadDirR) EACH(readdir64_r, ReadDirR64) \
  EACH(scandir, ScanDir) EACH(scandir64, ScanDir64) EACH(scandirat, ScanDirAt) \
  EACH(scandirat64, ScanDirAt64)
// clang-format on
APERTURE_DEFINE_EACH_NEXT(folder, APERTURE_EACH_FOLDER_HOOK)

// On 64-bit machines struct dirent64 is struct dirent under another name.
static_assert(sizeof(dirent) == sizeof(dirent64));

constexpr size_t kMostStreams = 64;

// A stream with names of ours.
struct Listing {
  std::atomic<DIR*> stream{nullptr};  // null: the place is free
  NamesBeside names{};                // that the kernel has not
  size_t given = 0;
  dirent entry{};
};
std::array<Listing, kMostStreams> listings;
std::atomic<int> listing_count{0};

Listing* listing_of(DIR* stream) noexcept {
  // relaxed: whoever uses a stream has it from who opened it
  if (listing_count.load(std::memory_order_relaxed) == 0) [[likely]]
    return nullptr;
  for (Listing& listing : listings) {
    if (listing.stream.load(std::memory_order_relaxed) == stream) return &listing;  // as above
  }
  return nullptr;
}

// Whether a folder is in a file system of the kind that /sys and /dev are: most are not, and asking
// for the path of each would cost half as much as listing it.
bool is_of_their_kind(int fd) noexcept {
  struct statfs st;
  return ::fstatfs(fd, &st) == 0 && (st.f_type == SYSFS_MAGIC || st.f_type == TMPFS_MAGIC);
}

bool is_there(DIR* stream, const char* name) noexcept {
  return ::faccessat(::dirfd(stream), name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void enter(DIR* stream, const NamesBeside& names) noexcept {
  for (Listing& listing : listings) {
    DIR* none = nullptr;
    // relaxed: what is in the place is for who uses the stream
    if (!listing.stream.compare_exchange_strong(none, stream, std::memory_order_relaxed)) continue;
    listing.names = names;
    listing.given = 0;
    listing_count.fetch_add(1, std::memory_order_relaxed);  // as above
    assert(listing.names[0] != nullptr);
    return;
  }
  APERTURE_WARN("a listing of %s is the kernel's alone: %zu others are open", names[0],
                kMostStreams);
}

// A new stream, or null.
DIR* opened(DIR* stream) noexcept {
  if (stream == nullptr || are_kernel_paths_alone()) return stream;
  const int kept = errno;
  char path[kLongestFolderBeside + 2];
  NamesBeside ours{};
  const int fd = ::dirfd(stream);
  if (is_of_their_kind(fd) && find_folder_of(fd, path, sizeof path)) ours = names_beside(path);
  NamesBeside names{};
  size_t n = 0;
  for (const char* name : ours) {
    if (name == nullptr || !is_there(stream, name)) continue;
    const KernelPathsAlone section;
    if (!is_there(stream, name)) names[n++] = name;
  }
  if (n != 0) enter(stream, names);
  errno = kept;
  return stream;
}

// The next of ours; null: there is none.
dirent* next_of(Listing& listing) noexcept {
  if (listing.given == listing.names.size()) return nullptr;
  const char* name = listing.names[listing.given];
  if (name == nullptr) return nullptr;
  ++listing.given;
  const int kept = errno;
  dirent& entry = listing.entry;
  struct stat st;
  // relaxed: see listing_of()
  DIR* const stream = listing.stream.load(std::memory_order_relaxed);
  const bool there = ::fstatat(::dirfd(stream), name, &st, AT_SYMLINK_NOFOLLOW) == 0;
  errno = kept;
  entry.d_ino = there ? st.st_ino : 1;
  entry.d_off = 0;
  entry.d_reclen = sizeof entry;
  entry.d_type = DT_DIR;
  assert(std::strlen(name) < sizeof entry.d_name);
  std::strcpy(entry.d_name, name);
  return &entry;
}

template <typename Entry>
Entry* read_on(Read<Entry>* next, DIR* stream) {
  Listing* const listing = listing_of(stream);
  if (listing == nullptr) [[likely]]
    return next(stream);
  const int kept = errno;
  errno = 0;
  Entry* entry = next(stream);
  if (entry == nullptr && errno != 0) return nullptr;
  errno = kept;
  return entry != nullptr ? entry : reinterpret_cast<Entry*>(next_of(*listing));
}

template <typename Entry>
int read_on_into(ReadInto<Entry>* next, DIR* stream, Entry* room, Entry** result) {
  const int error = next(stream, room, result);
  Listing* const listing = listing_of(stream);
  if (listing == nullptr || error != 0 || *result != nullptr) [[likely]]
    return error;
  const dirent* entry = next_of(*listing);
  if (entry == nullptr) return 0;
  std::memcpy(room, entry, sizeof *entry);
  *result = room;
  return 0;
}

void begin_again(DIR* stream) noexcept {
  if (Listing* const listing = listing_of(stream)) listing->given = 0;
}

// What scandir() has chosen so far.
template <typename Entry>
struct Chosen {
  Entry** entries = nullptr;
  size_t count = 0;
  size_t room = 0;

  bool add(const Entry& entry) {
    if (count == room) {
      const size_t more = room == 0 ? 16 : 2 * room;
      void* const grown = ::realloc(entries, more * sizeof *entries);
      if (grown == nullptr) return false;
      entries = static_cast<Entry**>(grown);
      room = more;
    }
    const size_t size = offsetof(Entry, d_name) + std::strlen(entry.d_name) + 1;
    void* const copy = ::malloc(size);
    if (copy == nullptr) return false;
    assert(size <= sizeof entry && count < room);
    std::memcpy(copy, &entry, size);
    entries[count++] = static_cast<Entry*>(copy);
    return true;
  }
  void drop() noexcept {
    for (size_t i = 0; i < count; ++i) ::free(entries[i]);
    ::free(entries);
  }
};

// As scandir(3), from a stream that it closes.
template <typename Entry>
int scan(DIR* stream, Read<Entry>* read, Entry*** list, Choose<Entry>* choose,
         Order<Entry>* order) {
  const int kept = errno;
  Chosen<Entry> chosen;
  errno = 0;
  bool failed = false;
  while (const Entry* entry = failed ? nullptr : read(stream)) {
    if (choose == nullptr || choose(entry) != 0) failed = !chosen.add(*entry);
    if (!failed) errno = 0;  // choose() may have set it
  }
  const int error = errno;
  ::closedir(stream);
  errno = error != 0 ? error : kept;
  if (error != 0) {
    chosen.drop();
    return -1;
  }
  if (order != nullptr && chosen.count != 0) {
    ::qsort(chosen.entries, chosen.count, sizeof *chosen.entries,
            reinterpret_cast<int (*)(const void*, const void*)>(order));
  }
  *list = chosen.entries;
  return static_cast<int>(chosen.count);
}

// A folder that is opened by that path is looked at: among absolute ones few are.
bool may_have_names_of_ours(const char* path) noexcept {
  return path != nullptr && (path[0] != '/' || path[1] == 'd' || path[1] == 's');
}

DIR* open_beside(int at, const char* path) {
  if (at == AT_FDCWD) return ::opendir(path);
  const int fd = ::openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return nullptr;
  DIR* const stream = ::fdopendir(fd);
  if (stream == nullptr) ::close(fd);
  return stream;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;  // NOLINT: the hooks have to stand in the global namespace

APERTURE_HOOK DIR* opendir(const char* path) {
  if (!may_have_names_of_ours(path)) [[likely]]
    return next_opendir.get()(path);
  if (!may_be_ours(path)) return opened(next_opendir.get()(path));
  return at_its_place(AT_FDCWD, path,
                      [](const OurPath& place) { return opened(next_opendir.get()(place.get())); });
}

APERTURE_HOOK DIR* fdopendir(int fd) {
  return opened(next_fdopendir.get()(fd));
}

APERTURE_HOOK int closedir(DIR* stream) {
  if (Listing* const listing = listing_of(stream)) {
    // relaxed: the place is for who uses the stream
    listing->stream.store(nullptr, std::memory_order_relaxed);
    listing_count.fetch_sub(1, std::memory_order_relaxed);  // as above
  }
  return next_closedir.get()(stream);
}

APERTURE_HOOK void rewinddir(DIR* stream) noexcept {
  begin_again(stream);
  next_rewinddir.get()(stream);
}

APERTURE_HOOK void seekdir(DIR* stream, long at) noexcept {
  begin_again(stream);
  next_seekdir.get()(stream, at);
}

APERTURE_HOOK dirent* readdir(DIR* stream) {
  return read_on(next_readdir.get(), stream);
}

APERTURE_HOOK dirent64* readdir64(DIR* stream) {
  return read_on(next_readdir64.get(), stream);
}

APERTURE_HOOK int readdir_r(DIR* stream, dirent* room, dirent** result) {
  return read_on_into(next_readdir_r.get(), stream, room, result);
}

APERTURE_HOOK int readdir64_r(DIR* stream, dirent64* room, dirent64** result) {
  return read_on_into(next_readdir64_r.get(), stream, room, result);
}

// The arguments in parentheses stand before the path.
#define APERTURE_SCAN_HOOK(name, parameter, argument, read, Entry)                     \
  APERTURE_HOOK int name(APERTURE_UNPACK parameter const char* path, Entry*** list,    \
                         Choose<Entry>* choose, Order<Entry>* order) {                 \
    if (!may_have_names_of_ours(path)) [[likely]]                                      \
      return next_##name.get()(APERTURE_UNPACK argument path, list, choose, order);    \
    DIR* const stream = open_beside(start_of_path(APERTURE_FIRST argument), path);     \
    return stream == nullptr ? -1 : scan<Entry>(stream, &::read, list, choose, order); \
  }
APERTURE_SCAN_HOOK(scandir, (), (), readdir, dirent)
APERTURE_SCAN_HOOK(scandir64, (), (), readdir64, dirent64)
APERTURE_SCAN_HOOK(scandirat, (int at, ), (at, ), readdir, dirent)
APERTURE_SCAN_HOOK(scandirat64, (int at, ), (at, ), readdir64, dirent64)
