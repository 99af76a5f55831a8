// Doorbells: see doorbell.hpp.
#include "base/doorbell.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/uninterrupted.hpp"

namespace aperture {

namespace {

constexpr int kPipeBytes = 4096;  // the least that a pipe can hold

// By its name, which no file of a file system has: asking such a file could block.
bool is_pipe(const char* path) noexcept {
  char name[16] = {};
  const ssize_t n = ::readlink(path, name, sizeof name - 1);
  return n > 0 && std::strncmp(name, "pipe:[", 6) == 0;
}

}  // namespace

Result<UniqueFd> open_doorbell(int fd) noexcept {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (!is_pipe(path)) return Errc::protocol;
  UniqueFd opened = move_high(UniqueFd(::open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)));
  if (!opened) return errc_from_errno(errno);
  return opened;
}

Result<UniqueFd> make_doorbell() noexcept {
  int ends[2];
  if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) return errc_from_errno(errno);
  const UniqueFd out(ends[0]), in(ends[1]);
  // a smaller pipe is only a courtesy to the user's share of pipe memory
  (void)::fcntl(in.get(), F_SETPIPE_SZ, kPipeBytes);
  return open_doorbell(in.get());
}

void ring_doorbell(int fd) noexcept {
  if (fd < 0) return;
  const uint64_t one = 1;
  (void)uninterrupted(SYS_write, fd, &one, sizeof one);
}

bool drain_doorbell(int fd) noexcept {
  assert(fd >= 0);
  char rings[kPipeBytes];
  return uninterrupted(SYS_read, fd, rings, sizeof rings) > 0;
}

}  // namespace aperture
