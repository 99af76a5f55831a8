// Writing and comparing what the answer depended on: see kept_answer.hpp.
#include "tool/kept_answer.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <functional>

#include "base/fd.hpp"

namespace aperture::tool {

namespace {

constexpr size_t kMostBytes = 16384;
constexpr int kNumbers = 6;  // of identity(), behind the path, each behind a space
constexpr const char* kHeading = "aperture: the verbs door opened, 1\n";

// Those of ld.so(8), and of the allocator and its kin under it.
bool is_ld_so_told() {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "LD_", 3) == 0 ||
        std::strncmp(*variable, "GLIBC_TUNABLES=", 15) == 0) {
      return true;
    }
  }
  return false;
}

std::string identity(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return path + " is not there\n";
  char numbers[200];
  std::snprintf(numbers, sizeof numbers, " %ju %ju %jd %jd.%09ld %jd.%09ld %d\n",
                static_cast<uintmax_t>(st.st_dev), static_cast<uintmax_t>(st.st_ino),
                static_cast<intmax_t>(st.st_size), static_cast<intmax_t>(st.st_mtim.tv_sec),
                st.st_mtim.tv_nsec, static_cast<intmax_t>(st.st_ctim.tv_sec), st.st_ctim.tv_nsec,
                ::access(path.c_str(), R_OK) == 0);
  return path + numbers;
}

// Which tree of files the paths are of: its times change with whatever is made in it.
std::string root() {
  struct stat st;
  if (::stat("/", &st) != 0) return "root unknown\n";
  return "root " + std::to_string(st.st_dev) + " " + std::to_string(st.st_ino) + "\n";
}

// What identity() was told; empty: it is not absolute, or this is no line of identity()'s.
std::string path_of(const std::string& line) {
  size_t end = line.size();
  for (int i = 0; i < kNumbers; ++i) {
    end = end == 0 ? std::string::npos : line.rfind(' ', end - 1);
    if (end == std::string::npos) return {};
  }
  return line[0] == '/' ? line.substr(0, end) : std::string();
}

std::string limits() {
  std::string out = "limits";
  for (const auto which : {RLIMIT_AS, RLIMIT_DATA, RLIMIT_STACK, RLIMIT_NOFILE}) {
    struct rlimit limit {};
    if (::getrlimit(which, &limit) != 0) limit.rlim_cur = 0;
    out += " " + std::to_string(limit.rlim_cur);
  }
  return out + "\n";
}

// Empty unless it is a file of the user's alone.
std::string read_own(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat st;
  if (!file || ::fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid() ||
      (st.st_mode & 077) != 0 || st.st_nlink != 1) {
    return {};
  }
  std::string text(kMostBytes, '\0');
  const ssize_t n = ::read(file.get(), text.data(), text.size());
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

}  // namespace

KeptAnswer::KeptAnswer(const std::string& folder, const std::string& library) {
  if (folder.empty() || library.find('\n') != std::string::npos || is_ld_so_told()) return;
  char name[40];
  std::snprintf(name, sizeof name, "/verbs-%016zx.answer", std::hash<std::string>()(library));
  file_ = folder + name;
  conditions_ = kHeading + identity("/proc/self/exe") + identity(library) +
                identity("/etc/ld.so.cache") + identity("/etc/ld.so.preload") + root() + limits();
  assert(file_.size() > folder.size() && conditions_.back() == '\n');
}

std::string KeptAnswer::written_of(const std::string& files) const {
  std::string out = conditions_;
  for (size_t at = 0; at < files.size();) {
    const size_t end = std::min(files.find('\n', at), files.size());
    out += identity(files.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::string KeptAnswer::files() const {
  if (file_.empty()) return {};
  assert(!conditions_.empty());
  const std::string text = read_own(file_);
  if (text.compare(0, conditions_.size(), conditions_) != 0) return {};
  std::string files;
  for (size_t at = conditions_.size(); at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) return {};
    const std::string file = path_of(text.substr(at, end - at));
    if (file.empty()) return {};
    files += file + "\n";
    at = end + 1;
  }
  return written_of(files) == text ? files : std::string();
}

void KeptAnswer::keep(const std::string& written) const {
  if (file_.empty() || written.size() >= kMostBytes) return;
  assert(written.compare(0, conditions_.size(), conditions_) == 0);
  // made beside it and moved over it: who starts at this moment finds one or the other whole
  const std::string fresh = file_ + "." + std::to_string(::getpid());
  (void)::unlink(fresh.c_str());  // of a process that was killed, and had our number
  const UniqueFd file(
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return;  // it is asked again then
  const ssize_t done = ::write(file.get(), written.data(), written.size());
  if (done != static_cast<ssize_t>(written.size()) || ::rename(fresh.c_str(), file_.c_str()) != 0) {
    (void)::unlink(fresh.c_str());
  }
}

void KeptAnswer::forget() const {
  if (!file_.empty()) (void)::unlink(file_.c_str());
}

}  // namespace aperture::tool
