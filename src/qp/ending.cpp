// Losing a lane: see ending.hpp.
#include "qp/ending.hpp"

namespace aperture::qp {

void Ending::lose(Errc why) noexcept {
  assert(why != Errc::ok);
  if (core_.state == QpState::dead) return;
  lost_why_ = why;
  core_.busy = true;
  execution_.clear_wait();  // the next poll tells
  if (core_.lane) core_.lane->on_lost();
  if (core_.state == QpState::ready) core_.state = QpState::draining;
  APERTURE_DEBUG_ASSERT(core_.state == QpState::draining && core_.lane);  // it has a lane to lose
}

bool Ending::drained() const noexcept {
  if (!core_.lane || core_.lane.broken()) return true;
  // what waits for the peer waits for ever
  return (!core_.lane->request_rx.cells.ready() || execution_.waits_for_peer()) &&
         !core_.lane->response_rx.cells.ready();
}

}  // namespace aperture::qp
