// The life of a connected queue pair's lane, and polling: see rc_qp.hpp.
#include "ib/rc_qp.hpp"

#include <utility>

#include "base/log.hpp"

namespace aperture::ib {

namespace {

void put_permit(std::byte* body, uint64_t number, uint16_t flags) noexcept {
  wire::store_rc(body, {static_cast<uint8_t>(wire::RcOp::permit), 0, flags, 0},
                 wire::RcAnswer{number});
}

}  // namespace

RcQp::RcQp(const QpSpec& spec, LaneHost& host) : RcCore(spec, host) {}

RcQp::~RcQp() = default;  // leave() has stopped it

void RcQp::attach(std::unique_ptr<link::Lane> lane) noexcept {
  if (lane_ || attr_.state < QpState::rtr || attr_.state == QpState::err) {
    host_.give_back(std::move(lane));
    return;
  }
  if (!inflight_.begin(lane->request_tx.cells.capacity())) {
    host_.give_back(std::move(lane));
    return lane_failed(Errc::no_memory);
  }
  lane_.attach(std::move(lane));
  APERTURE_DEBUG_ASSERT(!lane_over_);  // of the lane before
  had_lane_ = false;
  remote_ = lane_->remote;
  if (is_reliable()) lane_->min_rnr_timer = &attr_.min_rnr_timer;
  one_sided_.begin();
  begin_anew();
  on_access_changed();
  lane_.wake_up();
  run_send_queue();
}

void RcQp::begin_anew() noexcept {
  rnr_deadline_ns_ = lost_until_ns_ = 0;
  responder_.begin_anew();
}

void RcQp::lane_failed(Errc why) noexcept {
  if (lane_) return;
  if (!sq_.is_empty() && is_reliable() && attr_.state != QpState::err) {
    if (had_lane_ && why == Errc::peer_lost) {  // programs that part do that: rsockets for one
      APERTURE_INFO("queue pair 0x%x: posted to when queue pair 0x%x, its peer, had gone",
                    spec_.qpn, attr_.dest_qpn);
    } else {
      APERTURE_WARN(
          "queue pair 0x%x: no answer from queue pair 0x%x at %s (%s); bring it up to RTR before "
          "posting to it, and check the number and GID that were exchanged",
          spec_.qpn, attr_.dest_qpn, attr_.route.remote.print().c_str(), describe(why));
    }
  }
  loss_.wind_down(WcStatus::retry_exc_err);
}

// The requests in the ring, a ring full at most, as long as allowed() is true. Results go as far as
// there is room, and a little further: a peer that makes room still, though it is gone, is not
// served for ever.
template <typename Allowed>
void RcQp::execute_arrived(Allowed&& allowed) noexcept {
  const uint64_t at_most = lane_->request_rx.cells.pos() + inflight_.capacity();
  uint64_t polls_left = inflight_.capacity() + transport::kPollsOfFullRing;
  while (is_up() && lane_->request_rx.cells.pos() < at_most && allowed() && polls_left-- > 0 &&
         responder_.poll()) {
  }
}

// The other end is gone. What it had asked for is done, what it had executed is a success, and what
// it had refused is told.
void RcQp::lose() noexcept {
  if (!is_up()) return;
  const LaneInUse in_use(*this);
  lane_->on_lost();
  execute_arrived([] { return true; });
  take_answers();
  if (!is_up()) return;  // in the error state already
  loss_.begin();
}

void RcQp::break_down() noexcept {
  if (!is_up()) return;
  const LaneInUse in_use(*this);
  fail_fatally();
}

// As long as there is room for completions: nobody looks at them any more, so none is an overrun.
void RcQp::take_what_arrived() noexcept {
  if (!is_up()) return;
  const LaneInUse in_use(*this);
  execute_arrived([this] {
    const CompletionQueue* cq = responder_.receiver().completes_at();
    return cq == nullptr || cq->has_room();
  });
}

void RcQp::take_answers() noexcept {
  if (!lane_ || lost_until_ns_ != 0) return;
  const LaneInUse in_use(*this);
  if (is_up()) answers_.learn_executed();
  if (is_up()) answers_.retire();
  end_if_broken();
}

bool RcQp::post_fast(const SendWr& wr) noexcept {
  return requester_.post_fast(wr);
}

void RcQp::run_send_queue() noexcept {
  if (lost_until_ns_ != 0) [[unlikely]]
    return;
  {
    const LaneInUse in_use(*this);
    if (const Status s = requester_.run(); !s && !loss_.retry()) lane_failed(s.error());
  }
  if (one_sided_.has_copied()) serve_peer();
}

void RcQp::serve_peer() noexcept {
  if (lane_uses_ != 0) return;  // in a poll, which does so anyway
  one_sided_.forget_copied();
  if (is_up() && lane_->request_rx.cells.ready()) poll(1);
}

// The peer looks at our keys by itself, but only we know what this queue pair lets it do.
void RcQp::on_access_changed() noexcept {
  if (!lane_) return;
  uint16_t allowed = allows(kAllowRemoteWrite) ? transport::kPermitWrites : 0;
  if (is_reliable() && allows(kAllowRemoteRead) && attr_.max_dest_rd_atomic != 0) {
    allowed |= transport::kPermitReads;
  }
  gate_.permit(lane_, spec_.keys->accessors(), allowed, put_permit);
}

// Not quiet: the lane ceases, and each poll finds it so and asks again, in end_if_broken().
bool RcQp::may_fail_now() noexcept {
  if (end_access()) return true;
  is_ending_ = is_ending_ || !lane_.broken();
  lane_.cease();
  busy_ = stopped_ = true;
  return false;
}

void RcQp::stop() noexcept {
  if (lane_) {
    gate_.shut(lane_, spec_.keys->accessors());
    if (lane_uses_ != 0) {
      lane_over_ = true;
    } else {
      release_lane();
    }
  }
  stopped_ = is_ending_ = false;
  windows_.forget_waiting();
  results_out_ = 0;
  had_lane_ = busy_ = false;
  begin_anew();
  responder_.stop();
  assert(!lane_ || lane_over_);
}

bool RcQp::poll_without_lane() noexcept {
  if (lost_until_ns_ != 0) [[unlikely]] {
    if (!loss_.is_due()) return false;
    lost_until_ns_ = 0;
    lane_failed(Errc::peer_lost);
    return true;
  }
  if (windows_.is_waiting()) run_send_queue();
  return windows_.is_waiting();
}

bool RcQp::poll(uint64_t polls) noexcept {
  if (!lane_) return poll_without_lane();
  if (lost_until_ns_ != 0) [[unlikely]] {
    if (!loss_.is_due()) return false;
    loss_.leave();
    return true;
  }
  const LaneInUse in_use(*this);
  const bool due = (polls & (transport::kLookEvery - 1)) == 0;
  if (due) lane_->request_rx.count_poll(polls);  // a cache line of the peer's
  bool any = false;
  if (lane_->response_rx.cells.ready()) any = answers_.poll();
  if (gate_.is_due() && is_up()) [[unlikely]]
    gate_.tell(lane_, put_permit);
  if (is_up() && lane_->request_rx.cells.ready()) any = responder_.poll() || any;
  if (is_up() && !sq_.is_empty() && (due || awaits_answers())) {
    const uint32_t before = sq_.head;
    answers_.learn_executed();
    answers_.retire();
    if (is_up() && !is_ring_done()) direct_.claim_stalled_head();
    if (is_up() && rnr_deadline_ns_ != 0) answers_.look_at_rnr_timer();
    if (is_up() && !sq_.is_posted()) run_send_queue();
    any = any || sq_.head != before;
  }
  end_if_broken();
  update_pending();
  return any;
}

void RcQp::end_if_broken() noexcept {
  if (!lane_ || !lane_.broken()) [[likely]]
    return;
  if (is_ending_) {
    fail();
  } else {
    fail_fatally();
  }
}

void RcQp::update_pending() noexcept {
  if (!is_up()) return;
  busy_ = responder_.receiver().is_ending() || gate_.is_due() || awaits_answers();
  lane_.note_pending(sq_.head != sq_.next || responder_.receiver().has_begun());
}

void RcQp::fall_asleep(uint64_t sleep_number) noexcept {
  if (!lane_) return;
  // what nobody waits for is acknowledged without a ring, and stays open as long as we sleep
  lane_.note_pending(awaits_answers() || responder_.receiver().has_begun());
  lane_.fall_asleep({.for_executed = awaits_answers(),
                     .for_room = responder_.is_streaming() || responder_.is_held(),
                     .number = sleep_number});
}

bool RcQp::anything_arrived() const noexcept {
  if (!lane_ || lane_.broken()) return false;
  if (lane_->response_rx.cells.ready()) return true;
  const bool held = responder_.is_held();
  if (lane_->request_rx.cells.ready() && !responder_.receiver().is_waiting() && !held) return true;
  return (awaits_answers() && transport::LaneEnd::has_moved(lane_->request_tx)) ||
         ((responder_.is_streaming() || held) && transport::LaneEnd::has_moved(lane_->response_tx));
}

bool RcQp::needs_polling() const noexcept {
  if (windows_.is_waiting()) return true;
  if (!lane_ || lane_.broken()) return false;
  if (lost_until_ns_ != 0) return false;
  // something is to be begun or goes on directly, and nothing is out that would wake us
  if (!sq_.is_posted() && may_go_on() && is_ring_done()) return true;
  return responder_.receiver().is_ending() || direct_.may_claim_head();
}

bool RcQp::needs_later_look() const noexcept {
  if (lost_until_ns_ != 0) return true;
  return lane_ &&
         (lane_.broken() || rnr_deadline_ns_ != 0 || !inflight_.empty() || responder_.is_held());
}

void RcQp::on_receive_posted() noexcept {
  if (!responder_.receiver().is_waiting()) [[likely]]
    return;
  responder_.receiver().stop_waiting();
  if (!is_up() || lost_until_ns_ != 0) return;
  {
    const LaneInUse in_use(*this);
    responder_.poll();
    end_if_broken();
  }
  host_.share_taken();
}

}  // namespace aperture::ib
