// Facts on the kernel, the processors and the limits. Mechanisms are tried; each restriction names
// its cause. Sources: process_vm_readv(2), ptrace(2) on Yama, userfaultfd(2), membarrier(2).
#include <fcntl.h>
#include <linux/membarrier.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/fd.hpp"
#include "base/settings.hpp"
#include "tool/host.hpp"
#include "tool/sibling_read.hpp"

namespace aperture::tool {

namespace {

std::optional<int> read_number(const char* path) {
  std::ifstream file(path);
  int value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::string in_mib(uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

Fact kernel_fact() {
  Fact fact("kernel", "kernel");
  utsname names{};
  ::uname(&names);
  fact.text = std::string(names.sysname) + " " + names.release + ", " + names.machine;
  fact.details["release"] = names.release;
  fact.details["machine"] = names.machine;
  return fact;
}

Fact cpu_fact() {
  Fact fact("cpus", "processors");
  cpu_set_t mine;
  CPU_ZERO(&mine);
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  const long usable = ::sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : online;
  fact.text = std::to_string(usable) + " usable of " + std::to_string(online) + " online";
  if (usable < 2) fact.text += "; two polling processes will share one, which is slow";
  fact.details["usable"] = usable;
  fact.details["online"] = online;
  return fact;
}

// Why there are no copies between siblings, and what would bring them. ptrace(2), on Yama.
struct Obstacle {
  std::string reason;
  std::string remedy;  // empty: there is none that we know
};

Obstacle yamas_obstacle(int scope) {
  const std::string is = "Yama's ptrace_scope is " + std::to_string(scope);
  switch (scope) {
    case 1:
      return {is + ": a process may read its descendants, not its siblings",
              "set APERTURE_CMA=allow for all of them, or as root: sysctl "
              "kernel.yama.ptrace_scope=0"};
    case 2:
      return {is + ": only root's processes may read others",
              "run them as root, or as root: sysctl kernel.yama.ptrace_scope=0"};
    default:
      return {is + ": no process may read another, root's neither",
              "only a reboot changes ptrace_scope once it is 3; then leave it at 0 or 1"};
  }
}

Obstacle obstacle_to_cma(int error, int yama, bool allowed) {
  if (error == ENOSYS) {
    return {"this kernel, or the sandbox that plays it, has no process_vm_readv", ""};
  }
  if (yama >= 2 || (yama == 1 && !allowed)) return yamas_obstacle(yama);
  if (error == EPERM || error == EACCES) {
    return {"process_vm_readv is refused (seccomp filter, or processes not dumpable)", ""};
  }
  return {std::string("process_vm_readv: ") + std::strerror(error), ""};
}

}  // namespace

Fact cma_fact(int error, std::optional<int> yama, bool allowed) {
  Fact fact("cma", "CMA");
  fact.details["yama_ptrace_scope"] =
      yama ? nlohmann::ordered_json(*yama) : nlohmann::ordered_json();
  fact.details["errno"] = error;
  fact.state = error == 0 ? Fact::State::yes : Fact::State::no;
  if (error == 0) {
    fact.text = "processes of one user may copy from each other's memory directly";
    if (allowed && yama.value_or(0) == 1) fact.text += ", where APERTURE_CMA=allow is set as here";
    return fact;
  }
  const Obstacle obstacle = obstacle_to_cma(error, yama.value_or(0), allowed);
  fact.text = "not between sibling processes; every copy is made by the owner of the memory";
  fact.why_not = obstacle.reason;
  fact.gain = "one-sided transfers to a busy peer would need none of its time";
  if (!obstacle.remedy.empty()) fact.gain += " (" + obstacle.remedy + ")";
  return fact;
}

namespace {

Fact tried_cma_fact() {
  const bool allowed = setting_is("APERTURE_CMA", "allow");
  return cma_fact(try_sibling_read(allowed), read_number("/proc/sys/kernel/yama/ptrace_scope"),
                  allowed);
}

Fact memfd_fact() {
  Fact fact("memfd", "memfd");
  auto made = make_sealed_memfd("aperture-info", 4096);
  fact.state = made.ok() ? Fact::State::yes : Fact::State::no;
  fact.text = made.ok() ? "sealed memory files work; nothing is ever named in /dev/shm"
                        : "no sealed memory files";
  if (!made.ok()) {
    fact.why_not = std::string("memfd_create: ") + describe(made.error());
    if (made.error() == Errc::no_sys) {
      fact.why_not = "this kernel, or the sandbox that plays it, has no memfd_create";
    }
    fact.gain = "shared memory between processes, without which there is no Aperture";
  }
  return fact;
}

Fact userfaultfd_fact() {
  Fact fact("userfaultfd", "userfaultfd");
  const std::optional<int> unprivileged = read_number("/proc/sys/vm/unprivileged_userfaultfd");
  const bool node = ::access("/dev/userfaultfd", R_OK | W_OK) == 0;
  const UniqueFd full(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)));
  const int error = full ? 0 : errno;
  const UniqueFd user(
      static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
  fact.details["device_node"] = node;
  fact.details["syscall"] = static_cast<bool>(full);
  fact.details["syscall_user_mode_only"] = static_cast<bool>(user);
  fact.details["unprivileged"] =
      unprivileged ? nlohmann::ordered_json(*unprivileged) : nlohmann::ordered_json();
  fact.state = full || node || user ? Fact::State::yes : Fact::State::no;
  if (fact.state == Fact::State::yes) {
    fact.text = full ? "by system call" : node ? "through /dev/userfaultfd" : "for user mode";
    return fact;
  }
  fact.text = "not allowed";
  fact.why_not = std::string("userfaultfd: ") + std::strerror(error) +
                 ", and /dev/userfaultfd is missing or not ours to open";
  fact.gain =
      "a registration cache (APERTURE_MR_MODE=local_cache) could keep what it has made; with "
      "FI_MR_CACHE_MONITOR=memhooks it can anyway";
  return fact;
}

Fact membarrier_fact() {
  Fact fact("membarrier", "membarrier");
  const long commands = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  const bool there = commands > 0 && (commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0;
  fact.state = there ? Fact::State::yes : Fact::State::no;
  fact.text = there ? "no fence is paid per message" : "each message pays a full fence";
  if (!there) {
    fact.why_not = commands < 0 ? std::string("membarrier: ") + std::strerror(errno)
                                : std::string("the kernel has no GLOBAL_EXPEDITED membarrier");
    fact.gain = "several times as many small messages a second";
  }
  return fact;
}

Fact limit_fact(const char* key, const char* label, __rlimit_resource resource, bool bytes) {
  Fact fact(key, label);
  rlimit limit{};
  ::getrlimit(resource, &limit);
  const auto put = [&](const char* name, rlim_t value) {
    fact.details[name] =
        value == RLIM_INFINITY ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
    if (value == RLIM_INFINITY) return std::string("unlimited");
    return bytes ? in_mib(value) : std::to_string(value);
  };
  const std::string soft = put("soft", limit.rlim_cur);
  const std::string hard = put("hard", limit.rlim_max);
  fact.text = soft == hard ? soft : soft + ", may be raised to " + hard;
  return fact;
}

Fact dev_shm_fact() {
  Fact fact("dev_shm", "/dev/shm");
  struct statvfs fs {};
  const bool there = ::statvfs("/dev/shm", &fs) == 0;
  const uint64_t size = there ? uint64_t{fs.f_blocks} * fs.f_frsize : 0;
  const uint64_t free = there ? uint64_t{fs.f_bavail} * fs.f_frsize : 0;
  fact.details["size_bytes"] = size;
  fact.details["free_bytes"] = free;
  fact.text = (there ? in_mib(free) + " free of " + in_mib(size) : std::string("missing")) +
              "; Aperture puts nothing there, MPI libraries may";
  return fact;
}

}  // namespace

std::vector<Fact> host_facts() {
  Fact locked = limit_fact("locked_memory", "locked memory", RLIMIT_MEMLOCK, true);
  locked.text += "; registering memory does not lock it here, so this is no limit on it";
  return {kernel_fact(),
          cpu_fact(),
          tried_cma_fact(),
          memfd_fact(),
          membarrier_fact(),
          userfaultfd_fact(),
          locked,
          limit_fact("open_files", "open files", RLIMIT_NOFILE, false),
          dev_shm_fact()};
}

}  // namespace aperture::tool
