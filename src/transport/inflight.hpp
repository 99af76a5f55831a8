// The pieces of one-sided operations that lie in the request ring, and how far the other side has
// executed: what may be claimed, what a response belongs to, and when a direct access is in order.
//
// Guarded by the engine's lock. Pieces are noted in the order of the ring. A piece is anything with
// `pos` (its first cell) and `cells`. There is a place for each cell of the ring; cells may be free
// again whose pieces have not been retired, so has_place() is asked before a piece is published.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>
#include <new>

#include "base/errc.hpp"
#include "base/untouched_array.hpp"

namespace aperture::transport {

template <typename Piece>
class Inflight {
 public:
  // For a new lane whose request ring has that many cells, a power of two. Errors: no_memory.
  Status begin(uint64_t cells) noexcept {
    assert(std::has_single_bit(cells));
    try {
      if (cells != pieces_.size()) pieces_ = UntouchedArray<Piece>(cells);
    } catch (const std::bad_alloc&) {
      return Errc::no_memory;
    }
    mask_ = cells - 1;
    head_ = tail_ = done_through_ = 0;
    return {};
  }

  bool empty() const noexcept { return head_ == tail_; }
  bool has_place() const noexcept { return tail_ - head_ < pieces_.size(); }
  uint64_t capacity() const noexcept { return pieces_.size(); }
  // The next one, all of whose members are to be stored: there, and not copied there.
  Piece& note() noexcept {
    assert(has_place());
    return at(tail_++);
  }
  void note(const Piece& piece) noexcept { note() = piece; }
  Piece& oldest() noexcept {
    assert(!empty());
    return at(head_);
  }
  const Piece& oldest() const noexcept {
    assert(!empty());
    return at(head_);
  }
  Piece& newest() noexcept {
    assert(!empty());
    return at(tail_ - 1);
  }
  // The first, in the order of the ring, for which fn(piece) is true; null: none.
  template <typename Fn>
  Piece* find(Fn&& fn) noexcept {
    for (uint64_t i = head_; i != tail_; ++i) {
      Piece& piece = at(i);
      if (fn(piece)) return &piece;
    }
    return nullptr;
  }

  // The oldest one and those that follow it in the ring without a gap, in order, for as long as
  // fn(piece) says.
  template <typename Fn>
  void each_adjoining(Fn&& fn) noexcept {
    uint64_t end = 0;
    for (uint64_t i = head_; i != tail_; ++i) {
      Piece& piece = at(i);
      if ((i != head_ && piece.pos != end) || !fn(piece)) return;
      end = piece.pos + piece.cells;
    }
  }

  // Position up to which every request of ours has been executed.
  uint64_t done_through() const noexcept { return done_through_; }
  void retire_through(uint64_t position) noexcept {
    retire_through(position, [](const Piece&) {});
  }
  // retired(piece) of each, in the order of the ring; it may not come back here.
  template <typename Fn>
  void retire_through(uint64_t position, Fn&& retired) noexcept {
    assert(position >= done_through_);
    done_through_ = position;
    while (head_ != tail_ && at(head_).pos < position) retired(at(head_++));
  }

 private:
  Piece& at(uint64_t nth) noexcept { return pieces_[nth & mask_]; }
  const Piece& at(uint64_t nth) const noexcept { return pieces_[nth & mask_]; }

  UntouchedArray<Piece> pieces_;  // a ring, by head_ and tail_
  uint64_t mask_ = 0;             // of positions in it
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  uint64_t done_through_ = 0;
};

}  // namespace aperture::transport
