// The life of a queue pair: attach, poll, lose, finish.
#include "qp/qp.hpp"

#include <utility>

#include "qp/tuning.hpp"

namespace aperture::qp {

Qp::~Qp() {
  finish(Errc::shut_down);
}

void Qp::attach(std::unique_ptr<link::Lane> lane) noexcept {
  lane_ = std::move(lane);
  // RMA pieces in flight are as many as there are request cells at most
  pieces_.resize(lane_->request_tx.cells.capacity());
  set_consumer_state(ring::ConsumerState::hot);
  state_ = QpState::ready;
  busy_ = true;
}

bool Qp::poll(uint64_t polls) noexcept {
  if (lane_ == nullptr || broken_) return false;
  if ((polls & 15) == 0) lane_->request_rx.count_poll(polls);  // a cache line of the peer's
  if (lane_->needs_drive) lane_->drive();
  bool any = false;
  if (lane_->response_rx.cells.ready()) any = poll_responses();
  if (lane_->request_rx.cells.ready()) any = poll_requests() || any;
  if ((!pending_.empty() || piece_head_ != piece_tail_) &&
      (!is_unhurried() || (polls & (kSeldomPolls - 1)) == 0)) {
    acknowledge();
  }
  if (!replies_.empty()) any = flush_replies() || any;
  if (state_ != QpState::ready) return any;
  if (!granted_.empty()) any = push_offers() || any;
  if (!queue_.empty()) run_queue();
  if (incoming_count_ > 0 && lane_->direct.allowed) pull_stalled();
  update_pending();
  busy_ = has_more_to_do();
  return any;
}

void Qp::update_pending() noexcept {
  if (lane_ == nullptr) return;
  const uint32_t now = has_pending() || incoming_count_ > 0 ? 1 : 0;
  if (has_more_to_do()) busy_ = true;
  // relaxed: a hint for the control thread's watch
  if (lane_->pending.load(std::memory_order_relaxed) != now) {
    lane_->pending.store(now, std::memory_order_relaxed);
  }
}

void Qp::set_consumer_state(ring::ConsumerState state) noexcept {
  if (lane_ == nullptr) return;
  lane_->request_rx.set_state(state);
  lane_->response_rx.set_state(state);
}

bool Qp::anything_arrived() const noexcept {
  if (lane_ == nullptr) return false;
  if (lane_->request_rx.cells.ready() || lane_->response_rx.cells.ready()) return true;
  // acknowledgements and room ring the doorbell too, without a cell
  // SYNC POINT: channel-consumed: only looked at here, refresh() acts on it
  const auto moved = [](ring::ChannelTx& tx) {
    return tx.words().consumed.load(std::memory_order_acquire) > tx.consumed_seen();
  };
  if ((!pending_.empty() || !queue_.empty()) && moved(lane_->request_tx)) return true;
  return (!granted_.empty() || !replies_.empty()) && moved(lane_->response_tx);
}

bool Qp::needs_polling() const noexcept {
  if (lane_ == nullptr || state_ != QpState::ready || !lane_->direct.allowed) return false;
  if (!queue_.empty() || piece_head_ != piece_tail_) return true;
  for (const Incoming& in : incoming_) {
    if (in.used && in.claim != wire::kNoClaim && in.address != 0) return true;
  }
  return false;
}

void Qp::lose(Errc why) noexcept {
  if (state_ == QpState::dead) return;
  lost_why_ = why;
  busy_ = true;
  waits_for_peer_ = false;  // the next poll tells
  if (state_ == QpState::ready) state_ = QpState::draining;
}

bool Qp::drained() const noexcept {
  if (lane_ == nullptr || broken_) return true;
  // what waits for the peer waits for ever
  return (!lane_->request_rx.cells.ready() || waits_for_peer_) && !lane_->response_rx.cells.ready();
}

std::unique_ptr<link::Lane> Qp::finish(Errc why) noexcept {
  if (state_ == QpState::dead) return nullptr;
  if (lost_why_ != Errc::ok) why = lost_why_;
  // What was executed before a loss is a success. An end of our own making takes nothing in any
  // more: the application's buffers may be going away.
  if (state_ == QpState::draining && !broken_) learn_executed();
  state_ = QpState::dead;
  while (Wqe* wqe = pending_.front()) {
    retire_from_pending(*wqe);
    if (wqe->error == Errc::ok) wqe->error = why;
    complete(*wqe);
  }
  while (granted_.pop_front() != nullptr) {
  }
  for (Wqe*& offer : offers_) {
    if (offer != nullptr) end_offer(*offer, why);
  }
  while (Wqe* wqe = queue_.pop_front()) {
    --port_.queued;
    wqe->error = why;
    complete(*wqe);
  }
  for (uint32_t i = 0; i < incoming_.size(); ++i) {
    if (incoming_[i].used) finish_receive(i, why);
  }
  if (slot_ != nullptr) protect::SlotArray::give_back(std::exchange(slot_, nullptr));
  return std::move(lane_);
}

}  // namespace aperture::qp
