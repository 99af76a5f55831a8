// Executing the peer's requests about one word of memory, and its flushes. IBTA vol. 1, 9.4.5
// (atomics) and annex A19 (atomic write, flush).
//
// None of them is ever done by its initiator: a claim is only waited for. Guarded by the engine's
// lock. A part of RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_execution.hpp"

namespace aperture::ib {

class RcWordResponder {
 public:
  RcWordResponder(RcCore& core, RcExecution& execution) noexcept
      : q_(core), execution_(execution) {}

  // The request at the head of the ring. False: it stays there.
  bool on_atomic() noexcept;
  bool on_atomic_write() noexcept;
  bool on_flush() noexcept;

 private:
  template <typename Fn>
  bool work_on_word(const protect::AccessAsk& ask, Fn&& fn) noexcept;

  RcCore& q_;
  RcExecution& execution_;
};

}  // namespace aperture::ib
