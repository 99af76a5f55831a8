// What comes back to a requester: results of reads and atomics, refusals, receiver-not-ready, and
// how far the responder has executed. Completes WQEs in order. IBTA vol. 1, 9.7.5.
//
// Guarded by the engine's lock. Everything that is read here is a peer's word: what no sound peer
// says ends the connection. A part of RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_core.hpp"

namespace aperture::ib {

class RcAnswers {
 public:
  explicit RcAnswers(RcCore& core) noexcept : q_(core) {}

  // Takes the responses that are there. True: there was one.
  bool poll() noexcept;
  // How far the other side has come; what it had to say on the way is taken first.
  void learn_executed() noexcept;
  // Completes, in order, what is over.
  void retire() noexcept;
  // Nobody has posted a receive for the head in all the time that was allowed: its WQE fails.
  void look_at_rnr_timer() noexcept;

 private:
  void on_nak(const wire::RcMessage& m, uint64_t pos) noexcept;
  void on_rnr(const wire::RcMessage& m, uint64_t pos) noexcept;
  void tell_endless() noexcept;
  void on_read_inline(const wire::RcMessage& m, uint64_t pos) noexcept;
  void on_read_data() noexcept;
  static constexpr uint64_t kNoResult = ~uint64_t{0};
  template <typename Place>
  bool place_result(uint64_t pos, uint64_t offset, uint64_t len, Place&& place) noexcept;

  void complete_oldest(const Wqe& w) noexcept;

  RcCore& q_;
  bool endless_told_ = false;  // rnr_retry 7: that a message waits and waits
  uint64_t rnr_pos_ = 0;       // of the request that RcCore::rnr_deadline_ns_ is for
};

}  // namespace aperture::ib
