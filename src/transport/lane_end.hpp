// One end of a lane, as both families of queue pairs use it: publishing, acknowledging, sleep, and
// the end by a broken protocol. Bytes behind its rings: payload_end.hpp.
//
// What is published is told in the same function: publish_request(), publish_response(),
// acknowledge_requests() and acknowledge_responses() ring the other side's doorbell if it sleeps.
// put_request() alone leaves that to its caller.
// No queue pair stores a ready mark or `consumed` but through this file; a link that carries
// records by itself stores those of what has arrived. Guarded by the engine's lock.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/barrier.hpp"
#include "link/lane.hpp"
#include "transport/claim.hpp"
#include "transport/payload_end.hpp"
#include "transport/tuning.hpp"

namespace aperture::transport {

class LaneEnd {
 public:
  explicit operator bool() const noexcept { return lane_ != nullptr; }
  link::Lane* get() const noexcept { return lane_.get(); }
  link::Lane* operator->() const noexcept { return lane_.get(); }

  void attach(std::unique_ptr<link::Lane> lane) noexcept {
    assert(lane_ == nullptr && lane != nullptr);
    lane_ = std::move(lane);
    broken_ = false;
    fences_ = true;
    fenced_ = rings_ = 0;
    rung_at_ = 0;
    lane_->request_tx.promise_fences(ring::FencePromise::given);
    lane_->on_attached();
  }
  std::unique_ptr<link::Lane> release() noexcept {
    if (lane_ != nullptr) lane_->on_released();
    return std::move(lane_);
  }

  // --- publishing ---

  // The request whose body is filled, n_cells of it.
  void publish_request(uint32_t n_cells) noexcept {
    if (put_request(n_cells)) [[unlikely]]
      tell_of_request();
  }
  // The two steps of that, for whom a call in the middle of his way would cost: true, and
  // tell_of_request() is due, at the end of the caller.
  [[nodiscard, gnu::always_inline]] bool put_request(uint32_t n_cells) noexcept {
    link::Lane& lane = *lane_;  // asked for once: what is published might be anything to a compiler
    lane.request_tx.cells.publish(n_cells);
    return fences_ || lane.request_tx.must_ring();
  }
  void tell_of_request() noexcept { wake_consumer(lane_->request_tx); }
  void publish_response(uint32_t n_cells) noexcept {
    link::Lane& lane = *lane_;
    lane.response_tx.cells.publish(n_cells);
    wake_consumer(lane.response_tx);
  }
  // Everything before the head of the request ring is executed. False: that was told before.
  bool acknowledge_requests() noexcept {
    ring::ChannelRx& rx = lane_->request_rx;
    if (rx.unpublished() == 0) return false;
    rx.publish_consumed();
    lane_->request_tx.cells.note_answer();
    // the requester may sleep until its operation is acknowledged
    wake_acknowledged(lane_->response_tx);
    return true;
  }
  bool acknowledge_responses() noexcept {
    ring::ChannelRx& rx = lane_->response_rx;
    if (rx.unpublished() == 0) return false;
    rx.publish_consumed();
    // whoever waits for room in its response ring may sleep
    wake_acknowledged(lane_->request_tx);
    return true;
  }

  // --- bytes behind the rings ---

  // For one call.
  PayloadEnd payload() noexcept { return {*lane_, moved_bytes_}; }
  // The bytes that the peer has had us copy so far, out of the rings and into those of responses: a
  // count, to be compared with a later one (kPollBytes). It is ours: positions in the rings are the
  // peer's to choose.
  uint64_t moved_for_peer() const noexcept { return moved_bytes_; }

  // --- responses, and what was executed ---

  // Takes the responses that are there, as many as one poll may: take(body) executes one and says
  // how many cells it has; 0: no sound peer says that. True: there was one.
  template <typename Take>
  bool take_responses(Take&& take) noexcept {
    ring::ChannelRx& rx = lane_->response_rx;
    bool any = false;
    const uint64_t moved_before = moved_bytes_;
    for (int budget = kPollBudget; budget > 0 && rx.cells.ready() && !broken_; --budget) {
      const uint32_t n_cells = take(rx.cells.body());
      if (n_cells == 0) [[unlikely]] {
        break_protocol("an unknown response");
        return true;
      }
      rx.cells.advance(n_cells);
      any = true;
      if (rx.unpublished() >= kAckCells / 4) acknowledge_responses();
      if (moved_bytes_ - moved_before >= kPollBytes) break;
    }
    if (any) acknowledge_responses();
    return any;
  }
  // How far the other side has executed our requests. Refusals and results were stored before
  // `consumed` (docs/adr/0002): all of them are taken first, or a refused operation would end as a
  // success. They are a ring full at most.
  template <typename Poll>
  uint64_t executed(Poll&& poll_responses) noexcept {
    const uint64_t consumed = lane_->request_tx.refresh();
    const ring::CellReader& responses = lane_->response_rx.cells;
    const uint64_t at_most = responses.pos() + lane_->response_tx.cells.capacity();
    while (!broken_ && responses.ready() && responses.pos() <= at_most) poll_responses();
    return consumed;
  }
  // May the request at the head of the ring be executed, which its initiator might have claimed?
  ClaimVerdict may_execute() noexcept {
    return claim_verdict(lane_->request_rx.words(), lane_->request_rx.cells.pos(),
                         lane_->fence_always);
  }

  // --- polling and sleep ---

  void wake_up() noexcept {
    if (lane_ == nullptr) return;
    lane_->request_rx.set_state(ring::ConsumerState::hot);
    lane_->response_rx.set_state(ring::ConsumerState::hot);
    sleeps_lightly_ = true;
  }
  // Records ring the doorbell from now on; what else does:
  struct Sleep {
    bool for_executed;                    // the execution of our requests, which somebody waits for
    bool for_room;                        // room in the response ring
    uint64_t number = ring::kUnnumbered;  // of the engine's sleep
  };
  // Who is woken for what nobody asks about sleeps again at once, and has disturbed a core twice.
  // A ring more than half full counts as asked about: its room will be wanted.
  void fall_asleep(Sleep sleep) noexcept {
    assert(lane_ != nullptr);  // whoever knows what it waits for has asked its lane
    ring::ChannelTx& tx = lane_->request_tx;
    // relaxed: a hint. What has been seen of it stays as it is: has_moved() asks for the rest
    const uint64_t consumed = tx.words().consumed.load(std::memory_order_relaxed);
    sleeps_lightly_ = sleep.for_executed || light_sleeps_ != 0 ||
                      tx.cells.pos() - consumed > tx.cells.capacity() / 2;
    if (light_sleeps_ != 0) --light_sleeps_;
    lane_->request_rx.set_state(asleep(sleep.for_room), sleep.number);
    lane_->response_rx.set_state(asleep(sleeps_lightly_), sleep.number);
  }
  // Asked while asleep: what was posted meanwhile is waited for, and its execution would not ring.
  bool sleeps_too_deep(bool for_executed) noexcept {
    if (lane_ == nullptr || sleeps_lightly_ || !for_executed) return false;
    light_sleeps_ = kLightSleeps;  // who posts so now does so again
    return true;
  }
  // No heavy barrier is needed to go to sleep: the producer fences. Asked after our own fence.
  bool producer_fences() const noexcept {
    return lane_ == nullptr || lane_->request_rx.producer_fences();
  }
  // Acknowledgements and room ring the doorbell too, without a cell.
  // SYNC POINT: channel-consumed: only looked at here, refresh() acts on it
  static bool has_moved(ring::ChannelTx& tx) noexcept {
    return tx.words().consumed.load(std::memory_order_acquire) > tx.consumed_seen();
  }
  // Whether something of ours waits for the other side: a hint for the watch over silent peers.
  void note_pending(bool pending) noexcept {
    const uint32_t now = pending ? 1 : 0;
    // relaxed: a hint
    if (lane_->pending.load(std::memory_order_relaxed) == now) return;
    lane_->pending.store(now, std::memory_order_relaxed);
    if (pending && lane_->watch != nullptr) lane_->watch->on_pending();
  }

  // --- the end ---

  // The peer has said what no sound peer says: nothing more is taken from this lane.
  void break_protocol(const char* what) noexcept;
  // The same without a word: the queue pair is about to end.
  void cease() noexcept { broken_ = true; }
  bool broken() const noexcept { return broken_; }

 private:
  static ring::ConsumerState asleep(bool for_all) noexcept {
    return for_all ? ring::ConsumerState::asleep : ring::ConsumerState::asleep_for_records;
  }
  void wake_consumer(ring::ChannelTx& tx) noexcept {
    if (fences_) [[unlikely]]
      fence();
    if (tx.must_ring()) [[unlikely]]
      ring_consumer(tx);
  }
  void wake_acknowledged(ring::ChannelTx& tx) noexcept {
    if (fences_) [[unlikely]]
      fence();
    if (tx.must_ring_for_acknowledgement()) [[unlikely]]
      ring_consumer(tx);
  }
  // Between publishing and looking at the consumer's state: a consumer that sleeps often relies on
  // it, one that polls has no use for it.
  [[gnu::noinline]] void fence() noexcept;
  [[gnu::cold]] void ring_consumer(ring::ChannelTx& asleep) noexcept;

  std::unique_ptr<link::Lane> lane_;
  uint64_t moved_bytes_ = 0;
  bool broken_ = false;
  bool fences_ = true;          // as promised to the consumer
  bool sleeps_lightly_ = true;  // the execution of our requests rings
  uint32_t fenced_ = 0;         // publications with a fence since the consumer was last rung
  uint32_t rings_ = 0;          // without a promise, and with few publications between them
  uint64_t rung_at_ = 0;        // publications when it last was
  uint32_t light_sleeps_ = 0;   // to come
};

}  // namespace aperture::transport
