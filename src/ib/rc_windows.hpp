// Work that is done at this end: windows are bound and invalidated, in the order of the send queue,
// and invalidated for the peer by its sends. IBTA vol. 1, 10.6.6 (memory windows).
//
// An invalidation, or a bind that ends an older one, is over when nothing older can land any more.
// Until then this queue pair waits, and no other. Windows are looked up by key each time: they may
// be gone. Guarded by the engine's lock. A part of RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_answers.hpp"
#include "ib/window_book.hpp"

namespace aperture::ib {

class RcWindows {
 public:
  RcWindows(RcCore& core, RcAnswers& answers) noexcept : q_(core), answers_(answers) {}

  // The fast path: nothing at all is before it, so no fence holds it up and no lane is asked for.
  bool post_fast(const SendWr& wr) noexcept;
  // Begins, or goes on with, the WQE. True: it is over, well or badly. False: peers may still be
  // inside what it ends.
  bool carry_out(Wqe& w) noexcept;
  // The WQE at the front of the send queue waits for its window.
  bool is_waiting() const noexcept { return waits_; }
  void forget_waiting() noexcept { waits_ = false; }

  // For a send of the peer's, whose bytes are in place. Neither done nor waits: it is refused, and
  // that has been explained.
  protect::WindowAnswer invalidate_for_peer(uint32_t rkey) noexcept;
  void begin_anew() noexcept { ending_ = false; }

 private:
  protect::WindowBind bind_of(const BindWr& wr) noexcept;
  protect::WindowAnswer bind(const BindWr& wr) noexcept;
  protect::WindowAnswer invalidate(uint32_t key) noexcept;
  protect::WindowAnswer poll(uint32_t key) noexcept;
  bool end(Wqe& w, protect::WindowAnswer answer) noexcept;

  RcCore& q_;
  RcAnswers& answers_;
  bool waits_ = false;
  bool ending_ = false;  // the peer's invalidation has begun
};

}  // namespace aperture::ib
