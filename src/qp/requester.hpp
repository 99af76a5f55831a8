// Posting, and the queue of what may not begin at once.
//
// An operation that nothing stands before goes to the part that knows its kind, which puts it into
// the ring or carries it out directly. What a fence, the order or a full ring holds up waits in
// QpCore::queue, in order, until run() may begin it. Guarded by the engine's lock.
#pragma once

#include "qp/atomic_requester.hpp"
#include "qp/rma_requester.hpp"
#include "qp/send_requester.hpp"

namespace aperture::qp {

class Requester {
 public:
  Requester(QpCore& core, Pending& pending, OfferSender& offers, Responses& responses,
            DirectRma& direct) noexcept
      : core_(core),
        pending_(pending),
        responses_(responses),
        sends_(core, pending, offers, responses),
        rma_(core, pending, responses, direct),
        atomics_(core, pending, responses) {}

  Status send(const SendWr& wr) noexcept { return sends_.post(wr); }
  Status rma(WqeKind kind, const RmaWr& wr) noexcept {
    const Status s = rma_.post(kind, wr);
    if (core_.one_sided.has_copied()) [[unlikely]]
      serve_peer();
    return s;
  }
  Status atomic(const AtomicWr& wr) noexcept { return atomics_.post(wr); }
  // Cancels a send that has not begun. Errors: no_entry.
  Status cancel(void* context) noexcept;

  // Something is not in the ring yet.
  bool has_queued() const noexcept { return !core_.queue.empty(); }
  // Learns now what has been executed, also of what nobody waits for.
  void look_at_acknowledgements() noexcept {
    if (core_.state == QpState::ready && core_.under_way()) responses_.learn_executed();
  }

  // --- for the queue pair ---

  // Begins what may be begun, in order.
  void run() noexcept;
  // Everything in the queue ends with that, unless it has failed otherwise.
  void end_all(Errc why) noexcept;

 private:
  bool start(Wqe& wqe) noexcept;
  void serve_peer() noexcept;

  QpCore& core_;
  Pending& pending_;
  Responses& responses_;
  SendRequester sends_;
  RmaRequester rma_;
  AtomicRequester atomics_;
};

}  // namespace aperture::qp
