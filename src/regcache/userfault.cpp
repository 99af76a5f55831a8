// The calls of userfaultfd(2): see userfault.hpp.
#include "regcache/userfault.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

namespace aperture::regcache {

namespace {

constexpr uint64_t kFeatures =
    UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP;
constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;

UniqueFd open_any(const char*& why) noexcept {
  // faults of the kernel are not ours to handle, so the right to do so is not asked for
  if (const UniqueFd device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC)); device) {
    UniqueFd fd(::ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags | UFFD_USER_MODE_ONLY));
    if (fd) return fd;
  }
  UniqueFd fd(static_cast<int>(::syscall(SYS_userfaultfd, kFlags | UFFD_USER_MODE_ONLY)));
  // before Linux 5.11 there was no such flag
  if (!fd && errno == EINVAL) fd = UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, kFlags)));
  if (!fd) {
    const int error = errno;
    why = error == EPERM || error == EACCES
              ? "userfaultfd(2) is not allowed here: give this user /dev/userfaultfd, or set "
                "vm.unprivileged_userfaultfd to 1 (before Linux 5.11), or allow it in the "
                "container's seccomp profile"
          : error == ENOSYS ? "this kernel has no userfaultfd(2)"
                            : "userfaultfd(2) could not be opened";
    errno = error;
  }
  return fd;
}

// Some kernels know the events, and cannot register for write protection.
bool can_watch(int fd) noexcept {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const at =
      ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return false;
  const Range range = pages_around(at, page);
  const bool can = register_range(fd, range).ok();
  if (can) unregister_range(fd, range);  // else unmapping it would wait for a reader
  ::munmap(at, page);
  return can;
}

}  // namespace

Result<UniqueFd> open_userfault(const char*& why) noexcept {
  UniqueFd fd = move_high(open_any(why));
  if (!fd) return errc_from_errno(errno);
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kFeatures;
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0 || (api.features & kFeatures) != kFeatures) {
    why = "this kernel's userfaultfd(2) does not tell what is unmapped, moved and dropped";
    return Errc::not_supported;
  }
  if (!can_watch(fd.get())) {
    why = "this kernel's userfaultfd(2) cannot register memory for write protection";
    return Errc::not_supported;
  }
  return fd;
}

Status register_range(int fd, const Range& range) noexcept {
  uffdio_register asked{};
  asked.range = {range.begin, range.size()};
  asked.mode = UFFDIO_REGISTER_MODE_WP;
  if (::ioctl(fd, UFFDIO_REGISTER, &asked) == 0) return {};
  switch (errno) {
    case EBUSY: return Errc::busy;
    case ENOMEM: return Errc::no_memory;
    case EBADF:
    case ENOTTY: return Errc::shut_down;
    default: return Errc::not_supported;
  }
}

void unregister_range(int fd, const Range& range) noexcept {
  uffdio_range asked{range.begin, range.size()};
  ::ioctl(fd, UFFDIO_UNREGISTER, &asked);
}

// Linux counts the changes that are under way, from before they take effect until they have been
// read, and refuses to fill pages meanwhile; asked to fill none, it does nothing else.
Underway ask_underway(int fd) noexcept {
  uffdio_zeropage nothing{};
  if (::ioctl(fd, UFFDIO_ZEROPAGE, &nothing) == 0) return Underway::no_more;
  if (errno == EINVAL) return Underway::none;
  return errno == EAGAIN ? Underway::some : Underway::no_more;
}

bool read_event(int fd, uffd_msg& event) noexcept {
  ssize_t n = 0;
  do {
    n = ::syscall(SYS_read, fd, &event, sizeof event);  // no cancellation point
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof event);
}

}  // namespace aperture::regcache
