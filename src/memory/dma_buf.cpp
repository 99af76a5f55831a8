// Mapping a dma-buf, and copying through that: see dma_buf.hpp. The kernel's rules are in its
// Documentation/driver-api/dma-buf.rst ("CPU Access to DMA Buffer Objects").
#include "memory/dma_buf.hpp"

#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <utility>

#include "base/fd.hpp"
#include "base/guarded_copy.hpp"
#include "base/no_throw.hpp"

namespace aperture::memory {

namespace {

constexpr decltype(statfs::f_type) kDmaBufMagic = 0x444d4142;  // linux/magic.h has it since 5.3

class DmaBuf final : public Registration {
 public:
  // The mapping is its own from now on.
  DmaBuf(UniqueFd fd, void* mapped, size_t mapped_len, std::byte* at, size_t len) noexcept
      : Registration(at, len), fd_(std::move(fd)), mapped_(mapped), mapped_len_(mapped_len) {
    assert(fd_ && at + len <= static_cast<std::byte*>(mapped) + mapped_len);
  }
  ~DmaBuf() override { ::munmap(mapped_, mapped_len_); }

  Kind kind() const noexcept override { return Kind::dma_buf; }

 private:
  bool put(std::byte* at, const void* from, size_t n) const noexcept override {
    return between(DMA_BUF_SYNC_WRITE, [&] { return guarded_copy(at, from, n); });
  }
  bool get(void* to, const std::byte* at, size_t n) const noexcept override {
    return between(DMA_BUF_SYNC_READ, [&] { return guarded_copy(to, at, n); });
  }

  template <typename Copy>
  bool between(uint64_t direction, Copy&& copy) const noexcept {
    if (!sync(DMA_BUF_SYNC_START | direction)) return false;
    const bool copied = copy();
    return sync(DMA_BUF_SYNC_END | direction) && copied;
  }
  bool sync(uint64_t flags) const noexcept {
    const dma_buf_sync asked{flags};
    int rc;
    do {
      rc = ::ioctl(fd_.get(), DMA_BUF_IOCTL_SYNC, &asked);
    } while (rc != 0 && (errno == EINTR || errno == EAGAIN));
    return rc == 0;
  }

  const UniqueFd fd_;
  void* const mapped_;
  const size_t mapped_len_;
};

Errc mapping_error(int error, const char*& why) noexcept {
  switch (error) {
    case EACCES:
      why = "the descriptor is not open for what the access flags ask for";
      return Errc::access_denied;
    case ENOMEM: why = "there is no memory left to map it"; return Errc::no_memory;
    default:
      why = "its exporter maps it for no CPU, and a software NIC has nothing else to reach it by";
      return Errc::not_supported;
  }
}

}  // namespace

Result<DmaBufRange> map_dma_buf(int fd, uint64_t offset, size_t len, bool for_writing,
                                const char*& why) noexcept {
  assert(len != 0);
  struct statfs facts {};
  why = "the descriptor is none of a dma-buf";
  if (::fstatfs(fd, &facts) != 0 || facts.f_type != kDmaBufMagic) return Errc::invalid;
  why = "the dma-buf is not that long";
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0 || offset > static_cast<uint64_t>(size) ||
      len > static_cast<uint64_t>(size) - offset) {
    return Errc::invalid;
  }
  why = "there are no descriptors left";
  UniqueFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) return errc_from_errno(errno);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t lead = offset % page;
  const size_t mapped_len = len + lead;
  void* const mapped = ::mmap(nullptr, mapped_len, for_writing ? PROT_READ | PROT_WRITE : PROT_READ,
                              MAP_SHARED, own.get(), static_cast<off_t>(offset - lead));
  if (mapped == MAP_FAILED) return mapping_error(errno, why);
  auto* const at = static_cast<std::byte*>(mapped) + lead;
  DmaBufRange range{nullptr, at};
  const Status made = no_throw([&] {
    range.registration = std::make_shared<DmaBuf>(std::move(own), mapped, mapped_len, at, len);
  });
  if (made) return range;
  ::munmap(mapped, mapped_len);
  why = "there is no memory left to keep account of it";
  return Errc::no_memory;
}

}  // namespace aperture::memory
