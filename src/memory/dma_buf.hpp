// Memory behind a dma-buf: a descriptor for memory of some device, which its exporter lets others
// reach. ibv_reg_dmabuf_mr(3).
//
// A NIC has the exporter place the memory for it. Here the CPU copies, through a mapping that the
// exporter makes (udmabuf, the dma-buf heaps and graphics drivers with CPU-visible memory do), and
// tells it before and after each copy (DMA_BUF_IOCTL_SYNC), so that caches are in order. What it
// cannot map is refused. Any thread; no state but the mapping's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "memory/driver.hpp"

namespace aperture::memory {

struct DmaBufRange {
  std::shared_ptr<const Registration> registration;
  std::byte* at = nullptr;  // what its copies call the first byte
};

// `len` > 0 bytes of it, from `offset` on; `fd` may be closed afterwards. Errors, with `why` in
// static storage: invalid (no descriptor of a dma-buf, or not that long), access_denied (the
// descriptor is not open for writing, as for_writing asks), not_supported (its exporter maps it for
// nobody), no_memory, no_fds.
Result<DmaBufRange> map_dma_buf(int fd, uint64_t offset, size_t len, bool for_writing,
                                const char*& why) noexcept;

}  // namespace aperture::memory
