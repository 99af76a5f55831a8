// Reading who this process is: see identity.hpp.
#include "nic/identity.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/barrier.hpp"
#include "base/fd.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "base/settings.hpp"
#include "protect/thread_probe.hpp"

namespace aperture::nic {

namespace {

uint64_t inode_of(const char* path) noexcept {
  struct stat st;
  return ::stat(path, &st) == 0 ? st.st_ino : 0;
}

// What /proc/self/uid_map says where every user has a number: the first namespace.
constexpr uint64_t kAllUsers = 0xffff'ffff;

bool read_number(const char* path, const char* format, uint64_t& number) noexcept {
  FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  const bool found = std::fscanf(file, format, &number) == 1;
  std::fclose(file);
  return found;
}

DirectWish read_wish() noexcept {
  if (setting_is("APERTURE_CMA", "deny")) return DirectWish::deny;
  return setting_is("APERTURE_CMA", "allow") ? DirectWish::allow : DirectWish::if_possible;
}

void carry_out(DirectWish wish) noexcept {
  if (wish == DirectWish::deny) {
    APERTURE_INFO(
        "APERTURE_CMA=deny: no one-sided copies between processes; the owner of the memory copies");
  }
#ifdef PR_SET_PTRACER
  // EINVAL where there is no Yama: nothing to allow then
  if (wish == DirectWish::allow) {
    ::prctl(PR_SET_PTRACER, reinterpret_cast<void*>(PR_SET_PTRACER_ANY), 0, 0, 0);
  }
#endif
}

}  // namespace

// "1ede3d9b-cac5-46ff-8a6f-0aea04edb558" as bytes.
Result<wire::Id128> read_boot_id() noexcept {
  const UniqueFd fd(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (!fd) return Errc::io;
  wire::Id128 id{};
  char text[64];
  const ssize_t n = ::read(fd.get(), text, sizeof text);
  size_t digits = 0;
  for (ssize_t i = 0; i < n && digits < 32; ++i) {
    const char c = text[i];
    const int v = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (v < 0) continue;
    id[digits / 2] = static_cast<uint8_t>(id[digits / 2] << 4 | v);
    ++digits;
  }
  if (digits != 32) return Errc::io;
  return id;
}

uint64_t read_net_ns() noexcept {
  return inode_of("/proc/self/ns/net");
}

// In a user namespace, whoever has no number there is told to be the overflow user, 65534: we, a
// stranger, or both.
bool Identity::may_be_anybody(uid_t its_uid) noexcept {
  uint64_t users = 0;
  uint64_t overflow = 0;
  if (read_number("/proc/self/uid_map", "%*u %*u %" SCNu64, users) && users == kAllUsers) {
    return false;
  }
  return !read_number("/proc/sys/kernel/overflowuid", "%" SCNu64, overflow) || overflow == its_uid;
}

Identity Identity::read_user() noexcept {
  Identity id;
  id.user_ns = inode_of("/proc/self/ns/user");
  id.uid = ::geteuid();
  id.uid_is_ours = !may_be_anybody(id.uid);
  return id;
}

Result<Identity> Identity::read() noexcept {
  Identity id = read_user();
  Result<wire::Id128> boot = read_boot_id();
  if (!boot) return Errc::io;
  id.boot_id = *boot;
  random_bytes(id.incarnation.data(), id.incarnation.size());
  id.net_ns = read_net_ns();
  id.pid_ns = inode_of("/proc/self/ns/pid");
  id.time_ns = inode_of("/proc/self/ns/time");
  if (id.net_ns == 0 || id.pid_ns == 0) return Errc::io;
  id.pid = ::getpid();
  id.start_time = protect::thread_start_time(id.pid, id.pid);
  id.heavy_barriers = register_for_heavy_barriers();
  id.direct = read_wish();
  id.streams_only = setting_is("APERTURE_LINK", "tcp");
  carry_out(id.direct);
  return id;
}

bool Identity::same_user(pid_t there, uid_t its_uid) const noexcept {
  if (its_uid != uid) return false;
  if (uid_is_ours) return true;
  // the kernel tells the namespaces of a process only to who might debug it, by its true ids
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/ns/user", there);
  return there > 0 && user_ns != 0 && inode_of(path) == user_ns;
}

}  // namespace aperture::nic
