// How programs come to the device's folders from those of the kernel's: by relative paths, beside
// descriptors, by listings and by walks; and what else of libc takes a path. Each call by itself,
// since a program that uses one that is not answered finds no device.
#include <dirent.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace aperture::test {
namespace {

namespace fs = std::filesystem;
using std::string;

const string kDevice = "/sys/class/infiniband/aperture0";
const string kResolved = "/sys/devices/virtual/infiniband/aperture0";

class LookUps : public testing::Test {
 protected:
  void SetUp() override {
    string pattern = testing::TempDir() + "aperture-look-ups-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    elsewhere_ = pattern;
    fs::create_directories(elsewhere_ + "/class/infiniband");
  }
  void TearDown() override {
    fs::current_path("/");
    fs::remove_all(elsewhere_);
  }

  string elsewhere_;  // a folder that has nothing of ours
};

// --- relative paths ------------------------------------------------------------------------------

// 0, or what errno says.
int error_of(bool succeeded) {
  return succeeded ? 0 : errno;
}

template <typename Opened, typename Close>
int opened(Opened&& it, bool is_there, Close&& close) {
  const int error = error_of(is_there);
  if (is_there) close(it);
  return error;
}

int of_fd(int fd) {
  return opened(fd, fd >= 0, ::close);
}

struct WayToAsk {
  const char* name;
  std::function<int(int at, const char* path)> ask;  // at: AT_FDCWD for what has no such argument
  bool takes_at;
};
const WayToAsk kWaysToAsk[] = {
    {"open", [](int, const char* path) { return of_fd(::open(path, O_RDONLY)); }, false},
    {"openat", [](int at, const char* path) { return of_fd(::openat(at, path, O_RDONLY)); }, true},
    {"openat64", [](int at, const char* path) { return of_fd(::openat64(at, path, O_RDONLY)); },
     true},
    {"fopen",
     [](int, const char* path) {
       FILE* file = ::fopen(path, "r");
       return opened(file, file != nullptr, ::fclose);
     },
     false},
    {"access", [](int, const char* path) { return error_of(::access(path, R_OK) == 0); }, false},
    {"faccessat",
     [](int at, const char* path) { return error_of(::faccessat(at, path, R_OK, 0) == 0); }, true},
    {"stat",
     [](int, const char* path) {
       struct stat st;
       return error_of(::stat(path, &st) == 0);
     },
     false},
    {"fstatat",
     [](int at, const char* path) {
       struct stat st;
       return error_of(::fstatat(at, path, &st, 0) == 0);
     },
     true},
    {"statx",
     [](int at, const char* path) {
       struct statx st;
       return error_of(::statx(at, path, 0, STATX_BASIC_STATS, &st) == 0);
     },
     true},
    {"realpath",
     [](int, const char* path) {
       char* found = ::realpath(path, nullptr);
       return opened(found, found != nullptr, ::free);
     },
     false},
    {"statfs",
     [](int, const char* path) {
       struct statfs st;
       return error_of(::statfs(path, &st) == 0);
     },
     false},
    {"pathconf",
     [](int, const char* path) {
       errno = 0;
       return error_of(::pathconf(path, _PC_NAME_MAX) > 0);
     },
     false},
};

// The same answer of all calls, from the working folder and beside a descriptor.
void expect_answer(const string& folder, const string& path, int error) {
  ASSERT_EQ(::chdir(folder.c_str()), 0) << folder;
  const int plain = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int for_paths = ::open(folder.c_str(), O_PATH | O_CLOEXEC);
  for (const WayToAsk& way : kWaysToAsk) {
    EXPECT_EQ(way.ask(AT_FDCWD, path.c_str()), error) << way.name << ": " << folder << ", " << path;
  }
  ASSERT_EQ(::chdir("/"), 0);
  for (const WayToAsk& way : kWaysToAsk) {
    if (!way.takes_at) continue;
    for (const int at : {plain, for_paths}) {
      EXPECT_EQ(way.ask(at, path.c_str()), error) << way.name << ": " << folder << ", " << path;
    }
  }
  ::close(plain);
  ::close(for_paths);
}

TEST_F(LookUps, by_relative_paths_are_answered_from_folders_of_the_kernels) {
  for (const auto& [folder, path] :
       {std::pair{"/sys/class", "infiniband"}, std::pair{"/sys/class", "./infiniband/aperture0"},
        std::pair{"/sys/class", "infiniband/aperture0/ports/1/state"},
        std::pair{"/sys", "class/infiniband/aperture0"},
        std::pair{"/", "sys/class/infiniband/aperture0/node_type"},
        std::pair{"/sys/class/net", "../infiniband/aperture0"},
        std::pair{"/sys/class/net", ".././/../class/infiniband_verbs/uverbs-aperture0"},
        std::pair{"/sys/class/misc", "rdma_cm/abi_version"},
        std::pair{"/sys/devices/virtual", "infiniband/aperture0/device"},
        std::pair{"/sys/devices/virtual", "numa_node"}, std::pair{"/dev", "infiniband"},
        // out of a folder of ours
        std::pair{"/sys/class/infiniband", "../net"}, std::pair{"/sys/class/infiniband", ".."},
        std::pair{"/sys/class/infiniband", "../../class/infiniband/aperture0"},
        std::pair{"/dev/infiniband", "../null"}, std::pair{"/dev", "infiniband/../null"}}) {
    expect_answer(folder, path, 0);
  }
}

TEST_F(LookUps, by_relative_paths_of_what_is_not_there_fail_as_the_kernels_do) {
  const string class_here = elsewhere_ + "/class";
  for (const auto& [folder, path, error] :
       {std::tuple{string("/sys/class"), string("infiniband/none"), ENOENT},
        std::tuple{string("/sys/class"), string("infiniband/aperture0/none"), ENOENT},
        std::tuple{string("/sys/class"), string("infiniband/aperture0/node_type/x"), ENOTDIR},
        std::tuple{string("/sys/class"), string("infiniband2/aperture0"), ENOENT},
        std::tuple{string("/sys"), string("infiniband/aperture0"), ENOENT},
        std::tuple{string("/sys/class/net"), string("infiniband/aperture0"), ENOENT},
        std::tuple{string("/dev"), string("infiniband/none"), ENOENT},
        std::tuple{class_here, string("infiniband/aperture0"), ENOENT},
        std::tuple{class_here, string("infiniband"), 0},
        std::tuple{class_here, string("../class/infiniband"), 0}}) {
    expect_answer(folder, path, error);
  }
  struct stat st;
  ASSERT_EQ(::chdir("/sys/class"), 0);
  EXPECT_EQ(::stat(("infiniband/" + string(PATH_MAX, 'x')).c_str(), &st), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
  EXPECT_EQ(::fstatat(-1, "infiniband/aperture0", &st, 0), -1);
  EXPECT_EQ(errno, EBADF);
  const int file = ::open((kDevice + "/node_type").c_str(), O_RDONLY);
  ASSERT_GE(file, 0);
  EXPECT_EQ(::fstatat(file, "../aperture0", &st, 0), -1);
  EXPECT_EQ(errno, ENOTDIR);
  ::close(file);
}

TEST_F(LookUps, by_relative_paths_find_nodes_and_what_is_resolved) {
  ASSERT_EQ(::chdir("/dev/infiniband"), 0);
  struct stat st;
  ASSERT_EQ(::stat("rdma_cm", &st), 0);
  EXPECT_TRUE(S_ISCHR(st.st_mode));
  errno = 0;
  EXPECT_EQ(::open("uverbs-aperture0", O_RDWR), -1);
  EXPECT_EQ(errno, ENXIO);
  ASSERT_EQ(::chdir("/sys/class"), 0);
  EXPECT_EQ(fs::canonical("infiniband/aperture0"), kResolved);
  EXPECT_EQ(fs::read_symlink("infiniband/aperture0"), "../../devices/virtual/infiniband/aperture0");
  ASSERT_EQ(::chdir("infiniband/aperture0/ports"), 0);
  EXPECT_EQ(fs::current_path(), kResolved + "/ports");
  EXPECT_EQ(fs::canonical("1"), kResolved + "/ports/1");
}

// --- listings ------------------------------------------------------------------------------------

using Names = std::vector<string>;

template <auto Read>
Names read_all(DIR* stream) {
  Names names;
  while (const auto* entry = Read(stream)) names.emplace_back(entry->d_name);
  return names;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
Names read_into_room(DIR* stream) {
  Names names;
  dirent room;
  for (dirent* entry; ::readdir_r(stream, &room, &entry) == 0 && entry != nullptr;) {
    names.emplace_back(entry->d_name);
  }
  return names;
}
#pragma GCC diagnostic pop

Names scanned(int at, const char* path) {
  dirent** list = nullptr;
  const int n = ::scandirat(at, path, &list, nullptr, ::alphasort);
  Names names;
  for (int i = 0; i < n; ++i) {
    names.emplace_back(list[i]->d_name);
    ::free(list[i]);
  }
  ::free(list);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  return names;
}

struct KernelsFolder {
  const char* path;
  std::set<string> ours;
};
const KernelsFolder kKernelsFolders[] = {
    {"/sys/class", {"infiniband", "infiniband_verbs"}},
    {"/sys/class/misc", {"rdma_cm"}},
    {"/sys/devices/virtual", {"infiniband", "infiniband_verbs"}},
    {"/dev", {"infiniband"}},
};

Names sorted(Names names) {
  std::sort(names.begin(), names.end());
  return names;
}

TEST_F(LookUps, by_listing_a_folder_of_the_kernels_find_ours_once_beside_all_others) {
  for (const KernelsFolder& folder : kKernelsFolders) {
    DIR* stream = ::opendir(folder.path);
    ASSERT_NE(stream, nullptr) << folder.path;
    const Names first = read_all<::readdir>(stream);
    for (const string& name : folder.ours) {
      EXPECT_EQ(std::count(first.begin(), first.end(), name), 1) << folder.path << ": " << name;
    }
    EXPECT_GE(first.size(), folder.ours.size() + 2) << folder.path;
    EXPECT_EQ(::readdir(stream), nullptr);
    ::rewinddir(stream);
    EXPECT_EQ(read_all<::readdir64>(stream), first) << folder.path;
    ::rewinddir(stream);
    EXPECT_EQ(read_into_room(stream), first) << folder.path;
    ::closedir(stream);

    ASSERT_EQ(::chdir(folder.path), 0);
    stream = ::opendir(".");
    EXPECT_EQ(read_all<::readdir>(stream), first) << folder.path;
    ::closedir(stream);
    const int fd = ::open(".", O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(scanned(AT_FDCWD, folder.path), sorted(first)) << folder.path;
    EXPECT_EQ(scanned(AT_FDCWD, "."), sorted(first)) << folder.path;
    EXPECT_EQ(scanned(fd, "."), sorted(first)) << folder.path;
    stream = ::fdopendir(fd);
    EXPECT_EQ(read_all<::readdir>(stream), first) << folder.path;
    ::closedir(stream);
  }
}

TEST_F(LookUps, by_listing_are_told_what_a_name_of_ours_is) {
  DIR* stream = ::opendir("/sys/class");
  ASSERT_NE(stream, nullptr);
  int found = 0;
  while (const dirent* entry = ::readdir(stream)) {
    if (string(entry->d_name) != "infiniband") continue;
    struct stat st;
    ASSERT_EQ(::fstatat(::dirfd(stream), entry->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
    EXPECT_TRUE(S_ISDIR(st.st_mode));
    EXPECT_EQ(entry->d_type, DT_DIR);
    EXPECT_EQ(entry->d_ino, st.st_ino);
    ++found;
  }
  ::closedir(stream);
  EXPECT_EQ(found, 1);
}

TEST_F(LookUps, by_listing_any_other_folder_find_nothing_of_ours) {
  ASSERT_EQ(::chdir(elsewhere_.c_str()), 0);
  for (const char* path : {"/sys/class/net", "/sys", "."}) {
    for (const string& name : scanned(AT_FDCWD, path)) {
      EXPECT_EQ(name.find("infiniband"), string::npos) << path;
    }
  }
  EXPECT_EQ(scanned(AT_FDCWD, "class/infiniband"), (Names{".", ".."}));
  // a stream's place is free when it is closed
  for (int i = 0; i < 200; ++i) ::closedir(::opendir("/sys/class"));
  std::vector<DIR*> many;
  for (int i = 0; i < 60; ++i) many.push_back(::opendir("/sys/class"));
  for (DIR* stream : many) {
    const Names names = read_all<::readdir>(stream);
    EXPECT_EQ(std::count(names.begin(), names.end(), "infiniband"), 1);
    ::closedir(stream);
  }
}

// --- glob ----------------------------------------------------------------------------------------

template <typename List, auto Glob, auto Free>
Names globbed(const char* pattern, int flags = 0) {
  List list{};
  const int result = Glob(pattern, flags, nullptr, &list);
  Names found;
  if (result == 0) found.assign(list.gl_pathv, list.gl_pathv + list.gl_pathc);
  if (result == 0) Free(&list);
  return found;
}

TEST_F(LookUps, by_patterns_are_answered) {
  ASSERT_EQ(::chdir("/sys/class"), 0);
  const Names state{kDevice + "/ports/1/state"};
  for (const auto& [pattern, found] :
       {std::pair{"/sys/class/infiniband/*/ports/1/state", state},
        std::pair{"/sys/class/inf*d/*/ports/*/state", state},
        std::pair{"/sys/c*/inf*d/aperture0/ports/1/state", state},
        std::pair{"inf*", Names{"infiniband", "infiniband_verbs"}},
        std::pair{"infiniband/*", Names{"infiniband/aperture0"}},
        std::pair{"/dev/inf*/uverbs*", Names{"/dev/infiniband/uverbs-aperture0"}},
        std::pair{"/sys/class/infiniband/mlx*", Names{}}}) {
    EXPECT_EQ((globbed<glob_t, ::glob, ::globfree>(pattern)), found) << pattern;
    EXPECT_EQ((globbed<glob64_t, ::glob64, ::globfree64>(pattern)), found) << pattern;
  }
  EXPECT_EQ((globbed<glob_t, ::glob, ::globfree>("/sys/class/{net,infiniband}", GLOB_BRACE)),
            (Names{"/sys/class/net", "/sys/class/infiniband"}));
  // one list of two calls; and the caller's own functions are asked
  glob_t list{};
  ASSERT_EQ(::glob("infiniband/*", 0, nullptr, &list), 0);
  ASSERT_EQ(::glob("infiniband_verbs/u*", GLOB_APPEND, nullptr, &list), 0);
  EXPECT_EQ(list.gl_pathc, 2u);
  ::globfree(&list);
  list = {};
  list.gl_opendir = [](const char*) -> void* { return nullptr; };
  list.gl_stat = [](const char*, struct stat*) { return -1; };
  list.gl_lstat = list.gl_stat;
  EXPECT_EQ(::glob("inf*", GLOB_ALTDIRFUNC, nullptr, &list), GLOB_NOMATCH);
}

// --- walks ---------------------------------------------------------------------------------------

// The device's folder where the kernel has it: libc itself walks there.
string in_the_tree() {
  const int fd = ::open(kResolved.c_str(), O_RDONLY | O_DIRECTORY);
  const string found = fs::read_symlink("/proc/self/fd/" + std::to_string(fd));
  ::close(fd);
  return found;
}

using Step =
    std::tuple<string, int, int, int, string>;  // below the root; kind, level, base; folder
std::vector<Step> steps;
string root;
int answer_at_ports;

int keep_step(const char* path, const struct stat* st, int type, FTW* where) {
  EXPECT_EQ(string(path).compare(0, root.size(), root), 0) << path;
  EXPECT_NE(st, nullptr);
  string here = fs::current_path();
  const size_t at = here.find(kResolved);
  if (at != string::npos) here.erase(0, at);
  const string below = string(path).substr(root.size());
  steps.emplace_back(below, type, where->level, where->base - static_cast<int>(root.size()), here);
  return below == "/ports" ? answer_at_ports : 0;
}

std::pair<int, std::vector<Step>> walked(const string& from, int flags, int answer) {
  steps.clear();
  root = from;
  answer_at_ports = answer;
  const int result = ::nftw(from.c_str(), keep_step, 8, flags);
  return {result, steps};
}

void expect_same(const std::vector<Step>& found, const std::vector<Step>& expected, int flags,
                 int answer) {
  ASSERT_EQ(found.size(), expected.size()) << flags << ", " << answer;
  const auto at = std::mismatch(found.begin(), found.end(), expected.begin());
  if (at.first == found.end()) return;
  EXPECT_EQ(*at.first, *at.second) << flags << ", " << answer;
}

TEST_F(LookUps, by_nftw_go_as_libcs_own_walk) {
  const string reference = in_the_tree();
  ASSERT_NE(reference, kResolved);
  ASSERT_EQ(::chdir(elsewhere_.c_str()), 0);
  for (const int links : {int{FTW_PHYS}, 0}) {
    for (const int order : {0, int{FTW_DEPTH}}) {
      for (const int more : {0, int{FTW_CHDIR}, int{FTW_ACTIONRETVAL}, int{FTW_MOUNT}}) {
        for (const int answer : {0, 1, 2, 3, 7}) {
          if (answer > 3 && more == FTW_ACTIONRETVAL) continue;
          if (links == 0 && answer != 0) continue;        // through links, it takes long
          if (links == 0 && more == FTW_CHDIR) continue;  // libc loses its way back from links
          const int flags = links | order | more;
          const auto expected = walked(reference, flags, answer);
          const auto found = walked(kResolved, flags, answer);
          EXPECT_EQ(found.first, expected.first) << flags << ", " << answer;
          expect_same(found.second, expected.second, flags, answer);
          EXPECT_EQ(fs::current_path(), elsewhere_);
        }
      }
    }
  }
  EXPECT_GT(walked(kResolved, FTW_PHYS, 0).second.size(), 30u);
}

TEST_F(LookUps, by_nftw_find_ours_below_folders_of_the_kernels) {
  std::vector<string> found;
  static std::vector<string>* names;
  names = &found;
  const auto keep = [](const char* path, const struct stat*, int, FTW*) {
    names->emplace_back(path);
    return 0;
  };
  const auto has = [&](const string& path) {
    return std::count(found.begin(), found.end(), path) == 1;
  };
  ASSERT_EQ(::nftw("/sys/class/", keep, 8, FTW_PHYS), 0);
  EXPECT_TRUE(has(kDevice));
  EXPECT_TRUE(has("/sys/class/net/lo"));
  found.clear();
  ASSERT_EQ(::chdir("/sys/class"), 0);
  ASSERT_EQ(::nftw("infiniband", keep, 8, FTW_PHYS), 0);
  EXPECT_EQ(found, (std::vector<string>{"infiniband", "infiniband/aperture0"}));
  found.clear();
  const auto keep64 = [](const char* path, const struct stat64*, int) {
    names->emplace_back(path);
    return 0;
  };
  ASSERT_EQ(::ftw64((kDevice + "/ports/1/pkeys").c_str(), keep64, 8), 0);
  EXPECT_TRUE(has(kDevice + "/ports/1/pkeys/0"));
  EXPECT_EQ(::nftw((kDevice + "/none").c_str(), keep, 8, FTW_PHYS), -1);
  EXPECT_EQ(errno, ENOENT);
}

using Entry = std::tuple<string, string, int, int>;  // below the root; name, kind, level

int by_name_backwards(const FTSENT** a, const FTSENT** b) {
  return std::strcmp((*b)->fts_name, (*a)->fts_name);
}

// `instruction` is for folders named ports, and links.
std::vector<Entry> read_walk(const string& from, int options, int instruction) {
  string path = from;
  char* roots[] = {path.data(), nullptr};
  FTS* walk = ::fts_open(roots, options, by_name_backwards);
  EXPECT_NE(walk, nullptr);
  if (walk == nullptr) return {};
  std::vector<Entry> entries;
  errno = 0;
  while (FTSENT* entry = ::fts_read(walk)) {
    EXPECT_EQ(string(entry->fts_path).compare(0, from.size(), from), 0) << entry->fts_path;
    EXPECT_EQ(string(entry->fts_path).size(), entry->fts_pathlen);
    entries.emplace_back(entry->fts_path + from.size(), entry->fts_name, entry->fts_info,
                         entry->fts_level);
    const bool is_chosen = string(entry->fts_name) == "ports" || entry->fts_info == FTS_SL;
    if (is_chosen && entry->fts_info != FTS_DP && instruction != 0) {
      ::fts_set(walk, entry, instruction);
    }
    if (string(entry->fts_name) == "gids" && entry->fts_info == FTS_D) {
      const FTSENT* child = ::fts_children(walk, 0);
      EXPECT_TRUE(child != nullptr && child->fts_level == entry->fts_level + 1);
    }
  }
  EXPECT_EQ(errno, 0);
  EXPECT_EQ(::fts_close(walk), 0);
  return entries;
}

TEST_F(LookUps, by_fts_go_as_libcs_own_walk) {
  const string reference = in_the_tree();
  for (const int how : {FTS_PHYSICAL, FTS_LOGICAL, FTS_PHYSICAL | FTS_COMFOLLOW,
                        FTS_PHYSICAL | FTS_SEEDOT, FTS_PHYSICAL | FTS_NOSTAT}) {
    for (const int instruction : {0, FTS_SKIP}) {
      if (how == FTS_LOGICAL && instruction == 0) continue;  // through links, it takes long
      const auto expected = read_walk(reference, how | FTS_NOCHDIR, instruction);
      EXPECT_EQ(read_walk(kResolved, how | FTS_NOCHDIR, instruction), expected) << how;
      EXPECT_GT(expected.size(), 10u);
      if (how == FTS_LOGICAL) continue;
      EXPECT_EQ(read_walk(kResolved, how, instruction), expected) << how;
    }
  }
}

TEST_F(LookUps, by_fts_find_ours_below_folders_of_the_kernels) {
  string paths[] = {"/sys/class/infiniband/", "/sys/class", kDevice + "/none"};
  char* roots[] = {paths[0].data(), paths[1].data(), paths[2].data(), nullptr};
  FTS* walk = ::fts_open(roots, FTS_PHYSICAL, nullptr);
  ASSERT_NE(walk, nullptr);
  std::multiset<string> found;
  while (const FTSENT* entry = ::fts_read(walk)) {
    found.insert(entry->fts_path);
    EXPECT_EQ(entry->fts_errno, entry->fts_path == paths[2] ? ENOENT : 0) << entry->fts_path;
  }
  EXPECT_EQ(::fts_close(walk), 0);
  EXPECT_EQ(found.count(kDevice), 2u);
  EXPECT_EQ(found.count("/sys/class/net/lo"), 1u);
  EXPECT_EQ(found.count(paths[2]), 1u);
  errno = 0;
  EXPECT_EQ(::fts_open(roots, FTS_PHYSICAL | 1 << 20, nullptr), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// --- what else takes a path ----------------------------------------------------------------------

TEST_F(LookUps, of_file_systems_are_told_the_kernels) {
  struct statfs in_sys;
  struct statfs64 in_dev;
  ASSERT_EQ(::statfs(kDevice.c_str(), &in_sys), 0);
  EXPECT_EQ(in_sys.f_type, SYSFS_MAGIC);
  struct statfs64 dev;
  ASSERT_EQ(::statfs64("/dev/infiniband", &in_dev), 0);
  ASSERT_EQ(::statfs64("/dev", &dev), 0);
  EXPECT_EQ(in_dev.f_type, dev.f_type);
  struct statvfs of_device;
  struct statvfs64 of_none;
  EXPECT_EQ(::statvfs((kDevice + "/ports").c_str(), &of_device), 0);
  errno = 0;
  EXPECT_EQ(::statvfs64((kDevice + "/none").c_str(), &of_none), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(::pathconf(kDevice.c_str(), _PC_NAME_MAX), 255);
}

TEST_F(LookUps, by_freopen_are_answered) {
  char line[32] = "";
  FILE* file = ::fopen("/dev/null", "r");
  file = ::freopen((kDevice + "/node_type").c_str(), "r", file);
  ASSERT_NE(file, nullptr);
  EXPECT_STREQ(::fgets(line, sizeof line, file), "1: CA\n");
  file = ::freopen64((kDevice + "/ports/1/state").c_str(), "r", file);
  ASSERT_NE(file, nullptr);
  EXPECT_STREQ(::fgets(line, sizeof line, file), "4: ACTIVE\n");
  ::fclose(file);
  errno = 0;
  EXPECT_EQ(::freopen((kDevice + "/node_desc").c_str(), "w", stdin), nullptr);
  EXPECT_EQ(errno, EACCES);
}

TEST_F(LookUps, can_be_watched) {
  const int watcher = ::inotify_init1(IN_CLOEXEC);
  ASSERT_GE(watcher, 0);
  EXPECT_GE(::inotify_add_watch(watcher, kDevice.c_str(), IN_ALL_EVENTS), 0);
  errno = 0;
  EXPECT_EQ(::inotify_add_watch(watcher, (kDevice + "/none").c_str(), IN_ALL_EVENTS), -1);
  EXPECT_EQ(errno, ENOENT);
  ::close(watcher);
}

TEST_F(LookUps, of_a_child_of_posix_spawn_are_answered) {
  posix_spawn_file_actions_t actions;
  ASSERT_EQ(::posix_spawn_file_actions_init(&actions), 0);
  ASSERT_EQ(::posix_spawn_file_actions_addchdir_np(&actions, (kDevice + "/ports").c_str()), 0);
  ASSERT_EQ(::posix_spawn_file_actions_addopen(&actions, 0, (kDevice + "/node_type").c_str(),
                                               O_RDONLY, 0),
            0);
  char* arguments[] = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                       const_cast<char*>("read line; test \"$line\" = '1: CA' && test -d 1"),
                       nullptr};
  char* nothing[] = {nullptr};  // of the environment: the child has no hooks
  pid_t child;
  ASSERT_EQ(::posix_spawn(&child, "/bin/sh", &actions, nullptr, arguments, nothing), 0);
  int status;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  ::posix_spawn_file_actions_destroy(&actions);
}

}  // namespace
}  // namespace aperture::test
