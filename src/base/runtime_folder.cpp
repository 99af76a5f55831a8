// Finding or making it: see runtime_folder.hpp.
#include "base/runtime_folder.hpp"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace aperture {

std::string runtime_folder(std::string& why_not) {
  const auto usable = [](const char* folder) {
    return folder != nullptr && *folder == '/' && ::access(folder, W_OK) == 0;
  };
  const char* base = ::getenv("XDG_RUNTIME_DIR");
  if (!usable(base)) base = ::getenv("TMPDIR");
  if (!usable(base)) base = "/tmp";
  std::string folder = std::string(base) + "/aperture-" + std::to_string(::geteuid());
  struct stat st;
  if ((::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) ||
      ::lstat(folder.c_str(), &st) != 0) {
    why_not = folder + " cannot be made: " + std::strerror(errno);
    return {};
  }
  if (!S_ISDIR(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 022) != 0) {
    why_not = folder + " belongs to somebody else, or others may write it; remove it";
    return {};
  }
  return folder;
}

}  // namespace aperture
