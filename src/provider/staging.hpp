// Host memory that stands in for the device memory of one operation: what goes out is copied into
// it before the operation is posted, and what came is copied back when that is over. man 3 fi_mr,
// "FI_MR_HMEM".
//
// The queue pairs copy local buffers with the CPU and by system calls, and neither reaches a
// device. (What peers reach of a device's memory needs none of this: its owner copies through the
// Grant.) One operation's; guarded as its Work is.
#pragma once

#include <sys/uio.h>

#include <array>
#include <memory>
#include <vector>

#include "base/errc.hpp"
#include "provider/staging_memory.hpp"

namespace aperture::provider {

// Where a buffer of a call lies; null: in the host's memory.
using InDevice = std::shared_ptr<const memory::Registration>;

class Staging {
 public:
  // The memory outlives it.
  explicit Staging(StagingMemory& from) noexcept : from_(from) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  enum class Way : uint8_t { out, back };
  // The piece is in a device: the iovec, which stays where it is, will name host memory instead.
  // `offset`: of the piece in its message. Errors by exception std::bad_alloc.
  void add(InDevice device, iovec& piece, uint64_t offset, Way way);
  // Once, after the last piece: takes the memory, and fills it with what goes out. Errors:
  // no_memory, bad_buffer (the driver did not copy).
  Status begin() noexcept;
  // The first `len` bytes of what came go to the device. False: its driver did not copy.
  bool bring_back(uint64_t len) const noexcept;

 private:
  struct Piece {
    InDevice device;
    std::byte* at;  // in the device
    std::byte* host;
    uint64_t size;
    uint64_t offset;
    iovec* named;
    Way way;
  };

  StagingMemory& from_;
  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
  memory::Driver* driver_ = nullptr;  // whose the memory is
  std::byte* memory_ = nullptr;
};

}  // namespace aperture::provider
