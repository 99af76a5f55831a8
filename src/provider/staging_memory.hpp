// Host memory that stands in for device memory, kept between operations: to pin some takes a driver
// longer than to copy it.
//
// Pieces are powers of two, those of up to kLargest pinned by their driver, and kMostKept bytes of
// them are kept, those that were used last. What is longer comes from the heap: pinning it for one
// message takes longer than a driver's slower copy. Any thread; nothing is held while a driver
// works. One domain's.
#pragma once

#include <array>
#include <bit>
#include <mutex>
#include <vector>

#include "memory/driver.hpp"

namespace aperture::provider {

class StagingMemory {
 public:
  static constexpr size_t kSmallest = 4096, kLargest = size_t{64} << 20;
  static constexpr size_t kMostKept = size_t{128} << 20;

  StagingMemory() noexcept = default;
  // All pieces are back.
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  // At least n > 0 bytes; null: there are none.
  std::byte* take(memory::Driver& driver, size_t n) noexcept;
  // With the same n.
  void give(memory::Driver& driver, std::byte* at, size_t n) noexcept;

 private:
  static constexpr size_t kClasses = std::bit_width(kLargest / kSmallest);
  struct Piece {
    memory::Driver* driver;
    std::byte* at;
    uint64_t number;  // counts up: which was given back before which
  };
  static size_t class_of(size_t n) noexcept;
  static size_t size_of(size_t which) noexcept { return kSmallest << which; }
  // False: there is no memory to note it in.
  bool keep(memory::Driver& driver, std::byte* at, size_t which) noexcept;
  // Takes out the piece that has lain longest, if there is more than may be kept.
  bool take_surplus(Piece& piece, size_t& which) noexcept;

  std::mutex mutex_;                               // guards what follows
  std::array<std::vector<Piece>, kClasses> kept_;  // of each, the one given back last is the last
  size_t kept_bytes_ = 0;
  uint64_t last_number_ = 0;
};

}  // namespace aperture::provider
