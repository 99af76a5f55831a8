// Refusing a peer's requests: see rc_execution.hpp.
#include "ib/rc_execution.hpp"

#include "ib/rc_explain.hpp"

namespace aperture::ib {

bool RcExecution::refuse(WcStatus status, const protect::AccessAsk* ask,
                         protect::Denial denial) noexcept {
  if (ask != nullptr) explain_refusing({q_.spec_, q_.remote_}, *ask, denial);
  return refuse(status, 0, static_cast<uint32_t>(denial));
}

bool RcExecution::refuse(WcStatus status, uint8_t flags, uint32_t imm) noexcept {
  if (!q_.is_reliable()) return true;
  APERTURE_DEBUG_ASSERT(q_.lane_uses_ != 0);  // a failure ends the use of the lane
  APERTURE_DEBUG_ASSERT(q_.lane_->response_tx.cells.has_room(1));
  respond({static_cast<uint8_t>(wire::RcOp::nak), flags, static_cast<uint16_t>(status), imm},
          wire::RcAnswer{q_.lane_->request_rx.cells.pos()});
  q_.lane_.acknowledge_requests();
  q_.fail();
  q_.raise(status == WcStatus::rem_access_err ? AsyncEvent::qp_access_err : AsyncEvent::qp_req_err);
  return true;
}

}  // namespace aperture::ib
