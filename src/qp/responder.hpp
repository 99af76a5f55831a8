// The responder: executes the peer's requests in order. What cannot come from a sound peer ends the
// connection (break_protocol); what a sound peer may get wrong is refused by protect/, and answered
// with a nak. A refused RMA leaves the queue pair working, as libfabric expects.
//
// A request leaves the ring once it is executed; one that has to wait stays at its head and is
// shown again. Requests that the initiator may do directly are claimed first (transport/claim.hpp).
// Guarded by the engine's lock.
#pragma once

#include "qp/atomic_responder.hpp"
#include "qp/invalidation_responder.hpp"
#include "qp/responses.hpp"
#include "transport/turn.hpp"

namespace aperture::qp {

class Responder {
 public:
  Responder(QpCore& core, Responses& responses, Execution& execution, AtomicResponder& atomics,
            InvalidationResponder& invalidations) noexcept
      : core_(core),
        responses_(responses),
        execution_(execution),
        atomics_(atomics),
        invalidations_(invalidations) {}

  // Executes requests of any kind, and acknowledges them. True: there was one.
  bool poll() noexcept;
  // The head of the ring stays: it waits for room for its answer, for a claim to end, or for what
  // the application has to give.
  bool is_held() const noexcept { return turn_.is_held(core_.lane->request_rx.cells); }

 private:
  bool execute(const wire::SoundHead& head) noexcept;
  bool on_send(const wire::SoundHead& head) noexcept;
  bool is_sound_beside(const wire::SoundHead& head, Arrival& a, bool& is_dropped) noexcept;
  bool may_come_unasked(uint64_t len) noexcept;
  bool has_room_for_answer() noexcept;
  bool on_write(const wire::SoundHead& head) noexcept;
  bool on_write_bytes(const wire::SoundHead& head) noexcept;
  bool on_read(const wire::SoundHead& head) noexcept;
  bool on_check(const wire::SoundHead& head) noexcept;
  bool on_commit(const wire::SoundHead& head) noexcept;
  bool on_notice(const wire::SoundHead& head) noexcept;
  // Of a read: [offset, offset + len) of it.
  struct Part {
    uint64_t offset = 0;
    uint64_t len = 0;
  };
  void begin_piece(const wire::SoundHead& head, Wild<uint64_t> key, uint64_t offset) noexcept;
  bool put_result(const wire::Loaded<wire::ReadFields>& f, const Part& part,
                  const protect::AccessAsk& whole) noexcept;
  protect::Denial put_small_result(const protect::AccessAsk& whole, Wild<uint64_t> id,
                                   const Part& part) noexcept;
  bool room_for_notice() const noexcept {
    return core_.port.rx_cq == nullptr || core_.port.rx_cq->has_room();
  }
  void deliver_notice(uint64_t len, uint64_t imm) noexcept;

  QpCore& core_;
  Responses& responses_;
  Execution& execution_;
  AtomicResponder& atomics_;
  InvalidationResponder& invalidations_;
  uint64_t range_addr_ = 0;  // of the range whose pieces are being written or read
  uint64_t range_key_ = 0;
  transport::Turn turn_;
};

}  // namespace aperture::qp
