// Removal of a dead side's files from /dev/shm.
#include "stopwatch/leftovers.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cstring>
#include <string>

namespace aperture::bench {

namespace {

// The number stands alone: pid 12 is not in "fi_shm://123:0".
bool holds_number(const char* name, const std::string& number) noexcept {
  for (const char* at = std::strstr(name, number.c_str()); at != nullptr;
       at = std::strstr(at + 1, number.c_str())) {
    const bool starts = at == name || std::isdigit(static_cast<unsigned char>(at[-1])) == 0;
    const char after = at[number.size()];
    if (starts && std::isdigit(static_cast<unsigned char>(after)) == 0) return true;
  }
  return false;
}

}  // namespace

void remove_leftovers(pid_t pid) noexcept {
  DIR* dir = ::opendir("/dev/shm");
  if (dir == nullptr) return;
  const std::string number = std::to_string(pid);
  const int at = ::dirfd(dir);
  while (const dirent* entry = ::readdir(dir)) {
    struct stat st;
    if (!holds_number(entry->d_name, number)) continue;
    if (::fstatat(at, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(st.st_mode) && st.st_uid == ::geteuid()) ::unlinkat(at, entry->d_name, 0);
  }
  ::closedir(dir);
}

}  // namespace aperture::bench
