// Sending messages: those that fit into the ring, those that complete when the other side has dealt
// with them, and those that invalidate a memory window of the peer's first. What does not go into
// the ring unasked is offered (offer_sender.hpp).
//
// A message without wishes goes into the ring and is complete; it never has a WQE unless it has to
// wait. The executed position acknowledges: a message leaves the request ring once it lies in its
// posted buffer, or with the unexpected ones if there was none. So a small one that is to be
// delivered (man 3 fi_cq, "COMPLETION EVENT SEMANTICS") goes through the ring like any other, and
// its WQE waits in `pending`. What has to be matched first (FI_MATCH_COMPLETE), is large, or meets
// a receiver under pressure is offered, and ends with `finished`.
//
// An invalidation (docs/man/aperture_fi_window.3; IBTA vol. 1, 9.4.1.1.3 and 10.6.7.2.3) is a
// request of its own, right before the message in the same ring; the message carries the key, and
// is dropped if the invalidation before it was refused. What cannot be put whole into the ring is
// offered, once the invalidation is known to be done. Guarded by the engine's lock.
#pragma once

#include "qp/responses.hpp"

namespace aperture::qp {

class SendRequester {
 public:
  SendRequester(QpCore& core, Pending& pending, OfferSender& offers, Responses& responses) noexcept
      : core_(core), pending_(pending), offers_(offers), responses_(responses) {}

  // Errors: again.
  Status post(const SendWr& wr) noexcept;
  // One that has waited. True: it needs the send queue no longer, and may be gone.
  bool put(Wqe& wqe) noexcept;

 private:
  bool goes_unasked(const SendWr& wr) const noexcept;
  bool fits_now(uint64_t len) const noexcept;
  transport::Put put_message(const SendWr& wr, uint8_t flags) noexcept;
  transport::Put put_in_cells(const SendWr& wr, uint8_t flags) noexcept;
  transport::Put put_in_bytes(const SendWr& wr, uint8_t flags) noexcept;
  bool put_acknowledged(Wqe& wqe) noexcept;
  void put_invalidation(Wqe& wqe) noexcept;
  bool put_invalidation_alone(Wqe& wqe) noexcept;
  void complete(const SendWr& wr) noexcept;
  Status enqueue(const SendWr& wr) noexcept;

  QpCore& core_;
  Pending& pending_;
  OfferSender& offers_;
  Responses& responses_;
};

}  // namespace aperture::qp
