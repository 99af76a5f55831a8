// The device's folders as C and C++ programs list them and resolve paths in them: each call of libc
// by itself, since a program that uses one that is not answered finds no device.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "verbs/fortified.h"

namespace aperture::test {
namespace {

namespace fs = std::filesystem;
using std::string;
using Names = std::set<string>;
using Listed = std::optional<Names>;  // nothing: it failed, and errno says why

const string kClass = "/sys/class/infiniband";
const string kDevice = kClass + "/aperture0";
const string kResolved = "/sys/devices/virtual/infiniband/aperture0";

struct Folder {
  string path;
  Names holds;  // among others
};
const Folder kFolders[] = {
    {kClass, {"aperture0"}},
    {kClass + "/", {"aperture0"}},
    {"/sys/class/infiniband_verbs", {"uverbs-aperture0", "abi_version"}},
    {"/sys/class/infiniband_verbs/uverbs-aperture0", {"ibdev", "device", "abi_version"}},
    {kDevice, {"ports", "device", "node_guid", "subsystem"}},
    {kDevice + "/device", {"numa_node", "vendor", "net", "infiniband", "infiniband_verbs"}},
    {kDevice + "/device/infiniband", {"aperture0"}},
    {kDevice + "/ports", {"1"}},
    {kDevice + "/ports/1", {"state", "rate", "gids", "gid_attrs", "pkeys"}},
    {kResolved + "/ports/1/gid_attrs/ndevs", {"0"}},
    {"/dev/infiniband", {"rdma_cm", "uverbs-aperture0"}},
};

// --- ways of listing a folder --------------------------------------------------------------------

template <typename Entry>
void keep(Names& names, const Entry& entry) {
  if (string(entry.d_name) != "." && string(entry.d_name) != "..") names.insert(entry.d_name);
}

template <auto Read>
Listed read_all(DIR* dir) {
  if (dir == nullptr) return std::nullopt;
  Names names;
  while (const auto* entry = Read(dir)) keep(names, *entry);
  ::closedir(dir);
  return names;
}

template <typename Entry>
Listed taken(int n, Entry** list) {
  if (n < 0) return std::nullopt;
  Names names;
  for (int i = 0; i < n; ++i) {
    keep(names, *list[i]);
    ::free(list[i]);
  }
  ::free(list);
  return names;
}

template <auto Scan, auto Order, typename Entry>
Listed scanned(const string& path) {
  Entry** list = nullptr;
  const int n = Scan(path.c_str(), &list, nullptr, Order);
  return taken(n, list);
}

template <auto Scan, auto Order, typename Entry>
Listed scanned_at(int at, const string& path) {
  Entry** list = nullptr;
  const int n = Scan(at, path.c_str(), &list, nullptr, Order);
  return taken(n, list);
}

// The same beside the descriptor of the folder that holds it.
template <typename List>
Listed beside(const string& path, List&& list) {
  const fs::path plain = path.back() == '/' ? fs::path(path).parent_path() : fs::path(path);
  const int at = ::open(plain.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) return std::nullopt;
  const Listed listed = list(at, plain.filename().string());
  const int error = errno;
  ::close(at);
  errno = error;
  return listed;
}

Listed opened(int at, const string& path) {
  const int fd = ::openat(at, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? std::nullopt : read_all<::readdir>(::fdopendir(fd));
}

Listed iterated(const string& path) {
  std::error_code error;
  Names names;
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    names.insert(at->path().filename());
  }
  errno = error.value();
  return error ? std::nullopt : Listed(names);
}

Listed iterated_deeply(const string& path) {
  std::error_code error;
  Names names;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    if (at.depth() == 0) names.insert(at->path().filename());
  }
  errno = error.value();
  return error ? std::nullopt : Listed(names);
}

struct WayToList {
  const char* name;
  std::function<Listed(const string&)> list;
  bool only_below_ours = false;  // it starts from the descriptor of a folder of ours
};
constexpr auto kByName = ::alphasort;
constexpr auto kByName64 = ::alphasort64;
const WayToList kWaysToList[] = {
    {"readdir", [](const string& path) { return read_all<::readdir>(::opendir(path.c_str())); }},
    {"readdir64",
     [](const string& path) { return read_all<::readdir64>(::opendir(path.c_str())); }},
    {"fdopendir", [](const string& path) { return opened(AT_FDCWD, path); }},
    {"scandir", scanned<::scandir, kByName, dirent>},
    {"scandir64", scanned<::scandir64, kByName64, dirent64>},
    {"scandirat",
     [](const string& path) { return scanned_at<::scandirat, kByName, dirent>(AT_FDCWD, path); }},
    {"scandirat64",
     [](const string& path) {
       return scanned_at<::scandirat64, kByName64, dirent64>(AT_FDCWD, path);
     }},
    {"directory_iterator", iterated},
    {"recursive_directory_iterator", iterated_deeply},
    {"openat, beside a descriptor", [](const string& path) { return beside(path, opened); }, true},
    {"scandirat, beside a descriptor",
     [](const string& path) { return beside(path, scanned_at<::scandirat, kByName, dirent>); },
     true},
    {"scandirat64, beside a descriptor",
     [](const string& path) {
       return beside(path, scanned_at<::scandirat64, kByName64, dirent64>);
     },
     true},
};

TEST(Paths, are_listed_by_each_call_alike) {
  for (const Folder& folder : kFolders) {
    const Listed first = kWaysToList[0].list(folder.path);
    ASSERT_TRUE(first.has_value()) << folder.path;
    EXPECT_TRUE(
        std::includes(first->begin(), first->end(), folder.holds.begin(), folder.holds.end()))
        << folder.path;
    const bool is_below_ours = folder.path.find("aperture0/") != string::npos;
    for (const WayToList& way : kWaysToList) {
      if (way.only_below_ours && !is_below_ours) continue;
      const Listed listed = way.list(folder.path);
      ASSERT_TRUE(listed.has_value()) << way.name << " of " << folder.path;
      EXPECT_EQ(*listed, *first) << way.name << " of " << folder.path;
    }
  }
}

TEST(Paths, that_are_no_folders_are_not_listed) {
  for (const auto& [path, error] :
       {std::pair{kDevice + "/ports/7", ENOENT}, std::pair{kDevice + "/ports/1/state", ENOTDIR}}) {
    for (const WayToList& way : kWaysToList) {
      errno = 0;
      EXPECT_FALSE(way.list(path).has_value()) << way.name << " of " << path;
      EXPECT_EQ(errno, error) << way.name << " of " << path;
    }
  }
}

// What a listing says of an entry, which is what programs choose by.
TEST(Paths, are_listed_as_what_they_are) {
  DIR* dir = ::opendir(kClass.c_str());
  ASSERT_NE(dir, nullptr);
  int types = 0;
  while (const dirent* entry = ::readdir(dir)) {
    if (string(entry->d_name) != "aperture0") continue;
    EXPECT_EQ(entry->d_type, DT_LNK);
    struct stat st;
    ASSERT_EQ(::fstatat(::dirfd(dir), entry->d_name, &st, 0), 0);
    EXPECT_TRUE(S_ISDIR(st.st_mode));
    ++types;
  }
  ::closedir(dir);
  EXPECT_EQ(types, 1);
  for (const fs::directory_entry& entry : fs::directory_iterator(kDevice + "/ports")) {
    EXPECT_TRUE(entry.is_directory());
    EXPECT_FALSE(entry.is_symlink());
  }
  EXPECT_TRUE(fs::is_symlink(kDevice));
  EXPECT_TRUE(fs::is_directory(kDevice));
  EXPECT_TRUE(fs::is_regular_file(kDevice + "/ports/1/state"));
  EXPECT_FALSE(fs::exists(kDevice + "/ports/7"));
}

// --- ways of resolving a path --------------------------------------------------------------------

// Takes what malloc() gave it.
string freed(char* found) {
  string text = found == nullptr ? "" : found;
  ::free(found);
  return text;
}

string text_of(const char* found) {
  return found == nullptr ? "" : found;
}

// As a library asks that is built apart from the program.
template <typename Function>
Function* looked_up(const char* name) {
  auto* function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  EXPECT_NE(function, nullptr) << name;
  return function;
}

struct WayToResolve {
  const char* name;
  string (*resolve)(const char* path);  // empty: it failed, and errno says why
};
const WayToResolve kWaysToResolve[] = {
    {"realpath",
     [](const char* path) {
       char room[PATH_MAX];
       return text_of(::realpath(path, room));
     }},
    {"realpath with no buffer", [](const char* path) { return freed(::realpath(path, nullptr)); }},
    {"realpath, fortified", [](const char* path) { return text_of(fortified_realpath(path)); }},
    {"__realpath_chk",
     [](const char* path) {
       char room[PATH_MAX];
       auto* call = looked_up<char*(const char*, char*, size_t)>("__realpath_chk");
       return text_of(call(path, room, sizeof room));
     }},
    {"realpath, looked up",
     [](const char* path) {
       char room[PATH_MAX];
       return text_of(looked_up<char*(const char*, char*)>("realpath")(path, room));
     }},
    {"canonicalize_file_name",
     [](const char* path) { return freed(::canonicalize_file_name(path)); }},
    {"canonical",
     [](const char* path) {
       std::error_code error;
       const string found = fs::canonical(path, error);
       errno = error.value();
       return found;
     }},
};

TEST(Paths, are_resolved_by_each_call_to_what_can_be_read_on) {
  struct Case {
    string given;
    string resolved;
    string file;  // below it
    string text;  // its first line
  };
  const Case cases[] = {
      {kClass, kClass, "/aperture0/node_type", "1: CA"},
      {kDevice, kResolved, "/node_type", "1: CA"},
      {kDevice + "/", kResolved, "/device/numa_node", "-1"},
      {kDevice + "/device", kResolved + "/device", "/numa_node", "-1"},
      {kDevice + "/../..", "/sys/devices/virtual", "/numa_node", "-1"},
      {kDevice + "/ports/1", kResolved + "/ports/1", "/state", "4: ACTIVE"},
      {kDevice + "//ports/./1/../1/", kResolved + "/ports/1", "/link_layer", "Ethernet"},
      {kDevice + "/device/infiniband/aperture0", kResolved, "/device/numa_node", "-1"},
      {"/sys/class/infiniband_verbs", "/sys/class/infiniband_verbs", "/abi_version", "6"},
      {"/sys/class/infiniband_verbs/uverbs-aperture0",
       "/sys/devices/virtual/infiniband_verbs/uverbs-aperture0", "/ibdev", "aperture0"},
      {"/sys/class/infiniband_verbs/uverbs-aperture0/device", kResolved + "/device", "/numa_node",
       "-1"},
      {kDevice + "/device/numa_node", kResolved + "/device/numa_node", "", "-1"},
  };
  for (const Case& c : cases) {
    for (const WayToResolve& way : kWaysToResolve) {
      const string found = way.resolve(c.given.c_str());
      EXPECT_EQ(found, c.resolved) << way.name << " of " << c.given;
      string line;
      std::getline(std::ifstream(found + c.file), line);
      EXPECT_EQ(line, c.text) << way.name << " of " << c.given << ", " << c.file;
    }
  }
  EXPECT_EQ(fs::weakly_canonical(kDevice + "/ports/7"), kResolved + "/ports/7");
  EXPECT_EQ(fs::read_symlink(kDevice), "../../devices/virtual/infiniband/aperture0");
}

TEST(Paths, that_lead_nowhere_are_not_resolved) {
  for (const auto& [path, error] :
       {std::pair{kDevice + "/ports/7", ENOENT}, std::pair{kDevice + "/node_type/x", ENOTDIR}}) {
    for (const WayToResolve& way : kWaysToResolve) {
      errno = 0;
      EXPECT_EQ(way.resolve(path.c_str()), "") << way.name << " of " << path;
      EXPECT_EQ(errno, error) << way.name << " of " << path;
    }
  }
}

// --- what else a fortified program calls ---------------------------------------------------------

TEST(Paths, are_found_by_fortified_programs) {
  const string file = kDevice + "/device/numa_node";
  EXPECT_STREQ(fortified_open(file.c_str(), O_RDONLY), "-1\n");
  EXPECT_STREQ(fortified_openat(AT_FDCWD, file.c_str(), O_RDONLY), "-1\n");
  for (const char* name : {"__open_2", "__open64_2"}) {
    const int fd = looked_up<int(const char*, int)>(name)(file.c_str(), O_RDONLY);
    EXPECT_GE(fd, 0) << name;
    ::close(fd);
  }
  EXPECT_STREQ(fortified_readlink(kDevice.c_str()), "../../devices/virtual/infiniband/aperture0");
  EXPECT_STREQ(fortified_readlinkat(AT_FDCWD, kDevice.c_str()),
               "../../devices/virtual/infiniband/aperture0");
  errno = 0;
  EXPECT_EQ(fortified_open(file.c_str(), O_RDWR), nullptr);
  EXPECT_EQ(errno, EACCES);
  const string here = fs::current_path();
  ASSERT_EQ(::chdir((kDevice + "/device").c_str()), 0);
  EXPECT_STREQ(fortified_getcwd(), (kResolved + "/device").c_str());
  EXPECT_EQ(fs::current_path(), kResolved + "/device");
  EXPECT_STREQ(fortified_open("numa_node", O_RDONLY), "-1\n");
  ASSERT_EQ(::chdir(here.c_str()), 0);
}

}  // namespace
}  // namespace aperture::test
