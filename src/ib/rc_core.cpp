// What the parts of a connected queue pair have in common: see rc_core.hpp.
#include "ib/rc_core.hpp"

namespace aperture::ib {

void RcCore::fail_wqe(Wqe& w, WcStatus status) noexcept {
  assert(status != WcStatus::success);
  if (w.stage == Wqe::Stage::begun && w.in_ring) w.end_pos = lane_->request_tx.cells.pos();
  w.status = status;
  w.stage = Wqe::Stage::finished;
  stopped_ = true;
}

bool RcCore::holds(const Wqe& w, uint64_t pos) const noexcept {
  if (w.stage == Wqe::Stage::queued || !w.in_ring || pos < w.begin_pos) return false;
  return pos < (w.stage == Wqe::Stage::begun ? lane_->request_tx.cells.pos() : w.end_pos);
}

void RcCore::release_lane() noexcept {
  assert(lane_ && lane_uses_ == 0);
  lane_over_ = false;
  one_sided_.end();
  host_.give_back(lane_.release());
}

void RcCore::break_protocol(const char* what) noexcept {
  lane_.break_protocol(what);
  busy_ = true;
}

}  // namespace aperture::ib
