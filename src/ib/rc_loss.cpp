// Work that no peer will carry out any more: see rc_loss.hpp.
#include "ib/rc_loss.hpp"

#include <algorithm>

#include "base/clock.hpp"

namespace aperture::ib {

namespace {

// Whatever timeout and retry_cnt say: nobody waits longer for a peer that is known to be gone.
constexpr uint64_t kLongestRetryNs = 500'000'000;

}  // namespace

void RcLoss::begin() noexcept {
  if (!receiver_.has_begun() && !q_.sq_.is_empty() && retry()) return;
  leave();
}

bool RcLoss::retry() noexcept {
  const uint64_t ns = q_.is_reliable() ? give_up_ns(q_.attr_.timeout, q_.attr_.retry_cnt) : 0;
  if (ns == 0) return false;
  q_.lost_until_ns_ = now_ns() + std::min(ns, kLongestRetryNs);
  q_.busy_ = true;
  return true;
}

bool RcLoss::is_due() const noexcept {
  assert(q_.lost_until_ns_ != 0);
  return now_ns() >= q_.lost_until_ns_;
}

void RcLoss::leave() noexcept {
  if (!q_.end_access()) {
    q_.lost_until_ns_ = now_ns();  // each poll asks again
    q_.busy_ = true;
    return;
  }
  const RcCore::LaneInUse in_use(q_);
  q_.lost_until_ns_ = 0;
  q_.had_lane_ = q_.lane_over_ = true;
  if (receiver_.has_begun() && q_.is_reliable()) {  // half a message has come, and no more will
    receiver_.fail(WcStatus::rem_abort_err, WcStatus::success);
    return;
  }
  wind_down(WcStatus::retry_exc_err);
}

void RcLoss::wind_down(WcStatus status) noexcept {
  assert(status != WcStatus::success);
  if (q_.sq_.is_empty()) return;
  if (q_.is_reliable()) {
    Wqe& w = q_.sq_.wqe(q_.sq_.head);
    if (w.status == WcStatus::success) w.status = status;
    q_.sq_.post_no_more_of_oldest();
    q_.complete_head();
    return;
  }
  // what is done at this end still is, and holds up what is behind it
  for (; !q_.sq_.is_posted() && q_.may_go_on() && !q_.stopped_; ++q_.sq_.next) {
    Wqe& w = q_.sq_.wqe(q_.sq_.next);
    if (!is_local(w.op)) {
      w.stage = Wqe::Stage::finished;
    } else if (!requester_.start(q_.sq_.next)) {
      break;
    }
  }
  answers_.retire();
}

}  // namespace aperture::ib
