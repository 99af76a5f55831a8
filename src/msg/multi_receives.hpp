// Multi-receive buffers where messages are matched: one posted buffer that takes many. man 3
// fi_msg, fi_endpoint and fi_cq, on multi-receive buffers.
//
// Guarded by the engine's lock, as all of a matching. A buffer stands among the posted receives
// until less than its least room is left of it (or it is canceled). Each message gets the place
// behind the one before it; offered messages keep theirs while their bytes come, several at once.
// Its entries and its one release are Receive's own matter (receive.hpp). Invariants here: a
// message which came before the buffer is never overtaken by one that came after it; there is room
// in the CQ before anything is taken.
#pragma once

#include "msg/core.hpp"

namespace aperture::msg {

class MultiReceives {
 public:
  explicit MultiReceives(MatchCore& core) noexcept : core_(core) {}

  // Errors: invalid (not one iovec), again.
  Status recv(const qp::RecvWr& wr, uint64_t least_room) noexcept;
  // A message has found that buffer. False: no room now, nothing has been done.
  bool on_message(qp::Qp& qp, const qp::Arrival& a, Receive& buffer) noexcept;
  // A part whose bytes were on their way, and are there or will not come.
  void on_received(Receive& part, Errc err) noexcept;

 private:
  bool prepare_unexpected(const qp::RecvWr& wr, uint64_t least_room) noexcept;
  void take(Unexpected& u, Receive& buffer) noexcept;
  void begin(qp::Qp& qp, const qp::Arrival& offer, Receive& part) noexcept;
  void cut(Receive& buffer, Receive& part) noexcept;
  void end_part(const Receive& part, Errc err) noexcept;

  MatchCore& core_;
};

}  // namespace aperture::msg
