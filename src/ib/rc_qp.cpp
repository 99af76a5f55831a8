// The life of a connected queue pair's lane, and polling: see rc_qp.hpp.
#include "ib/rc_qp.hpp"

#include <utility>

#include "base/log.hpp"

namespace aperture::ib {

RcQp::RcQp(const QpSpec& spec, LaneHost& host) : Qp(spec), host_(host) {}

RcQp::~RcQp() = default;  // leave() has stopped it

void RcQp::attach(std::unique_ptr<link::Lane> lane) noexcept {
  if (lane_ != nullptr || attr_.state < QpState::rtr || attr_.state == QpState::err) {
    host_.give_back(std::move(lane));
    return;
  }
  try {
    // pieces in flight are as many as there are request cells at most
    pieces_.resize(lane->request_tx.cells.capacity());
  } catch (...) {
    host_.give_back(std::move(lane));
    return lane_failed(Errc::no_memory);
  }
  lane_ = std::move(lane);
  had_lane_ = false;
  remote_ = lane_->remote;
  piece_head_ = piece_tail_ = done_through_ = 0;
  claim_side_ = {};
  set_consumer_state(ring::ConsumerState::hot);
  run_send_queue();
}

void RcQp::release_lane() noexcept {
  lane_over_ = false;
  if (slot_ != nullptr) protect::SlotArray::give_back(std::exchange(slot_, nullptr));
  host_.give_back(std::move(lane_));
}

void RcQp::lane_failed(Errc why) noexcept {
  if (lane_ != nullptr) return;
  if (sq_head_ != sq_tail_ && is_reliable() && attr_.state != QpState::err) {
    APERTURE_WARN(
        "queue pair 0x%x: no answer from queue pair 0x%x at %s (%s); bring it up to RTR before "
        "posting to it, and check the number and GID that were exchanged",
        spec_.qpn, attr_.dest_qpn, attr_.route.remote.text().c_str(), describe(why));
  }
  wind_down(WcStatus::retry_exc_err);
}

// The other end is gone. What it had executed is a success, and what it had refused is told.
void RcQp::lose() noexcept {
  if (!is_up()) return;
  const Driving driving(*this);
  learn_executed();
  retire();
  end_if_broken();
  if (!is_up()) return;  // in the error state already
  had_lane_ = lane_over_ = true;
  if (taken_) {  // half a message has come, and no more will
    fail_receive(WcStatus::rem_abort_err, WcStatus::success);
    return;
  }
  wind_down(WcStatus::retry_exc_err);
}

// There is no lane, and none will come: reliable WQEs fail, unreliable ones are lost on the way.
void RcQp::wind_down(WcStatus status) noexcept {
  if (sq_head_ == sq_tail_) return;
  if (is_reliable()) {
    Wqe& w = wqe(sq_head_);
    if (w.status == WcStatus::success) w.status = status;
    complete_head();
    return;
  }
  while (sq_head_ != sq_tail_ && attr_.state != QpState::err) {
    sq_next_ = sq_head_ + 1;
    complete_head();
  }
}

void RcQp::stop() noexcept {
  if (lane_ != nullptr) {
    if (driving_ != 0) {
      lane_over_ = true;
    } else {
      release_lane();
    }
  }
  stopped_ = false;
  local_waits_ = ending_ = false;
  results_out_ = 0;
  rnr_deadline_ns_ = 0;
  had_lane_ = broken_ = busy_ = false;
  target_away_ = false;
  away_times_ = 0;
  waiting_ = rnr_told_ = established_ = dropping_ = placed_ = write_refused_ = false;
  read_done_ = 0;
  if (taken_) {  // a receive is never lost
    taken_ = false;
    Wc wc;
    wc.status = WcStatus::wr_flush_err;
    wc.opcode = WcOpcode::recv;
    if (attr_.state == QpState::err) complete_recv(recv_, wc);
  }
  got_ = 0;
}

bool RcQp::poll(uint64_t polls) noexcept {
  if (lane_ == nullptr) {
    if (local_waits_) run_send_queue();
    return local_waits_;
  }
  const Driving driving(*this);
  if ((polls & 15) == 0) lane_->request_rx.count_poll(polls);  // a cache line of the peer's
  if (lane_->needs_drive) lane_->drive();
  bool any = false;
  if (lane_->response_rx.cells.ready()) any = poll_responses();
  if (is_up() && lane_->request_rx.cells.ready()) any = poll_requests() || any;
  if (is_up() && sq_head_ != sq_tail_) {
    const uint32_t before = sq_head_;
    learn_executed();
    retire();
    if (is_up()) claim_stalled_head();
    if (is_up() && rnr_deadline_ns_ != 0) look_at_rnr_timer();
    if (is_up() && sq_next_ != sq_tail_) run_send_queue();
    any = any || sq_head_ != before;
  }
  end_if_broken();
  update_pending();
  return any;
}

void RcQp::update_pending() noexcept {
  if (!is_up()) return;
  busy_ = lane_->needs_drive || sq_head_ != sq_tail_ || placed_;
  const uint32_t now = sq_head_ != sq_next_ || taken_ ? 1 : 0;
  // relaxed: a hint for the control thread's watch
  if (lane_->pending.load(std::memory_order_relaxed) != now) {
    lane_->pending.store(now, std::memory_order_relaxed);
  }
}

void RcQp::set_consumer_state(ring::ConsumerState state) noexcept {
  if (lane_ == nullptr) return;
  lane_->request_rx.set_state(state);
  lane_->response_rx.set_state(state);
}

bool RcQp::anything_arrived() const noexcept {
  if (lane_ == nullptr) return false;
  if (lane_->response_rx.cells.ready()) return true;
  if (lane_->request_rx.cells.ready() && !waiting_) return true;
  // acknowledgements and room ring the doorbell too, without a cell
  // SYNC POINT: channel-consumed: only looked at here, refresh() acts on it
  const auto moved = [](ring::ChannelTx& tx) {
    return tx.words().consumed.load(std::memory_order_acquire) > tx.consumed_seen();
  };
  return (sq_head_ != sq_tail_ && moved(lane_->request_tx)) ||
         (read_done_ != 0 && moved(lane_->response_tx));
}

bool RcQp::needs_polling() const noexcept {
  if (local_waits_) return true;
  if (lane_ == nullptr) return false;
  if (rnr_deadline_ns_ != 0 || placed_) return true;
  return lane_->direct.allowed && piece_head_ != piece_tail_;
}

void RcQp::on_receive_posted() noexcept {
  if (!waiting_) [[likely]]
    return;
  waiting_ = false;
  if (!is_up()) return;
  const Driving driving(*this);
  poll_requests();
  end_if_broken();
}

}  // namespace aperture::ib
