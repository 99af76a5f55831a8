// Reading a process's stat file: see liveness.hpp.
#include "nic/liveness.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace aperture::nic {

namespace {

constexpr unsigned long kPfExiting = 0x4;

enum class Read { fields, gone, silent };

struct StatFields {
  unsigned long flags = 0;
  uint64_t start_time = 0;
};

// Field 9 and field 22; the name in field 2 may hold anything, so count from its last bracket.
Read read_stat(int fd, StatFields& out) noexcept {
  char text[1024];
  ssize_t n;
  do {
    n = ::pread(fd, text, sizeof text - 1, 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno == ESRCH ? Read::gone : Read::silent;
  if (n == 0) return Read::gone;
  text[n] = '\0';
  const char* p = std::strrchr(text, ')');
  if (p == nullptr) return Read::silent;
  ++p;  // now before field 3
  for (int field = 3; field <= 22; ++field) {
    while (*p == ' ') ++p;
    if (*p == '\0') return Read::silent;
    if (field == 9) out.flags = std::strtoul(p, nullptr, 10);
    if (field == 22) out.start_time = std::strtoull(p, nullptr, 10);
    while (*p != ' ' && *p != '\0') ++p;
  }
  return Read::fields;
}

}  // namespace

Liveness::Liveness(pid_t pid, uint64_t start_time) noexcept : pid_(pid) {
  if (pid <= 0) return;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
  stat_ = move_high(UniqueFd(::open(path, O_RDONLY | O_CLOEXEC)));
  StatFields fields;
  if (!stat_ || read_stat(stat_.get(), fields) != Read::fields) return;
  never_lived_ = start_time != 0 && fields.start_time != start_time;
}

bool Liveness::alive() const noexcept {
  assert(stat_ || !never_lived_);  // only its file has told that
  if (never_lived_) return false;
  if (!stat_) return true;
  StatFields fields;
  switch (read_stat(stat_.get(), fields)) {
    case Read::gone: return false;
    case Read::silent: return true;
    case Read::fields: break;
  }
  if ((fields.flags & kPfExiting) == 0) return true;
  // a main thread may leave (pthread_exit) while the others go on
  return other_threads_live();
}

bool Liveness::other_threads_live() const noexcept {
  assert(stat_ && pid_ > 0);
  // who has gone meanwhile is not looked for in /proc: see ProcThreadProbe::look()
  if (::kill(pid_, 0) != 0 && errno == ESRCH) return false;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task", pid_);
  DIR* tasks = ::opendir(path);
  if (tasks == nullptr) return false;
  bool live = false;
  while (const dirent* entry = ::readdir(tasks)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    char file[64];
    std::snprintf(file, sizeof file, "/proc/%d/task/%.12s/stat", pid_, entry->d_name);
    const UniqueFd fd(::open(file, O_RDONLY | O_CLOEXEC));
    StatFields fields;
    if (!fd || read_stat(fd.get(), fields) != Read::fields) continue;
    if ((fields.flags & kPfExiting) == 0) live = true;
    if (live) break;
  }
  ::closedir(tasks);
  return live;
}

}  // namespace aperture::nic
