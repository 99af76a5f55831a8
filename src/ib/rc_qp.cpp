// The life of a connected queue pair's lane, and polling: see rc_qp.hpp.
#include "ib/rc_qp.hpp"

#include <algorithm>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "ib/window_book.hpp"

namespace aperture::ib {

namespace {

// Whatever timeout and retry_cnt say: nobody waits longer for a peer that is known to be gone.
constexpr uint64_t kLongestRetryNs = 500'000'000;
constexpr uint64_t kLookEvery = 16;  // polls; a power of two

}  // namespace

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
  begin_anew();
  on_access_changed();
  set_consumer_state(ring::ConsumerState::hot);
  run_send_queue();
}

// What was half done with an earlier lane does not go on with this one. A receive that a message of
// an unreliable connection had taken is for the next message.
void RcQp::begin_anew() noexcept {
  rnr_deadline_ns_ = lost_until_ns_ = 0;
  target_away_ = false;
  away_times_ = 0;
  stall_since_ = rung_at_ = 0;
  forget_waiting();
  rnr_told_ = dropping_ = placed_ = ending_ = write_refused_ = false;
  got_ = read_done_ = 0;
  whole_region_ = {};
}

void RcQp::forget_waiting() noexcept {
  if (!std::exchange(waiting_, false)) return;
  if (spec_.type != QpType::xrc_recv) return receives().forget(*this);
  ReceiveQueue* queue = spec_.windows->find_srq(recv_srq_, spec_.xrc_domain);
  if (queue != nullptr) queue->forget(*this);
}

// XRC: that of the receive that was taken may be gone, and where it completes with it.
bool RcQp::has_receive_queue() const noexcept {
  return spec_.type != QpType::xrc_recv ||
         spec_.windows->find_srq(recv_srq_, spec_.xrc_domain) != nullptr;
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

// The requests in the ring, a ring full at most, while so() says so.
template <typename So>
void RcQp::execute_arrived(So&& so) noexcept {
  const uint64_t at_most = lane_->request_rx.cells.pos() + pieces_.size();
  while (is_up() && lane_->request_rx.cells.pos() < at_most && so() && poll_requests()) {
  }
}

// The other end is gone. What it had asked for is done, what it had executed is a success, and what
// it had refused is told. What is left fails when the requester has retried for as long as timeout
// and retry_cnt say, within reason: a program that polls the last of its completions while its peer
// ends must not find a failure among them (ibv_srq_pingpong has more sends under way than its peer
// waits for). Nothing is begun meanwhile.
void RcQp::lose() noexcept {
  if (!is_up()) return;
  const Driving driving(*this);
  execute_arrived([] { return true; });
  take_answers();
  if (!is_up()) return;  // in the error state already
  const uint64_t retrying = give_up_ns(attr_.timeout, attr_.retry_cnt);
  if (!taken_ && is_reliable() && sq_head_ != sq_tail_ && retrying != 0) {
    lost_until_ns_ = now_ns() + std::min(retrying, kLongestRetryNs);
    busy_ = true;
    return;
  }
  leave_lost_peer();
}

// As long as there is room for completions: nobody looks at them any more, so none is an overrun.
void RcQp::take_what_arrived() noexcept {
  if (!is_up()) return;
  const Driving driving(*this);
  execute_arrived([this] { return recv_cq_now_ == nullptr || recv_cq_now_->has_room(); });
}

void RcQp::take_answers() noexcept {
  if (lane_ == nullptr || lost_until_ns_ != 0) return;
  const Driving driving(*this);
  if (is_up()) learn_executed();
  if (is_up()) retire();
  end_if_broken();
}

// The end of what lose() began.
void RcQp::leave_lost_peer() noexcept {
  const Driving driving(*this);
  lost_until_ns_ = 0;
  had_lane_ = lane_over_ = true;
  if (taken_ && is_reliable()) {  // half a message has come, and no more will
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
  // what is done at this end still is, and holds up what is behind it
  for (; sq_next_ != sq_tail_ && may_go_on() && !stopped_; ++sq_next_) {
    Wqe& w = wqe(sq_next_);
    if (!is_local(w.op)) {
      w.stage = Wqe::Stage::finished;
    } else if (!start(sq_next_)) {
      break;
    }
  }
  retire();
}

// The peer looks at our keys by itself, but only we know what this queue pair lets it do.
void RcQp::on_access_changed() noexcept {
  if (lane_ == nullptr) return;
  uint32_t direct = allows(kAllowRemoteWrite) ? wire::kRcDirectWrites : 0;
  if (is_reliable() && allows(kAllowRemoteRead) && attr_.max_dest_rd_atomic != 0) {
    direct |= wire::kRcDirectReads;
  }
  lane_->request_rx.want_notices(direct);
}

void RcQp::stop() noexcept {
  if (lane_ != nullptr) {
    lane_->request_rx.want_notices(0);
    if (driving_ != 0) {
      lane_over_ = true;
    } else {
      release_lane();
    }
  }
  stopped_ = local_waits_ = false;
  results_out_ = 0;
  had_lane_ = broken_ = busy_ = established_ = false;
  begin_anew();
  if (taken_) {  // a receive is never lost
    taken_ = false;
    Wc wc;
    wc.status = WcStatus::wr_flush_err;
    wc.opcode = WcOpcode::recv;
    if (attr_.state == QpState::err && has_receive_queue()) complete_recv(recv_, wc);
  }
}

bool RcQp::poll(uint64_t polls) noexcept {
  if (lane_ == nullptr) {
    if (local_waits_) run_send_queue();
    return local_waits_;
  }
  if (lost_until_ns_ != 0) [[unlikely]] {
    if (now_ns() < lost_until_ns_) return false;
    leave_lost_peer();
    return true;
  }
  const Driving driving(*this);
  const bool due = (polls & (kLookEvery - 1)) == 0;
  if (due) lane_->request_rx.count_poll(polls);  // a cache line of the peer's
  if (lane_->needs_drive) lane_->drive();
  bool any = false;
  if (lane_->response_rx.cells.ready()) any = poll_responses();
  if (is_up() && lane_->request_rx.cells.ready()) any = poll_requests() || any;
  if (is_up() && sq_head_ != sq_tail_ && (due || awaits_answers())) {
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
  busy_ = lane_->needs_drive || placed_ || awaits_answers();
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
  if (rnr_deadline_ns_ != 0 || lost_until_ns_ != 0 || placed_) return true;
  // something is to be begun or goes on by our own hand, and nothing is out that would wake us
  if (sq_next_ != sq_tail_ && may_go_on() && done_through_ == lane_->request_tx.cells.pos()) {
    return true;
  }
  return lane_->direct.allowed && piece_head_ != piece_tail_;
}

void RcQp::on_receive_posted() noexcept {
  if (!waiting_) [[likely]]
    return;
  waiting_ = false;
  if (!is_up() || lost_until_ns_ != 0) return;
  const Driving driving(*this);
  poll_requests();
  end_if_broken();
}

}  // namespace aperture::ib
