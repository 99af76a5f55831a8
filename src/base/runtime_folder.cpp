// Finding or making it: see runtime_folder.hpp.
#include "base/runtime_folder.hpp"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace aperture {

namespace {

constexpr unsigned long kAllUsers = 0xffff'ffff;  // as many as the first user namespace maps

struct User {
  unsigned long number;     // as it is known outside of this user namespace
  bool in_a_namespace_too;  // not the first one
};

// Who we are out there, where the temporary folder and what is in it come from: in a namespace that
// the user has made, 0 is the user and not root. user_namespaces(7), "/proc/pid/uid_map".
User outer_user() noexcept {
  const unsigned long here = ::geteuid();
  User user{here, false};
  FILE* const map = std::fopen("/proc/self/uid_map", "re");
  if (map == nullptr) return user;
  unsigned long inside, outside, count;
  while (std::fscanf(map, "%lu %lu %lu", &inside, &outside, &count) == 3) {
    user.in_a_namespace_too = count != kAllUsers;
    if (here - inside < count) user.number = outside + (here - inside);
  }
  std::fclose(map);
  return user;
}

// Made if it is not there; false, with a sentence: it is not there, or not ours alone.
bool have_folder(const std::string& folder, std::string& why_not) {
  struct stat st;
  if ((::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) ||
      ::lstat(folder.c_str(), &st) != 0) {
    why_not = folder + " cannot be made: " + std::strerror(errno);
    return false;
  }
  if (!S_ISDIR(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 022) != 0) {
    why_not = folder + " belongs to somebody else, or others may write it; remove it";
    return false;
  }
  return true;
}

}  // namespace

std::string runtime_folder(std::string& why_not) {
  const auto usable = [](const char* folder) {
    return folder != nullptr && *folder == '/' && ::access(folder, W_OK) == 0;
  };
  const char* base = ::getenv("XDG_RUNTIME_DIR");
  if (!usable(base)) base = ::getenv("TMPDIR");
  if (!usable(base)) base = "/tmp";
  const User user = outer_user();
  std::string folder = std::string(base) + "/aperture-" + std::to_string(user.number);
  if (have_folder(folder, why_not)) return folder;
  // of a namespace within a namespace the number is not the outermost one: there may be two of it
  struct stat st;
  if (!user.in_a_namespace_too || ::stat("/proc/self/ns/user", &st) != 0) return {};
  folder += "-" + std::to_string(st.st_ino);
  if (!have_folder(folder, why_not)) return {};
  why_not.clear();
  return folder;
}

}  // namespace aperture
