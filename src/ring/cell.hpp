// The cell ring: a single-producer single-consumer ring of 64-byte cells in shared memory.
//
//   cell   0        4                                                            64
//          | seq u32 | body, 60 bytes                                             |
//
// A message is one or more consecutive cells. Each cell carries its own ready mark beside its
// payload, so a small message is one cache line and no producer index is shared. The mark of the
// cell at position p is (p >> log2(cells)) + 1, stored last and with release in the message's first
// cell; no stale cell can hold it, since it never repeats within 2^32 laps. The consumer gives
// cells back by publishing how far it has got (channel.hpp), once per batch.
//
// CellWriter belongs to the producing thread and CellReader to the consuming one. The reader trusts
// nothing: whatever the marks say, it only ever looks inside the ring.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/invariant.hpp"
#include "base/prefetch.hpp"

namespace aperture::ring {

inline constexpr size_t kCellBytes = 64;
inline constexpr size_t kBodyBytes = 60;

struct alignas(kCellBytes) Cell {
  std::atomic<uint32_t> seq;
  std::byte body[kBodyBytes];
};
static_assert(sizeof(Cell) == kCellBytes && offsetof(Cell, body) == 4);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// The ready mark of position pos in a ring of 2^log2_cells cells.
constexpr uint32_t mark_of(uint64_t pos, uint32_t log2_cells) noexcept {
  return static_cast<uint32_t>(pos >> log2_cells) + 1;
}

class CellWriter {
 public:
  CellWriter() noexcept = default;
  CellWriter(Cell* cells, uint32_t log2_cells) noexcept
      : cells_(cells),
        log2_(log2_cells),
        mask_((uint64_t{1} << log2_cells) - 1),
        limit_(mask_ + 1) {}

  uint64_t pos() const noexcept { return pos_; }
  uint64_t capacity() const noexcept { return mask_ + 1; }

  // True if that many cells are free as far as was last told; grant() tells more.
  bool has_room(uint32_t n_cells) const noexcept { return pos_ + n_cells <= limit_; }
  uint64_t free_cells() const noexcept { return limit_ - pos_; }
  // The consumer has consumed everything before `consumed` (its word; nonsense is ignored).
  void grant(uint64_t consumed) noexcept {
    if (consumed <= pos_ && consumed + mask_ + 1 > limit_) limit_ = consumed + mask_ + 1;
  }

  std::byte* body(uint32_t nth = 0) noexcept { return cells_[(pos_ + nth) & mask_].body; }
  // Of a cell that has been published and not consumed. The reader, too, could have written there.
  const std::byte* body_at(uint64_t position) const noexcept {
    APERTURE_DEBUG_ASSERT(position < pos_ && pos_ - position <= mask_ + 1);
    return cells_[position & mask_].body;
  }

  // Makes n_cells from pos() on visible as one message. Part of its callers: one that is called
  // would cost who posts a sixth of his instructions.
  [[gnu::always_inline]] void publish(uint32_t n_cells) noexcept {
    APERTURE_DEBUG_ASSERT(n_cells != 0);
    for (uint32_t i = n_cells; i-- > 1;) {
      // relaxed: the first cell's release below covers the continuation cells
      cell(pos_ + i).seq.store(mark_of(pos_ + i, log2_), std::memory_order_relaxed);
    }
    // SYNC POINT: cell-ready: the message's bytes become visible to the reader that sees the mark
    cell(pos_).seq.store(mark_of(pos_, log2_), std::memory_order_release);
    pos_ += n_cells;
    // A stream: the lines to come are had from the reader while this one is on its way. In a
    // dialogue the reader looks at them first, and it would be twice the traffic for nothing.
    if (pos_ - answered_ > kDialogueCells) prefetch_to_write(&cell(pos_ + kCellsAhead));
  }
  // The reader has sent something in return.
  void note_answer() noexcept { answered_ = pos_; }

 private:
  static constexpr uint64_t kDialogueCells = 4;
  static constexpr uint64_t kCellsAhead = 8;

  Cell& cell(uint64_t pos) noexcept { return cells_[pos & mask_]; }

  Cell* cells_ = nullptr;
  uint32_t log2_ = 0;
  uint64_t mask_ = 0;
  uint64_t pos_ = 0;       // next position to write
  uint64_t limit_ = 0;     // first position that may not be written yet
  uint64_t answered_ = 0;  // position at the reader's last answer
};

class CellReader {
 public:
  CellReader() noexcept = default;
  CellReader(const Cell* cells, uint32_t log2_cells) noexcept
      : cells_(cells), log2_(log2_cells), mask_((uint64_t{1} << log2_cells) - 1) {}

  uint64_t pos() const noexcept { return pos_; }

  // True if a message begins at pos().
  bool ready() const noexcept {
    // SYNC POINT: cell-ready: pairs with CellWriter::publish
    return cells_[pos_ & mask_].seq.load(std::memory_order_acquire) == mark_of(pos_, log2_);
  }
  const std::byte* body(uint32_t nth = 0) const noexcept {
    return cells_[(pos_ + nth) & mask_].body;
  }
  void advance(uint32_t n_cells) noexcept {
    APERTURE_DEBUG_ASSERT(n_cells != 0 && n_cells <= mask_ + 1);
    pos_ += n_cells;
  }
  void prefetch(uint32_t nth) const noexcept { __builtin_prefetch(&cells_[(pos_ + nth) & mask_]); }

 private:
  const Cell* cells_ = nullptr;
  uint32_t log2_ = 0;
  uint64_t mask_ = 0;
  uint64_t pos_ = 0;
};

// A run of bytes that lies in the bodies of a message's cells, from a byte offset on. Reader and
// writer both walk messages with it, so the two can never disagree on where a field lies.
template <typename Ring, typename Byte>
class BodyCursor {
 public:
  BodyCursor(Ring& ring, size_t offset) noexcept
      : ring_(ring), nth_(static_cast<uint32_t>(offset / kBodyBytes)), at_(offset % kBodyBytes) {}

  template <typename Fn>
  void each_piece(size_t len, Fn&& fn) noexcept {
    while (len > 0) {
      const size_t n = std::min(len, kBodyBytes - at_);
      fn(ring_.body(nth_) + at_, n);
      len -= n;
      at_ += n;
      if (at_ == kBodyBytes) {
        at_ = 0;
        ++nth_;
      }
    }
  }
  void copy_out(void* to, size_t len) noexcept {
    auto* out = static_cast<std::byte*>(to);
    each_piece(len, [&](const std::byte* piece, size_t n) {
      std::memcpy(out, piece, n);
      out += n;
    });
  }
  void copy_in(const void* from, size_t len) noexcept {
    auto* in = static_cast<const std::byte*>(from);
    each_piece(len, [&](Byte* piece, size_t n) {
      std::memcpy(piece, in, n);
      in += n;
    });
  }

 private:
  Ring& ring_;
  uint32_t nth_;
  size_t at_;
};
using BodyWriter = BodyCursor<CellWriter, std::byte>;
using BodyReader = BodyCursor<const CellReader, const std::byte>;

constexpr uint32_t cells_for(size_t body_bytes) noexcept {
  return body_bytes <= kBodyBytes
             ? 1
             : static_cast<uint32_t>((body_bytes + kBodyBytes - 1) / kBodyBytes);
}

}  // namespace aperture::ring
