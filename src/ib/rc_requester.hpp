// The requester: takes WQEs from the send queue into the request ring, in order. IBTA vol. 1, 9.7.
//
// A WR goes one of two ways. The fast path takes a send or a write whose bytes are inline and fit
// into one cell, on a reliable connection with nothing before it that is still to be put into the
// ring. It does what validating, queueing and run() together do for such a one, in one go and with
// one copy; whatever is different in any way takes the slow path, which also finds what is wrong
// with it. Both lay out the cell and fill the WQE by the same functions.
//
// A message that cannot be read as a whole is not begun. Guarded by the engine's lock. A part of
// RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_direct.hpp"
#include "ib/rc_windows.hpp"

namespace aperture::ib {

class RcRequester {
 public:
  RcRequester(RcCore& core, RcAnswers& answers, RcDirect& direct, RcWindows& windows) noexcept
      : q_(core), answers_(answers), direct_(direct), windows_(windows) {}

  // The fast path. False: nothing is done, and the WR takes the slow path.
  bool post_fast(const SendWr& wr) noexcept;
  // Begins what may be begun, and goes on with what had no room. Errors: peer_lost (something is to
  // be sent, and the lane is gone for good).
  Status run() noexcept;
  // Puts as much of the WQE into the ring as there is room for. True: the next may be begun.
  bool start(uint32_t at) noexcept;

 private:
  bool is_clear() const noexcept;
  bool begin(Wqe& w, uint32_t at) noexcept;
  bool go_direct(uint32_t at) noexcept;
  uint8_t flags_of(const Wqe& w) const noexcept;
  bool put_inline(uint32_t at, wire::RcOp op) noexcept;
  bool put_pieces(uint32_t at, wire::RcOp op) noexcept;
  bool put_read(uint32_t at) noexcept;
  bool put_atomic(uint32_t at) noexcept;
  bool put_atomic_write(uint32_t at) noexcept;
  bool put_flush(uint32_t at) noexcept;
  bool put_notice(uint32_t at) noexcept;
  template <typename Fields>
  void put_one_cell(Wqe& w, wire::RcOp op, uint8_t flags, const Fields& f) noexcept;
  template <typename Fields>
  void lay_out_one_cell(std::byte* body, const Wqe& w, wire::RcOp op, uint8_t flags,
                        const Fields& f) noexcept;
  void posted(Wqe& w) noexcept;
  void note_piece(uint32_t at, uint32_t cells, uint64_t offset, uint64_t len) noexcept;
  bool room_for_piece(uint32_t n_cells) noexcept;

  RcCore& q_;
  RcAnswers& answers_;
  RcDirect& direct_;
  RcWindows& windows_;
};

}  // namespace aperture::ib
