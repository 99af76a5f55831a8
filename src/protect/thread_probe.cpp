// The probe that reads /proc: see thread_probe.hpp.
#include "protect/thread_probe.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/fd.hpp"

namespace aperture::protect {

namespace {

constexpr unsigned long kExiting = 0x4;  // PF_EXITING, include/linux/sched.h

struct ThreadStat {
  char state = 0;
  unsigned long flags = 0;  // field 9
  uint64_t threads = 0;     // field 20: of its process, those included that are ending
  uint64_t start_time = 0;  // field 22
};

// False with errno set when there is nothing to read, or nothing that makes sense (errno 0).
bool read_stat(pid_t pid, pid_t tid, ThreadStat& out) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  char text[1024];
  const ssize_t n = ::read(fd.get(), text, sizeof text - 1);
  if (n <= 0) return false;
  text[n] = '\0';
  errno = 0;
  // the command name may hold anything, also ")": the fields begin after the last one
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ') return false;
  out.state = at[2];
  at += 3;
  for (int field = 4; field <= 22; ++field) {
    if (*at != ' ') return false;
    char* end = nullptr;
    const unsigned long long value = std::strtoull(at + 1, &end, 10);
    if (end == at + 1) return false;
    if (field == 9) out.flags = static_cast<unsigned long>(value);
    if (field == 20) out.threads = value;
    if (field == 22) out.start_time = value;
    at = end;
  }
  return true;
}

bool is_gone(pid_t pid, pid_t tid) noexcept {
  return ::syscall(SYS_tgkill, pid, tid, 0) != 0 && errno == ESRCH;
}

}  // namespace

ThreadState ProcThreadProbe::look(pid_t pid, pid_t tid, uint64_t start_time) noexcept {
  // the peer says it: no thread has such a number, and tgkill(2) would call it an invalid argument
  if (tid <= 0) return ThreadState::gone;
  // Who is gone is not looked for in /proc: the kernel would first drop there all that it remembers
  // of the process, which took it up to 350 ms of processor time where several did so at once.
  if (is_gone(pid, tid)) return ThreadState::gone;
  ThreadStat stat;
  // an unmounted or hidden /proc also reads as "no such file": the kernel has the last word
  if (!read_stat(pid, tid, stat))
    return is_gone(pid, tid) ? ThreadState::gone : ThreadState::running;
  if (stat.start_time != start_time) return ThreadState::gone;
  if ((stat.flags & kExiting) != 0) return ThreadState::gone;
  if (stat.state == 'Z' || stat.state == 'X' || stat.state == 'x') return ThreadState::gone;
  if (stat.state == 'T' || stat.state == 't') return ThreadState::stopped;
  return ThreadState::running;
}

bool ProcThreadProbe::is_over(pid_t pid, uint64_t start_time) noexcept {
  if (pid <= 0 || is_gone(pid, pid)) return true;
  ThreadStat stat;
  if (!read_stat(pid, pid, stat)) return is_gone(pid, pid);
  if (stat.start_time > start_time) return true;  // the number is another process's by now
  return (stat.state == 'Z' || stat.state == 'X' || stat.state == 'x') && stat.threads <= 1;
}

uint64_t thread_start_time(pid_t pid, pid_t tid) noexcept {
  ThreadStat stat;
  return read_stat(pid, tid, stat) ? stat.start_time : 0;
}

}  // namespace aperture::protect
