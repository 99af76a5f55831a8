// Host memory that stands in for the device memory of one operation: what goes out is copied into
// it, and what came is copied back. man 3 fi_mr, "FI_MR_HMEM".
//
// The queue pairs copy local buffers with the CPU and by system calls, and neither reaches a
// device. (What peers reach of a device's memory needs none of this: its owner copies through the
// Grant.) What is longer than kAtOnceBytes is copied in chunks, two at a time, which the driver
// goes on with by itself: out of the device while the first of them are sent already, and into it
// while the rest is still on its way. Nothing here waits for a driver but begin() with what is
// short, bring_back() and stop(). One operation's; guarded as its Work is.
#pragma once

#include <sys/uio.h>

#include <array>
#include <memory>
#include <vector>

#include "base/errc.hpp"
#include "provider/staging_memory.hpp"
#include "qp/work_request.hpp"

namespace aperture::provider {

// Where a buffer of a call lies; null: in the host's memory.
using InDevice = std::shared_ptr<const memory::Registration>;

class Staging {
 public:
  // Shorter than what a driver takes for two chunks: by one copy, which its caller waits for.
  static constexpr uint64_t kAtOnceBytes = 256 * 1024;
  // Long enough that what a driver takes for each copy is little of it.
  static constexpr uint64_t kChunkBytes = 512 * 1024;

  // The memory outlives it.
  explicit Staging(StagingMemory& from) noexcept : from_(from) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  enum class Way : uint8_t { out, back };
  // The piece is in a device: the iovec, which stays where it is, will name host memory instead.
  // `offset`: of the piece in its message. Errors by exception std::bad_alloc.
  void add(InDevice device, iovec& piece, uint64_t offset, Way way);
  // Once, after the last piece: takes the memory, and fills it with what goes out. `piecewise`:
  // what is long is only begun, and filled() says how far it is. Errors: no_memory, bad_buffer (the
  // driver did not copy).
  Status begin(bool piecewise) noexcept;

  // Of what goes out: how many bytes of the message are there.
  qp::Told::Filled filled() const noexcept;
  // Of what comes: so many bytes of the message are there, and more with each call; whether that is
  // all that comes. It begins to go back.
  void note_arrived(uint64_t through, bool is_all) noexcept;
  // Looks at the copies that are under way, and begins the next.
  void go_on() noexcept;
  // There are copies to look at, or to begin.
  bool has_more() noexcept { return under_way_ != 0 || (!failed_ && !stopped_ && next() != 0); }
  // Whether any of it is for what comes.
  bool brings_back() const noexcept { return brings_back_; }
  // All that came is in the device, or will never be.
  bool is_over() const noexcept;
  bool has_failed() const noexcept { return failed_; }
  // Few bytes came, and nothing is under way: copies them at once. False: the driver did not.
  bool is_short(uint64_t len) const noexcept { return under_way_ == 0 && len <= kAtOnceBytes; }
  bool bring_back() noexcept;
  // Waits for what is under way, and begins nothing more.
  void stop() noexcept;

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
  struct Chunk {
    memory::Flight flight;
    uint64_t offset = 0;  // of its first byte in the message
  };

  // The next bytes to copy, which lie at pieces_[at_] + done_. 0: none, for now.
  uint64_t next() noexcept;
  bool begin_chunk(uint64_t n) noexcept;

  StagingMemory& from_;
  std::vector<Piece> pieces_;
  uint64_t size_ = 0;
  bool brings_back_ = false;
  memory::Driver* driver_ = nullptr;  // whose the memory is
  std::byte* memory_ = nullptr;

  Way way_ = Way::back;       // of what is copied in chunks
  size_t at_ = 0;             // the piece whose chunk is next
  uint64_t done_ = 0;         // bytes of it that were begun
  uint64_t arrived_ = 0;      // of the message
  bool all_arrived_ = false;  // and no more will come
  bool stopped_ = false;      // nothing more is begun
  bool failed_ = false;       // a driver did not copy
  std::array<Chunk, 2> chunks_;
  size_t oldest_ = 0;     // of those under way
  size_t under_way_ = 0;  // how many are
};

}  // namespace aperture::provider
