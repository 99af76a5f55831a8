// The byte ring that stands behind a cell ring: staging for payload that does not fit in cells.
//
// Allocation is in order and contiguous (a piece never wraps: the tail end is skipped), and the
// consumer frees in order by publishing a position. Positions count bytes since the beginning and
// only grow; position % size is the place. ByteWriter belongs to the producing thread. The reading
// side has no state: a position from the peer becomes a pointer only through view().
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/invariant.hpp"

namespace aperture::ring {

class ByteWriter {
 public:
  ByteWriter() noexcept = default;
  ByteWriter(std::byte* base, uint64_t size) noexcept : base_(base), size_(size), limit_(size) {}

  uint64_t size() const noexcept { return size_; }

  // Room for len contiguous bytes (len <= size()): sets pos to where they begin. False: full.
  bool reserve(uint32_t len, uint64_t& pos) const noexcept {
    APERTURE_DEBUG_ASSERT(len <= size_);
    uint64_t begin = pos_;
    const uint64_t to_end = size_ - begin % size_;
    if (len > to_end) begin += to_end;
    if (begin + len > limit_) return false;
    pos = begin;
    return true;
  }
  std::byte* at(uint64_t pos) noexcept { return base_ + pos % size_; }
  // Takes what was reserved; 64-byte granules, so that two pieces never share a line.
  void commit(uint64_t pos, uint32_t len) noexcept {
    APERTURE_DEBUG_ASSERT(pos >= pos_ && pos + len <= limit_);
    if (pos != pos_) [[unlikely]]
      skipped_from_ = pos_;
    pos_ = (pos + len + 63) & ~uint64_t{63};
  }

  // For who hands on what was committed: how far that is, and from where on the end of the ring
  // was skipped last (kNever: it was not). In what the consumer has not freed there is one such
  // place at most.
  static constexpr uint64_t kNever = ~uint64_t{0};
  uint64_t committed() const noexcept { return pos_; }
  uint64_t granted() const noexcept { return limit_; }  // position that may not be reached yet
  uint64_t skipped_from() const noexcept { return skipped_from_; }

  void grant(uint64_t consumed) noexcept {
    if (consumed <= pos_ && consumed + size_ > limit_) limit_ = consumed + size_;
  }
  // Free bytes as far as was last told; a piece of this size may still need a wrap.
  uint64_t free_bytes() const noexcept { return limit_ - pos_; }

 private:
  std::byte* base_ = nullptr;
  uint64_t size_ = 0;
  uint64_t pos_ = 0;
  uint64_t limit_ = 0;
  uint64_t skipped_from_ = kNever;
};

class ByteReader {
 public:
  ByteReader() noexcept = default;
  ByteReader(const std::byte* base, uint64_t size) noexcept : base_(base), size_(size) {}

  uint64_t size() const noexcept { return size_; }

  // The bytes [pos, pos + len) of the ring, or nullptr if a hostile producer named a run that does
  // not lie in it contiguously.
  const std::byte* view(uint64_t pos, uint64_t len) const noexcept {
    const uint64_t place = pos % size_;
    if (len > size_ - place) return nullptr;
    return base_ + place;
  }
  // The position to publish once [pos, pos + len) has been copied out.
  static uint64_t after(uint64_t pos, uint64_t len) noexcept {
    return (pos + len + 63) & ~uint64_t{63};
  }

 private:
  const std::byte* base_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace aperture::ring
