// Descriptors and mappings: see fd.hpp.
#include "base/fd.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>

#include "base/log.hpp"

namespace aperture {

void UniqueFd::reset() noexcept {
  if (fd_ < 0) return;
  const int saved = errno;
  ::close(fd_);
  errno = saved;
  fd_ = -1;
}

UniqueFd move_high(UniqueFd fd) noexcept {
  constexpr int kLowest = 512;
  if (!fd || fd.get() >= kLowest) return fd;
  const int high = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, kLowest);
  if (high < 0) return fd;  // a low RLIMIT_NOFILE: the low number must do
  return UniqueFd(high);
}

namespace {

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

// A file that outgrows RLIMIT_FSIZE ends the process with SIGXFSZ, also one that is memory.
bool may_have_size(size_t size_bytes) noexcept {
  rlimit limit;
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || size_bytes <= limit.rlim_cur) return true;
  APERTURE_WARN(
      "shared memory of %zu KiB cannot be made: this process may only make files of %llu KiB "
      "(ulimit -f); raise that limit",
      size_bytes >> 10, static_cast<unsigned long long>(limit.rlim_cur >> 10));
  return false;
}

Result<UniqueFd> make_memfd(const char* debug_name, size_t size_bytes) noexcept {
  if (!may_have_size(size_bytes)) return Errc::no_memory;
  // vm.memfd_noexec = 2 (Linux 6.3 and later) refuses files that could be executed; older kernels
  // refuse the flag that says so
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(debug_name, kFlags | MFD_NOEXEC_SEAL));
  if (!fd && errno == EINVAL) fd = UniqueFd(::memfd_create(debug_name, kFlags));
  if (!fd && errno == ENOSYS)
    return refuse(
        Errc::no_sys,
        "there is no memfd_create (ENOSYS): this kernel, or the sandbox that plays it, is "
        "without it, and nothing else here shares memory; run outside of that sandbox, "
        "or let its filter pass the call");
  if (!fd) return errc_from_errno(errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0) return errc_from_errno(errno);
  return move_high(std::move(fd));
}

}  // namespace

Result<UniqueFd> make_sealed_memfd(const char* debug_name, size_t size_bytes) noexcept {
  Result<UniqueFd> fd = make_memfd(debug_name, size_bytes);
  if (!fd) return fd;
  if (::fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return errc_from_errno(errno);
  }
  return fd;
}

Result<PublishedFile> make_published_memfd(const char* debug_name, size_t size_bytes) noexcept {
  Result<UniqueFd> fd = make_memfd(debug_name, size_bytes);
  if (!fd) return fd.error();
  Result<Mapping> mapping = Mapping::map_shared(fd->get(), size_bytes, Mapping::Access::read_write);
  if (!mapping) return mapping.error();
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (::fcntl(fd->get(), F_ADD_SEALS, kSeals) != 0) {
    return errno == EINVAL ? Errc::not_supported : errc_from_errno(errno);
  }
  return PublishedFile{std::move(*fd), std::move(*mapping)};
}

bool is_sealed_and_at_least(int fd, size_t size_bytes) noexcept {
  // first of all: what is sealed cannot shrink after the look at its size; and what has no seals
  // may be a file of a file system that its sender serves, which would be asked, and waited for
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return false;
  // a file of huge pages can be sealed too, but touching its holes may still be SIGBUS
  struct statfs fs;
  if (::fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC) return false;
  struct stat st;
  if (::fstat(fd, &st) != 0 || st.st_size < 0) return false;
  return static_cast<size_t>(st.st_size) >= size_bytes;
}

Status allocate_pages(int fd, size_t offset, size_t len) noexcept {
  for (;;) {
    if (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(len)) == 0) return {};
    if (errno != EINTR) return errc_from_errno(errno);
  }
}

namespace {

// A forked child has nothing there, as far as the kernel knows how; or there is no mapping.
Status keep_from_children(void* base, size_t size_bytes) noexcept {
  if (::madvise(base, size_bytes, MADV_DONTFORK) == 0 || errno == EINVAL) return {};
  // cut out of a neighbour's, it would be one mapping too many
  const Errc why = errc_from_errno(errno);
  ::munmap(base, size_bytes);
  return why;
}

}  // namespace

Result<Mapping> Mapping::map_shared(int fd, size_t size_bytes, Access access) noexcept {
  const int prot = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* base = ::mmap(nullptr, size_bytes, prot, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return errc_from_errno(errno);
  if (const Status s = keep_from_children(base, size_bytes); !s) return s.error();
  Mapping m;
  m.base_ = base;
  m.size_ = size_bytes;
  return m;
}

Result<Mapping> Mapping::map_anonymous(size_t size_bytes) noexcept {
  void* base =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return errc_from_errno(errno);
  if (const Status s = keep_from_children(base, size_bytes); !s) return s.error();
  Mapping m;
  m.base_ = base;
  m.size_ = size_bytes;
  return m;
}

void Mapping::reset() noexcept {
  if (base_ == nullptr) return;
  assert(size_ != 0);
  [[maybe_unused]] const int rc = ::munmap(base_, size_);
  assert(rc == 0);
  base_ = nullptr;
  size_ = 0;
}

}  // namespace aperture
