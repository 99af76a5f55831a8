// The functions of libc that look through folders by themselves: fts(3), nftw(3) and glob(3). The
// first two go by path_walk.hpp where they come to what is ours, glob() always by the functions
// that we stand in front of. path_next.hpp says what a hook is; none of these is
// async-signal-safe.

// The plain functions are defined here, so no header may give them other names or bodies.
#undef _FORTIFY_SOURCE
#undef _FILE_OFFSET_BITS

#include <dirent.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "base/fd.hpp"
#include "verbs/path_place.hpp"
#include "verbs/path_walk.hpp"

namespace aperture::verbs {

namespace {

// On 64-bit machines each of these has two names.
static_assert(sizeof(FTS) == sizeof(FTS64) && sizeof(FTSENT) == sizeof(FTSENT64));
static_assert(sizeof(struct stat) == sizeof(struct stat64) && sizeof(glob_t) == sizeof(glob64_t));

using FtsOrder = int(const FTSENT**, const FTSENT**);
using FtsOpen = FTS*(char* const*, int, FtsOrder*);
using FtsRead = FTSENT*(FTS*);
using FtsChildren = FTSENT*(FTS*, int);
using FtsClose = int(FTS*);
using FtwCall = int(const char*, const struct stat*, int);
using NftwCall = int(const char*, const struct stat*, int, FTW*);
using Ftw = int(const char*, FtwCall*, int);
using Nftw = int(const char*, NftwCall*, int, int);
using GlobError = int(const char*, int);
using Glob = int(const char*, int, GlobError*, glob_t*);
using Glob64 = int(const char*, int, GlobError*, glob64_t*);

// clang-format off
#define APERTURE_EACH_WALK_HOOK(EACH) \
  EACH(fts_open, FtsOpen) EACH(fts64_open, FtsOpen) EACH(fts_read, FtsRead) \
  EACH(fts64_read, FtsRead) EACH(fts_children, FtsChildren) EACH(fts64_children, FtsChildren) \
  EACH(fts_close, FtsClose) EACH(fts64_close, FtsClose) EACH(ftw, Ftw) EACH(ftw64, Ftw) \
  EACH(nftw, Nftw) EACH(nftw64, Nftw) EACH(glob, Glob) EACH(glob64, Glob64)
// clang-format on
APERTURE_DEFINE_EACH_NEXT(walk, APERTURE_EACH_WALK_HOOK)

// --- fts -----------------------------------------------------------------------------------------

constexpr int kIsOurs = 1 << 30;  // in fts_options, where libc has nothing

struct OurFts : FTS {
  OurFts(char* const* roots, int options, FtsOrder* order) : FTS{}, walk(roots, options, order) {
    fts_options = options | kIsOurs;
    fts_compar = reinterpret_cast<decltype(fts_compar)>(order);
  }
  Walk walk;
};

OurFts* ours(FTS* fts) noexcept {
  return (fts->fts_options & kIsOurs) != 0 ? static_cast<OurFts*>(fts) : nullptr;
}

// Whether libc would take them.
bool are_sound(char* const* roots, int options) noexcept {
  if ((options & ~FTS_OPTIONMASK) != 0) return false;
  for (char* const* root = roots; *root != nullptr; ++root) {
    if (**root == 0) return false;
  }
  return *roots != nullptr;
}

FTS* open_walk(FtsOpen* next, char* const* roots, int options, FtsOrder* order) {
  bool comes_to_ours = false;
  for (char* const* root = roots; *root != nullptr; ++root) {
    comes_to_ours = comes_to_ours || walks_to_ours(*root);
  }
  if (!comes_to_ours || !are_sound(roots, options)) return next(roots, options, order);
  try {
    return new OurFts(roots, options, order);
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

// Calls one that may find no memory.
template <typename Call>
FTSENT* entry_of(Call&& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

// --- nftw ----------------------------------------------------------------------------------------

constexpr int kStop = 1;  // FTW_STOP, where FTW_ACTIONRETVAL is given

// One call of nftw(3).
class TreeWalk {
 public:
  TreeWalk(const char* path, int flags)
      : flags_(flags),
        root_(without_slashes(path)),
        roots_{root_.data(), nullptr},
        walk_(roots_, options_of(flags), nullptr) {
    if ((flags_ & FTW_CHDIR) != 0)
      start_ = UniqueFd(::open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }

  template <typename Call>
  int run(Call&& call) {
    if ((flags_ & FTW_CHDIR) != 0 && !start_) return -1;
    while (FTSENT* entry = walk_.read()) {
      assert(entry->fts_level >= FTS_ROOTLEVEL);
      int type = type_of(*entry);
      if (type == kFailed) return -1;
      if (type == kUntold) continue;
      const int answer = tell(*entry, type, call);
      if (answer == 0) continue;
      if ((flags_ & FTW_ACTIONRETVAL) == 0 || answer < 0 || answer == kStop) return answer;
      if (entry->fts_info == FTS_D) passed_over(*entry);
      if (answer == FTW_SKIP_SIBLINGS) walk_.pass_over_siblings();
    }
    return 0;
  }

 private:
  static constexpr int kUntold = -1;
  static constexpr int kFailed = -2;

  static std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
  }
  static int options_of(int flags) noexcept {
    const int links = (flags & FTW_PHYS) != 0 ? FTS_PHYSICAL : FTS_LOGICAL;
    return links | FTS_NOCHDIR;
  }

  // A folder is told of before or behind what is in it, and through links once.
  int type_of_folder(FTSENT& entry) {
    const bool is_new = seen_.emplace(entry.fts_dev, entry.fts_ino).second;
    if (!is_new && (flags_ & FTW_PHYS) == 0) return passed_over(entry);
    if (!walk_.fill()) {
      if (entry.fts_errno != EACCES) errno = entry.fts_errno;
      return entry.fts_errno == EACCES ? FTW_DNR : kFailed;
    }
    return (flags_ & FTW_DEPTH) != 0 ? kUntold : FTW_D;
  }
  int passed_over(FTSENT& entry) noexcept {
    assert(entry.fts_info == FTS_D);
    entry.fts_instr = FTS_SKIP;
    is_skipped_ = true;
    return kUntold;
  }
  bool is_elsewhere(const FTSENT& entry) noexcept {
    if (entry.fts_level == 0) device_ = entry.fts_dev;
    return (flags_ & FTW_MOUNT) != 0 && entry.fts_dev != device_;
  }

  int type_of(FTSENT& entry) {
    const bool was_skipped = std::exchange(is_skipped_, false);
    switch (entry.fts_info) {
      case FTS_D: return is_elsewhere(entry) ? passed_over(entry) : type_of_folder(entry);
      case FTS_DP: return (flags_ & FTW_DEPTH) != 0 && !was_skipped ? FTW_DP : kUntold;
      case FTS_SL: return is_elsewhere(entry) ? kUntold : FTW_SL;
      case FTS_SLNONE: return FTW_SLN;
      case FTS_NS:
        if (entry.fts_level > 0 && (entry.fts_errno == EACCES || entry.fts_errno == ENOENT)) {
          return FTW_NS;
        }
        errno = entry.fts_errno;
        return kFailed;
      case FTS_ERR: errno = entry.fts_errno; return kFailed;
      case FTS_DC: return kUntold;
      default: return is_elsewhere(entry) ? kUntold : FTW_F;
    }
  }

  // With FTW_CHDIR from the folder that it lies in, and from a folder itself behind what is in it.
  template <typename Call>
  int tell(const FTSENT& entry, int type, Call&& call) {
    const std::string path(entry.fts_path);
    const size_t slash = path.rfind('/');
    FTW where;
    where.base = slash == path.npos || path.size() == 1 ? 0 : static_cast<int>(slash + 1);
    where.level = entry.fts_level;
    if ((flags_ & FTW_CHDIR) == 0) return call(path.c_str(), entry.fts_statp, type, &where);
    std::string folder = where.base == 0 ? "." : path.substr(0, std::max<size_t>(slash, 1));
    if (type == FTW_DP) folder = path;
    if (::chdir(folder.c_str()) != 0) return -1;
    const int answer = call(path.c_str(), entry.fts_statp, type, &where);
    const int error = errno;
    if (::fchdir(start_.get()) != 0) return -1;
    errno = error;
    return answer;
  }

  const int flags_;
  std::string root_;
  char* roots_[2];
  Walk walk_;
  UniqueFd start_;
  dev_t device_ = 0;         // the root's
  bool is_skipped_ = false;  // the folder that was read last is not gone into
  std::set<std::pair<dev_t, ino_t>> seen_;
};

template <typename Call>
int walk_tree(const char* path, int flags, Call&& call) {
  try {
    return TreeWalk(path, flags).run(call);
  } catch (const std::bad_alloc&) {
    return hook_failed(ENOMEM);
  }
}

// ftw() knows fewer kinds.
int old_type(int type) noexcept {
  if (type == FTW_DP) return FTW_D;
  if (type == FTW_SL) return FTW_F;
  return type == FTW_SLN ? FTW_NS : type;
}

// --- glob ----------------------------------------------------------------------------------------

template <typename List, typename Entry>
int glob_by_our_hooks(int (*next)(const char*, int, GlobError*, List*), const char* pattern,
                      int flags, GlobError* error, List* list) {
  if ((flags & GLOB_ALTDIRFUNC) != 0) return next(pattern, flags, error, list);
  const List before = *list;
  list->gl_opendir = [](const char* path) -> void* { return ::opendir(path); };
  list->gl_closedir = [](void* stream) { ::closedir(static_cast<DIR*>(stream)); };
  if constexpr (std::is_same_v<Entry, dirent>) {
    list->gl_readdir = [](void* stream) { return ::readdir(static_cast<DIR*>(stream)); };
    list->gl_stat = [](const char* path, struct stat* out) { return ::stat(path, out); };
    list->gl_lstat = [](const char* path, struct stat* out) { return ::lstat(path, out); };
  } else {
    list->gl_readdir = [](void* stream) { return ::readdir64(static_cast<DIR*>(stream)); };
    list->gl_stat = [](const char* path, struct stat64* out) { return ::stat64(path, out); };
    list->gl_lstat = [](const char* path, struct stat64* out) { return ::lstat64(path, out); };
  }
  const int result = next(pattern, flags | GLOB_ALTDIRFUNC, error, list);
  list->gl_flags &= ~GLOB_ALTDIRFUNC;
  list->gl_opendir = before.gl_opendir;
  list->gl_closedir = before.gl_closedir;
  list->gl_readdir = before.gl_readdir;
  list->gl_stat = before.gl_stat;
  list->gl_lstat = before.gl_lstat;
  return result;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;  // NOLINT: the hooks have to stand in the global namespace

#define APERTURE_FTS_HOOKS(fts, FtsType, Entry)                                                  \
  APERTURE_HOOK FtsType* fts##_open(char* const* roots, int options,                             \
                                    int (*order)(const Entry**, const Entry**)) {                \
    return reinterpret_cast<FtsType*>(                                                           \
        open_walk(next_##fts##_open.get(), roots, options, reinterpret_cast<FtsOrder*>(order))); \
  }                                                                                              \
  APERTURE_HOOK Entry* fts##_read(FtsType* given) {                                              \
    auto* const same = reinterpret_cast<FTS*>(given);                                            \
    OurFts* const own = ours(same);                                                              \
    FTSENT* const entry = own == nullptr ? next_##fts##_read.get()(same)                         \
                                         : entry_of([&] { return own->walk.read(); });           \
    return reinterpret_cast<Entry*>(entry);                                                      \
  }                                                                                              \
  APERTURE_HOOK Entry* fts##_children(FtsType* given, int how) {                                 \
    auto* const same = reinterpret_cast<FTS*>(given);                                            \
    OurFts* const own = ours(same);                                                              \
    FTSENT* const entry = own == nullptr ? next_##fts##_children.get()(same, how)                \
                                         : entry_of([&] { return own->walk.children(how); });    \
    return reinterpret_cast<Entry*>(entry);                                                      \
  }                                                                                              \
  APERTURE_HOOK int fts##_close(FtsType* given) {                                                \
    auto* const same = reinterpret_cast<FTS*>(given);                                            \
    OurFts* const own = ours(same);                                                              \
    if (own == nullptr) return next_##fts##_close.get()(same);                                   \
    delete own;                                                                                  \
    return 0;                                                                                    \
  }
APERTURE_FTS_HOOKS(fts, FTS, FTSENT)
APERTURE_FTS_HOOKS(fts64, FTS64, FTSENT64)

#define APERTURE_FTW_HOOK(name, Call)                                                      \
  APERTURE_HOOK int name(const char* path, Call call, int most_open) {                     \
    auto* const same = reinterpret_cast<FtwCall*>(call);                                   \
    if (!walks_to_ours(path)) return next_##name.get()(path, same, most_open);             \
    return walk_tree(path, 0, [&](const char* at, const struct stat* st, int type, FTW*) { \
      return same(at, st, old_type(type));                                                 \
    });                                                                                    \
  }
APERTURE_FTW_HOOK(ftw, __ftw_func_t)
APERTURE_FTW_HOOK(ftw64, __ftw64_func_t)

#define APERTURE_NFTW_HOOK(name, Call)                                                \
  APERTURE_HOOK int name(const char* path, Call call, int most_open, int flags) {     \
    auto* const same = reinterpret_cast<NftwCall*>(call);                             \
    if (!walks_to_ours(path)) return next_##name.get()(path, same, most_open, flags); \
    return walk_tree(path, flags, *same);                                             \
  }
APERTURE_NFTW_HOOK(nftw, __nftw_func_t)
APERTURE_NFTW_HOOK(nftw64, __nftw64_func_t)

APERTURE_HOOK int glob(const char* pattern, int flags, GlobError* error, glob_t* list) noexcept {
  return glob_by_our_hooks<glob_t, dirent>(next_glob.get(), pattern, flags, error, list);
}

APERTURE_HOOK int glob64(const char* pattern, int flags, GlobError* error,
                         glob64_t* list) noexcept {
  return glob_by_our_hooks<glob64_t, dirent64>(next_glob64.get(), pattern, flags, error, list);
}
