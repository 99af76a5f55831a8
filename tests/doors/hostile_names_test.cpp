// Hostile input 40: a planted symlink, a name made before, a wrong owner or mode. Nothing that
// processes share has a name in the file system, so there is nothing to plant; what is left are
// names of sockets, and those are not believed (tests/nic/hostile_test.cpp, hostile_4).
#include <dirent.h>
#include <sys/stat.h>

#include <cstdlib>
#include <set>

#include "doors/mr_target.hpp"

namespace aperture::doors {
namespace {

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> out;
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return out;
  while (const dirent* entry = readdir(dir)) out.insert(entry->d_name);
  closedir(dir);
  return out;
}

// Files with a name that this process, or `pid`, has open for writing.
std::set<std::string> writable_files(const std::string& pid) {
  std::set<std::string> out;
  const std::string folder = "/proc/" + pid + "/fd/";
  for (const std::string& fd : names_in(folder)) {
    char path[4096] = {};
    struct stat link {};
    if (readlink((folder + fd).c_str(), path, sizeof path - 1) <= 0 || path[0] != '/') continue;
    if (lstat((folder + fd).c_str(), &link) != 0 || (link.st_mode & S_IWUSR) == 0) continue;
    const std::string name = path;
    if (name.starts_with("/memfd:") || name.starts_with("/dev/") || name.starts_with("/proc/")) {
      continue;
    }
    out.insert(name);
  }
  return out;
}

class Names : public mr::Regions {};
INSTANTIATE_TEST_SUITE_P(reach, Names, mr::every_reach(), mr::reach_name);

TEST_P(Names, hostile_40_nothing_that_is_shared_has_a_name_in_the_file_system) {
  char private_folder[] = "hostile_names-XXXXXX";
  ASSERT_NE(mkdtemp(private_folder), nullptr);
  const char* tmpdir = std::getenv("TMPDIR");
  const std::string old_tmpdir = tmpdir != nullptr ? tmpdir : "";
  setenv("TMPDIR", private_folder, 1);
  const std::set<std::string> files = writable_files("self");
  open(mr::options_of(FI_MR_MMU_NOTIFY));
  allowed(registered(1, {{0, 8 * mr::kPage}}), 0, 8 * mr::kPage);
  EXPECT_EQ(writable_files("self"), files);
  EXPECT_EQ(names_in(private_folder), (std::set<std::string>{".", ".."}));
  node.reset();
  target.reset();
  EXPECT_EQ(names_in(private_folder), (std::set<std::string>{".", ".."}));
  if (old_tmpdir.empty()) {
    unsetenv("TMPDIR");
  } else {
    setenv("TMPDIR", old_tmpdir.c_str(), 1);
  }
  rmdir(private_folder);
}

// Others write to /dev/shm too: only what has our name would be ours.
TEST_P(Names, hostile_40_nothing_is_left_in_dev_shm) {
  const auto ours = [] {
    std::set<std::string> out;
    for (const std::string& name : names_in("/dev/shm")) {
      if (name.find("aperture") != std::string::npos) out.insert(name);
    }
    return out;
  };
  const std::set<std::string> before = ours();
  open(mr::options_of(0));
  allowed(registered(1, {{0, mr::kPage}}), 0, mr::kPage);
  EXPECT_EQ(ours(), before);
}

}  // namespace
}  // namespace aperture::doors
