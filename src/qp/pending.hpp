// Operations that lie in the request ring until they are executed: acknowledgements, refusals and
// results, and the completion that each operation ends with.
//
// The executed position acknowledges; a refusal or a result was stored before it. An operation
// completes once, in complete(), from wherever it was; a line, which has no WQE unless it fails, in
// end_line(). They end in the order of the ring. Works on QpCore's `pending` and `pieces`, and
// keeps the two counts of what is there. Guarded by the engine's lock.
#pragma once

#include "qp/core.hpp"

namespace aperture::qp {

class Pending {
 public:
  explicit Pending(QpCore& core) noexcept : core_(core) {}

  // All of it is in the ring, up to end_pos.
  void add(Wqe& wqe) noexcept;
  // Everything before that position has been executed.
  void retire(uint64_t done_through) noexcept;
  uint64_t done_through() const noexcept { return core_.pieces.done_through(); }

  // Responses. What no sound peer says breaks the protocol.
  void on_nak(const wire::SoundHead& head) noexcept;
  void on_result(const wire::SoundHead& head) noexcept;

  // The end of an operation that is in no list any more: `error` and `denial` say which.
  void complete(Wqe& wqe) noexcept;
  // Everything in the ring ends with that, unless it has failed otherwise.
  void end_all(Errc why) noexcept;

 private:
  bool awaits_ack(const Wqe& wqe) const noexcept {
    return core_.awaits_ack(wqe.kind, wqe.completion != kCounted);
  }
  void remove(Wqe& wqe) noexcept;
  void end_through(uint64_t position, Errc why) noexcept;
  void end_wqes(uint64_t position, Errc why) noexcept;
  void end_line(const Piece& line, Errc why) noexcept;
  void succeed(const Completion& entry, bool has_entry, Counter* counter) noexcept;
  void fail(const Wqe& wqe) noexcept;

  QpCore& core_;
};

}  // namespace aperture::qp
