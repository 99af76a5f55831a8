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
  access_over_ = false;
  // pieces in flight are as many as there are request cells at most
  const Status begun = core_.pieces.begin(core_.lane->request_tx.cells.capacity());
  if (!begun) {
    lose(begun.error());
    return;
  }
  gate_.permit(core_.lane, core_.port.keys,
               transport::kPermitReads | transport::kPermitWrites | core_.port.told_accesses(),
               put_permit);
  core_.busy = true;
}

// The messages of one cell at the head of the ring, and their acknowledgement. False: there are
// none.
bool Qp::poll_lines() noexcept {
  ring::ChannelRx& rx = core_.lane->request_rx;
  MessageSink& sink = *core_.port.sink;
  for (int budget = transport::kPollBudget; budget > 0 && rx.cells.ready(); --budget) {
    if (core_.awaits_end()) {
      // what the peer answers comes after the end of what it answers
      responses_.learn_executed();
      if (broken()) break;
    }
    const std::byte* body = rx.cells.body();
    const wire::Head head = wire::load_head(body);
    // A stream: fetch what comes while this one is worked on. The first of a batch may be the only
    // one, and looking ahead of its sender would take the line away from it.
    if (budget != transport::kPollBudget) rx.cells.prefetch(transport::kPrefetchCells);
    if (!wire::is_line(head) || !sink.on_line(*this, head, body)) break;
    rx.cells.advance(1);
  }
  return core_.lane.acknowledge_requests();
}

bool Qp::poll(uint64_t polls) noexcept {
  const bool any = progress(polls);
  if (is_over() && !access_over_) [[unlikely]]
    end_access();
  return any;
}

// What waits in the ring is executed, and nothing is looked at that only time moves.
void Qp::serve_peer() noexcept {
  core_.one_sided.forget_copied();
  if (core_.lane && core_.lane->request_rx.cells.ready()) poll(1);
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
    const bool lines = poll_lines();
    if (broken()) return true;
    any = responder_.poll() || lines || any;
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
    if (core_.state != QpState::ready) return any;
  }
  if (!core_.queue.empty()) run_queue();
  if (core_.incoming > 0 && core_.one_sided.is_allowed()) receiver_.pull_stalled();
  core_.update_pending();
  core_.busy = core_.has_more_to_do();
  return any;
}

void Qp::acknowledge() noexcept {
  responses_.learn_executed();
  if (!core_.pending.empty() || !core_.queue.empty()) direct_.claim_stalled_head();
}

// Puts as much of the operation into the ring as there is room for. True: it needs the send queue
// no longer (and may be gone).
bool Qp::start(Wqe& wqe) noexcept {
  const bool is_rma = wqe.kind != WqeKind::send;
  if (wqe.fence && core_.under_way() && !(is_rma && wqe.in_ring)) return false;
  if (!is_rma) return sends_.put(wqe);
  return is_atomic(wqe.kind) ? atomics_.put(wqe) : rma_.put(wqe);
}

void Qp::run_queue() noexcept {
  assert(core_.state == QpState::ready);
  while (Wqe* wqe = core_.queue.front()) {
    // out of the list first: start() moves it to another one, or gives it back
    core_.queue.remove(wqe);
    if (!start(*wqe)) {
      core_.queue.push_front(wqe);
      return;
    }
    core_.leave_queue();
  }
}

Status Qp::cancel(void* context) noexcept {
  List<Wqe>& queue = core_.queue;
  for (Wqe* wqe = queue.front(); wqe != nullptr; wqe = queue.after(wqe)) {
    if (wqe->context != context || wqe->in_ring || wqe->done != 0) continue;
    queue.remove(wqe);
    core_.leave_queue();
    wqe->error = Errc::canceled;
    pending_.complete(*wqe);
    return {};
  }
  return Errc::no_entry;
}

void Qp::fall_asleep() noexcept {
  if (!core_.lane) return;
  // what nobody waits for is acknowledged without a ring, and stays open as long as we sleep
  core_.lane.note_pending(core_.awaits_executed() || core_.incoming > 0);
  core_.lane.fall_asleep(
      {.for_executed = core_.awaits_executed(),
       .for_room = sender_.has_granted() || core_.replies_waiting || responder_.is_held()});
}

bool Qp::anything_arrived() const noexcept {
  const transport::LaneEnd& lane = core_.lane;
  if (!lane || broken()) return false;
  const bool held = responder_.is_held();
  if ((lane->request_rx.cells.ready() && !held) || lane->response_rx.cells.ready()) return true;
  if (core_.awaits_executed() && lane.has_moved(lane->request_tx)) return true;
  return (sender_.has_granted() || core_.replies_waiting || held) &&
         lane.has_moved(lane->response_tx);
}

bool Qp::needs_polling() const noexcept {
  if (core_.state != QpState::ready || !core_.one_sided.is_allowed()) return false;
  const Wqe* next = core_.queue.front();
  return direct_.may_claim_head() || (next != nullptr && direct_.may_go_soon(*next)) ||
         receiver_.could_pull();
}

bool Qp::needs_later_look() const noexcept {
  if (is_over()) return true;
  return core_.state == QpState::ready &&
         (has_queued() || !core_.pieces.empty() || core_.incoming > 0 || responder_.is_held());
}

void Qp::set_pressure(bool on) noexcept {
  if (core_.state != QpState::ready) return;
  if (on) core_.unasked_bytes = 0;  // until it is told, which may have to wait for room
  replies_.send(wire::Head::make(wire::Op::pressure, 0, 0, on ? 1 : 0));
}

void Qp::lose(Errc why) noexcept {
  assert(why != Errc::ok);
  if (core_.state == QpState::dead) return;
  lost_why_ = why;
  core_.busy = true;
  execution_.clear_wait();  // the next poll tells
  if (core_.state == QpState::ready) core_.state = QpState::draining;
}

bool Qp::drained() const noexcept {
  if (!core_.lane || broken()) return true;
  // what waits for the peer waits for ever
  return (!core_.lane->request_rx.cells.ready() || execution_.waits_for_peer()) &&
         !core_.lane->response_rx.cells.ready();
}

std::unique_ptr<link::Lane> Qp::finish(Errc why) noexcept {
  if (core_.state == QpState::dead) return nullptr;
  if (lost_why_ != Errc::ok) why = lost_why_;
  // What was executed before a loss is a success. An end of our own making takes nothing in any
  // more: the application's buffers may be going away.
  if (core_.state == QpState::draining && !broken()) responses_.learn_executed();
  core_.state = QpState::dead;
  if (core_.lane) gate_.shut(core_.lane, core_.port.keys);
  pending_.end_all(why);
  sender_.end_all(why);
  while (Wqe* wqe = core_.queue.pop_front()) {
    core_.leave_queue();
    if (wqe->error == Errc::ok) wqe->error = why;
    pending_.complete(*wqe);
  }
  receiver_.end_all(why);
  if (core_.lane) core_.one_sided.end();
  return core_.lane.release();
}

}  // namespace aperture::qp
