// Making the tree, and finding paths in it: see path_tree.hpp.
#include "verbs/path_tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/runtime_folder.hpp"

namespace aperture::verbs {

namespace {

using std::string;
using std::string_view;

constexpr string_view kTreeName = "/sys-";
constexpr size_t kKeptTrees = 8;

// Where the tree is for a user. Never freed: whoever looks holds no lock.
struct Root {
  uid_t user;
  string path;
  const Root* next;
};
std::atomic<const Root*> roots{nullptr};

// FNV-1a.
uint64_t hash_of(const TreeContents& contents) noexcept {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    hash *= 0x100000001b3u;  // an end
  };
  for (const auto* pairs : {&contents.files, &contents.links}) {
    for (const auto& [path, what] : *pairs) {
      add(path);
      add(what);
    }
  }
  return hash;
}

// Calls visit(name, is_folder) for what a folder holds, which may be gone. (std::filesystem's
// iterators end the process where there is no memory.)
template <typename Visit>
void each_entry(const string& folder, Visit&& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), &::closedir);
  if (dir == nullptr) return;
  while (const dirent* entry = ::readdir(dir.get())) {
    const string_view name(entry->d_name);
    if (name != "." && name != "..") visit(string(name), entry->d_type == DT_DIR);
  }
}

// What the kernel has beside ours in that folder: links that say what its own say.
void add_kernels_entries(const string& folder, TreeContents& contents) {
  each_entry(folder, [&](const string& name, bool) {
    const string path = folder + '/' + name;
    const auto is_it = [&](const TreeContents::Pair& p) {
      return p.first == path || p.first.compare(0, path.size() + 1, path + '/') == 0;
    };
    if (std::any_of(contents.files.begin(), contents.files.end(), is_it) ||
        std::any_of(contents.links.begin(), contents.links.end(), is_it)) {
      return;
    }
    char target[PATH_MAX];
    const ssize_t n = ::readlink(path.c_str(), target, sizeof target);
    contents.links.emplace_back(path, n > 0 ? string(target, static_cast<size_t>(n)) : path);
  });
}

// The folders above a path. False: one cannot be made.
bool make_folders(const string& path) {
  for (size_t slash = path.find('/', 1); slash != path.npos; slash = path.find('/', slash + 1)) {
    if (::mkdir(path.substr(0, slash).c_str(), 0755) != 0 && errno != EEXIST) return false;
  }
  return true;
}

bool write_file(const string& path, const string& text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

bool write_tree(const string& at, const TreeContents& contents) {
  for (const string& folder : contents.shared_folders) {
    if (!make_folders(at + folder + '/')) return false;
  }
  assert(!at.empty() && at.front() == '/');
  for (const auto& [path, text] : contents.files) {
    assert(!path.empty() && path.front() == '/');  // else it would be made beside the tree
    if (!make_folders(at + path) || !write_file(at + path, text)) return false;
  }
  for (const auto& [path, target] : contents.links) {
    if (!make_folders(at + path)) return false;
    if (::symlink(target.c_str(), (at + path).c_str()) != 0 && errno != EEXIST) return false;
  }
  return true;
}

void remove_tree(const string& path) {
  each_entry(path, [&](const string& name, bool is_folder) {
    const string below = path + '/' + name;
    if (is_folder) {
      remove_tree(below);
    } else {
      ::unlink(below.c_str());
    }
  });
  ::rmdir(path.c_str());
}

// Those that were made longest ago. Whoever still looks into one makes it again.
void remove_old_trees(const string& folder) {
  std::vector<std::pair<time_t, string>> trees;
  each_entry(folder, [&](const string& name, bool) {
    struct stat st;
    const string path = folder + '/' + name;
    if (('/' + name).compare(0, kTreeName.size(), kTreeName) != 0) return;
    if (::stat(path.c_str(), &st) == 0) trees.emplace_back(st.st_mtime, path);
  });
  std::sort(trees.begin(), trees.end());
  for (size_t i = 0; i + kKeptTrees < trees.size(); ++i) remove_tree(trees[i].second);
}

// Made beside its place and moved there as a whole: of two processes one wins.
bool make_tree(const string& folder, const string& path, const TreeContents& contents) {
  const string fresh = path + '.' + std::to_string(::getpid()) + '.' + std::to_string(::gettid());
  if (write_tree(fresh, contents) && ::rename(fresh.c_str(), path.c_str()) == 0) {
    remove_old_trees(folder);
    return true;
  }
  remove_tree(fresh);
  return ::access(path.c_str(), F_OK) == 0;
}

const Root* make_root() {
  const KernelPathsAlone section;
  string why_not;
  const string folder = runtime_folder(why_not);
  if (folder.empty()) {
    APERTURE_WARN("the device has no files in /sys: %s", why_not.c_str());
    return nullptr;
  }
  TreeContents contents = tree_contents();
  for (const string& shared : contents.shared_folders) add_kernels_entries(shared, contents);
  char name[32];
  std::snprintf(name, sizeof name, "%s%016llx", kTreeName.data(),
                static_cast<unsigned long long>(hash_of(contents)));
  const string path = folder + name;
  if (::access(path.c_str(), F_OK) != 0 && !make_tree(folder, path, contents)) {
    APERTURE_WARN("the device has no files in /sys: %s cannot be made: %s", path.c_str(),
                  std::strerror(errno));
    return nullptr;
  }
  // relaxed first, since it is only compared; release: what it points to is complete
  auto* root = new Root{::geteuid(), path, roots.load(std::memory_order_relaxed)};
  while (!roots.compare_exchange_weak(root->next, root, std::memory_order_release)) {
  }
  return root;
}

const Root* known_root() noexcept {
  const uid_t user = ::geteuid();
  const Root* root = roots.load(std::memory_order_acquire);
  while (root != nullptr && root->user != user) root = root->next;
  return root;
}

// Null: there is none to be had.
const Root* find_root() noexcept {
  const Root* root = known_root();
  if (root != nullptr && ::access(root->path.c_str(), F_OK) == 0) return root;
  try {
    return make_root();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Indices are looked up until one is missing: that is no question without an answer.
bool is_index(string_view path) noexcept {
  return path.find("/gids/") != path.npos || path.find("/gid_attrs/") != path.npos;
}

// The folder that relative paths start from, as the kernel has it. False: there is none.
bool find_start(int at, char* out, size_t size) noexcept {
  if (at == AT_FDCWD) return ::syscall(SYS_getcwd, out, size) > 0;
  struct stat st;
  return ::fstat(at, &st) == 0 && S_ISDIR(st.st_mode) && find_folder_of(at, out, size);
}

// A relative path behind its start, which has no links, so that each ".." ahead leads back. False:
// it is longer than `size` - 1.
bool append_relative(const char* path, char* start, size_t size) noexcept {
  size_t n = std::strlen(start);
  const auto is_next = [&](const char* component, size_t length) {
    return std::strncmp(path, component, length) == 0 && (path[length] == '/' || path[length] == 0);
  };
  for (;; path += *path == '/' ? 1 : 0) {
    if (is_next("..", 2)) {
      while (n > 0 && start[--n] != '/') {
      }
      path += 2;
    } else if (is_next(".", 1)) {
      path += 1;
    } else if (*path != '/') {
      break;
    }
  }
  if (n == 1) n = 0;  // the root
  const size_t more = std::strlen(path);
  if (n + 1 + more >= size) return false;
  start[n] = '/';
  std::memcpy(start + n + 1, path, more + 1);
  if (more == 0 && n > 0) start[n] = 0;
  return true;
}

// The path from the root, not clean yet. False: it cannot be told, or is too long. `from_tree`: it
// starts there.
bool make_absolute(int at, const char* path, char* out, size_t size, bool& from_tree) noexcept {
  from_tree = false;
  if (path[0] == '/') {
    const size_t n = std::strlen(path);
    if (n < size) std::memcpy(out, path, n + 1);
    return n < size;
  }
  if (!find_start(at, out, size)) return false;
  from_tree = leave_tree(out);
  return append_relative(path, out, size);
}

}  // namespace

OurPath::OurPath(int at, const char* path) noexcept : at_(path) {
  if (are_kernel_paths_alone()) return;
  const int kept = errno;
  bool from_tree;
  if (make_absolute(at, path, buffer_, sizeof buffer_, from_tree) &&
      (from_tree || may_be_ours(buffer_)) && clean_path(buffer_, buffer_, sizeof buffer_)) {
    find_place();
  }
  errno = kept;
}

void OurPath::find_place() noexcept {
  const PathKind kind = kind_of_path(buffer_);
  if (kind == PathKind::foreign) {
    at_ = buffer_;  // it may have led through a folder that the kernel has not
    return;
  }
  const Root* root = find_root();
  const size_t size = std::strlen(buffer_);
  if (root != nullptr && root->path.size() + size < sizeof buffer_) {
    clean_ = buffer_ + root->path.size();
    std::memmove(buffer_ + root->path.size(), buffer_, size + 1);
    std::memcpy(buffer_, root->path.data(), root->path.size());
    at_ = buffer_;
    if (::access(buffer_, F_OK) != 0 && errno == ENOENT && !is_index(clean_)) {
      APERTURE_WARN("%s: the device has no such file, so the program is told that there is none",
                    clean_);
    }
  }
  if (root != nullptr || kind != PathKind::in_tree) kind_ = kind;
}

bool walks_to_ours(const char* path) noexcept {
  if (path == nullptr || are_kernel_paths_alone()) return false;
  const int kept = errno;
  char clean[PATH_MAX];
  bool from_tree;
  const bool comes = make_absolute(AT_FDCWD, path, clean, sizeof clean, from_tree) &&
                     clean_path(clean, clean, sizeof clean) &&
                     (kind_of_path(clean) != PathKind::foreign || is_above_ours(clean)) &&
                     find_root() != nullptr;
  errno = kept;
  return comes;
}

bool find_folder_of(int fd, char* out, size_t size) noexcept {
  assert(size >= 2);
  char link[48];
  std::snprintf(link, sizeof link, "/proc/thread-self/fd/%d", fd);
  const ssize_t n = ::readlink(link, out, size - 1);
  if (n <= 0 || static_cast<size_t>(n) == size - 1) return false;
  out[n] = 0;
  return true;
}

bool leave_tree(char* path) noexcept {
  if (std::strstr(path, kTreeName.data()) == nullptr) return false;
  const int kept = errno;
  const Root* root = known_root();
  if (root == nullptr) root = find_root();  // it was changed to before this program was started
  errno = kept;
  if (root == nullptr) return false;
  const size_t n = root->path.size();
  if (std::strncmp(path, root->path.c_str(), n) != 0) return false;
  if (path[n] != '/' && path[n] != 0) return false;
  std::memmove(path, path + n, std::strlen(path + n) + 1);
  return true;
}

}  // namespace aperture::verbs
