// The life of a queue pair and what a poll does: see qp.hpp.
#include "qp/qp.hpp"

#include <utility>

namespace aperture::qp {

namespace {

void put_permit(std::byte* body, uint64_t number, uint16_t flags) noexcept {
  wire::store(body, wire::Head::make(wire::Op::permit, 0, flags, number));
}

}  // namespace

Qp::~Qp() {
  finish(Errc::shut_down);
}

void Qp::attach(std::unique_ptr<link::Lane> lane) noexcept {
  assert(core_.state == QpState::connecting);
  core_.lane.attach(std::move(lane));
  core_.lane.wake_up();
  core_.one_sided.begin();
  core_.state = QpState::ready;
  ending_.begin();
  // pieces in flight are as many as there are request cells at most
  const Status begun = core_.pieces.begin(core_.lane->request_tx.cells.capacity());
  if (!begun) {
    ending_.lose(begun.error());
    return;
  }
  gate_.permit(core_.lane, core_.port.keys.accessors(),
               transport::kPermitReads | transport::kPermitWrites | core_.port.told_accesses(),
               put_permit);
  core_.busy = true;
}

// The messages of one cell at the head of the ring, as many as one poll takes, and their
// acknowledgement. What comes after the last look is left to the next poll: a message of a stream
// that has just come is no reason to take the slow path.
Qp::Lines Qp::poll_lines() noexcept {
  ring::ChannelRx& rx = core_.lane->request_rx;
  MessageSink& sink = *core_.port.sink;
  bool stopped = false;
  for (int budget = transport::kPollBudget; budget > 0 && rx.cells.ready(); --budget) {
    if (core_.awaits_end()) {
      // what the peer answers comes after the end of what it answers
      responses_.learn_executed();
      if (broken()) break;
    }
    const std::byte* body = rx.cells.body();
    // A stream: fetch what comes while this one is worked on. The first of a batch may be the only
    // one, and looking ahead of its sender would take the line away from it.
    if (budget != transport::kPollBudget) rx.cells.prefetch(transport::kPrefetchCells);
    wire::SoundHead head;
    stopped = !wire::read_line(body, head) || !sink.on_line(*this, head, body);
    if (stopped) break;
    rx.cells.advance(1);
  }
  return {core_.lane.acknowledge_requests(), stopped};
}

bool Qp::poll(uint64_t polls) noexcept {
  const bool any = progress(polls);
  if (ending_.is_over() && !ending_.is_access_over()) [[unlikely]]
    ending_.end_access();
  return any;
}

bool Qp::progress(uint64_t polls) noexcept {
  if (!core_.lane || broken()) return false;
  link::Lane& lane = *core_.lane.get();
  if ((polls & (transport::kLookEvery - 1)) == 0) {
    lane.request_rx.count_poll(polls);  // a cache line of the peer's
  }
  bool any = false;
  if (lane.response_rx.cells.ready()) any = responses_.poll();
  if (lane.request_rx.cells.ready()) {
    const Lines lines = poll_lines();
    if (broken()) return true;
    any = lines.any || any;
    if (lines.stopped) any = responder_.poll() || any;
  }
  if ((!core_.pending.empty() || !core_.pieces.empty()) &&
      (!core_.is_unhurried() || (polls & (transport::kSeldomPolls - 1)) == 0)) {
    acknowledge();
  }
  if (core_.replies_waiting) any = replies_.flush() || any;
  if (gate_.is_due()) gate_.tell(core_.lane, put_permit);
  if (core_.state != QpState::ready) return any;
  if (sender_.has_granted()) {
    any = sender_.push() || any;
    if (broken()) return any;
  }
  if (requester_.has_queued()) requester_.run();
  if (core_.incoming > 0 && core_.one_sided.is_allowed()) receiver_.pull_stalled();
  core_.update_pending();
  core_.busy = core_.has_more_to_do();
  return any;
}

void Qp::acknowledge() noexcept {
  responses_.learn_executed();
  direct_.claim_stalled_head();
}

void Qp::fall_asleep(uint64_t sleep_number) noexcept {
  if (!core_.lane) return;
  // what nobody waits for is acknowledged without a ring, and stays open as long as we sleep
  core_.lane.note_pending(core_.awaits_executed() || core_.incoming > 0);
  core_.lane.fall_asleep(
      {.for_executed = core_.awaits_executed(),
       .for_room = sender_.has_granted() || core_.replies_waiting || responder_.is_held(),
       .number = sleep_number});
}

bool Qp::anything_arrived() const noexcept {
  const transport::LaneEnd& lane = core_.lane;
  if (!lane || broken()) return false;
  const bool held = responder_.is_held();
  if ((lane->request_rx.cells.ready() && !held) || lane->response_rx.cells.ready()) return true;
  if (sender_.goes_on()) return true;
  if (core_.awaits_executed() && lane.has_moved(lane->request_tx)) return true;
  return (sender_.has_granted() || core_.replies_waiting || held) &&
         lane.has_moved(lane->response_tx);
}

bool Qp::needs_polling() const noexcept {
  if (core_.state != QpState::ready) return false;
  const Wqe* next = core_.queue.front();
  // its bytes come without a ring
  if (next != nullptr && next->kind == WqeKind::write && filled_of(*next).is_late) return true;
  if (!core_.one_sided.is_allowed()) return false;
  return direct_.may_claim_head() || (next != nullptr && direct_.may_go_soon(*next)) ||
         receiver_.could_pull();
}

bool Qp::needs_later_look() const noexcept {
  if (ending_.is_over()) return true;
  return core_.state == QpState::ready && (requester_.has_queued() || !core_.pieces.empty() ||
                                           core_.incoming > 0 || responder_.is_held());
}

void Qp::set_pressure(bool on) noexcept {
  if (core_.state != QpState::ready) return;
  if (on) core_.unasked_bytes = 0;  // until it is told, which may have to wait for room
  replies_.send(wire::Head::make(wire::Op::pressure, 0, 0, on ? 1 : 0));
}

std::unique_ptr<link::Lane> Qp::finish(Errc why) noexcept {
  if (core_.state == QpState::dead) return nullptr;
  why = ending_.why_lost(why);
  // What was executed before a loss is a success. An end of our own making takes nothing in any
  // more: the application's buffers may be going away.
  if (core_.state == QpState::draining && !broken()) responses_.learn_executed();
  core_.state = QpState::dead;
  if (core_.lane) gate_.shut(core_.lane, core_.port.keys.accessors());
  pending_.end_all(why);
  sender_.end_all(why);
  requester_.end_all(why);
  receiver_.end_all(why);
  APERTURE_DEBUG_ASSERT(!core_.has_pending() && core_.incoming == 0);
  if (core_.lane) core_.one_sided.end();
  return core_.lane.release();
}

}  // namespace aperture::qp
