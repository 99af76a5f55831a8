// process_vm_readv and process_vm_writev for programs under qemu-user, which has neither call: by
// /proc/PID/mem, where a guest's addresses are those of its emulator. It is linked into the tests
// of the preset aarch64 and stands before the C library's.
//
// What differs from process_vm_readv(2): memory that is mapped but may not be touched is touched.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace {

// Copies until the first byte that is not there; -1 if that is the very first.
template <class Io>
ssize_t copy(pid_t pid, const iovec* local, unsigned long locals, const iovec* remote,
             unsigned long remotes, int mode, Io io) {
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "/proc/%d/mem", static_cast<int>(pid));
  const int fd = ::open(name.data(), mode | O_CLOEXEC);
  if (fd < 0) {
    errno = errno == ENOENT ? ESRCH : EPERM;
    return -1;
  }
  ssize_t total = 0;
  bool missing = false;
  size_t in_local = 0;
  unsigned long l = 0;
  for (unsigned long r = 0; r < remotes && !missing; ++r) {
    const iovec there = remote[r];  // once: the owner may shorten it
    for (size_t done = 0; done < there.iov_len && l < locals && !missing;) {
      const size_t n = std::min(there.iov_len - done, local[l].iov_len - in_local);
      const auto at = static_cast<off_t>(reinterpret_cast<uintptr_t>(there.iov_base) + done);
      const ssize_t moved = io(fd, static_cast<char*>(local[l].iov_base) + in_local, n, at);
      missing = n != 0 && moved != static_cast<ssize_t>(n);
      if (moved > 0) total += moved;
      done += n;
      in_local += n;
      if (in_local == local[l].iov_len) {
        ++l;
        in_local = 0;
      }
    }
  }
  ::close(fd);
  if (missing && total == 0) {
    errno = EFAULT;
    return -1;
  }
  return total;
}

}  // namespace

extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals,
                                    const iovec* remote, unsigned long remotes,
                                    unsigned long) noexcept {
  return copy(pid, local, locals, remote, remotes, O_RDONLY, ::pread);
}

extern "C" ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long locals,
                                     const iovec* remote, unsigned long remotes,
                                     unsigned long) noexcept {
  return copy(pid, local, locals, remote, remotes, O_RDWR, ::pwrite);
}
