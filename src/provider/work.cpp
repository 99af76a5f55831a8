// Operations that wait for a counter: see work.hpp. How the calls make them: trigger.cpp,
// deferred_work.cpp.
#include "provider/work.hpp"

#include <cassert>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "nic/shared_receive.hpp"
#include "provider/errors.hpp"

namespace aperture::provider {

// ---- what waits for one counter -----------------------------------------------------------------

List<Work>& CounterWork::list_of(const Work& work) noexcept {
  return work.is_deferred ? deferred_ : triggered_;
}

bool CounterWork::is_met(const Work& work) const noexcept {
  const uint64_t value = counter_.value();
  return (work.is_deferred ? value + counter_.errors() : value) >= work.threshold;
}

// Behind those of the same threshold.
void CounterWork::add(Work& work) noexcept {
  assert(work.state == Work::State::waiting && !is_met(work));
  List<Work>& list = list_of(work);
  List<Work> later;
  while (Work* const last = list.back()) {
    if (last->threshold <= work.threshold) break;
    list.remove(last);
    later.push_front(last);
  }
  list.push_back(&work);
  while (Work* const next = later.pop_front()) list.push_back(next);
  settle();
}

void CounterWork::remove(Work& work) noexcept {
  list_of(work).remove(&work);
  settle();
}

void CounterWork::settle() noexcept {
  const bool any = !triggered_.empty() || !deferred_.empty();
  counter_.wake_fd.set_listener(any ? this : nullptr);
}

void CounterWork::on_arrival(bool from_call) noexcept {
  WorkQueue* queue = nullptr;
  for (;;) {
    Work* first = triggered_.front();
    if (first != nullptr && !is_met(*first)) first = nullptr;
    Work* const other = deferred_.front();
    if (other != nullptr && is_met(*other) &&
        (first == nullptr ||
         std::pair(other->threshold, other->number) < std::pair(first->threshold, first->number))) {
      first = other;
    }
    if (first == nullptr) break;
    queue = first->queue;
    list_of(*first).remove(first);
    queue->make_due(*first);
  }
  settle();
  if (queue != nullptr) queue->run_soon(from_call);
}

// ---- one operation ------------------------------------------------------------------------------

uint64_t Work::flags() const noexcept {
  switch (kind) {
    case Kind::send: return send.flags;
    case Kind::recv:
    case Kind::recv_multi: return recv.flags;
    case Kind::read:
    case Kind::write: return rma.flags;
    case Kind::atomic: return atomic.flags;
    default: return 0;
  }
}

size_t Work::pieces_of(size_t which) const noexcept {
  switch (kind) {
    case Kind::send: return send.iov_count;
    case Kind::recv:
    case Kind::recv_multi: return recv.iov_count;
    case Kind::read:
    case Kind::write: return rma.iov_count;
    case Kind::atomic:
      return which == 0   ? atomic.operand_count
             : which == 1 ? atomic.compare_count
                          : atomic.result_count;
    default: return 0;
  }
}

namespace {

// Of a receive of a shared context: where it completes now; else null.
const qp::Port* shared_port(const Work& w) noexcept {
  if (!w.is_receive() || w.body->shared_core == nullptr) return nullptr;
  return &w.body->shared_core->completes_now();
}

// The counter of the endpoint's that would have counted it.
qp::Counter* counter_of(const Work& w) noexcept {
  if (const qp::Port* port = shared_port(w)) return port->recv_counter;
  const bool reads = w.kind == Work::Kind::read ||
                     (w.kind == Work::Kind::atomic && w.atomic.kind != transport::AtomicKind::base);
  const CounterKind kind = w.is_receive()               ? kRecvCounter
                           : w.kind == Work::Kind::send ? kSendCounter
                           : reads                      ? kReadCounter
                                                        : kWriteCounter;
  Cntr* const counter = w.body->counters[kind];
  return counter != nullptr ? &counter->core : nullptr;
}

qp::Cq* queue_of(const Work& w) noexcept {
  if (const qp::Port* port = shared_port(w)) return port->rx_cq;
  FabricCq* const cq = w.is_receive() ? w.body->rx_cq : w.body->tx_cq;
  return cq != nullptr ? &cq->core : nullptr;
}

}  // namespace

void Work::on_done(const qp::Completion& entry) noexcept {
  assert(is_told() && (state == State::starting || state == State::started));
  if (staging == nullptr || !staging->brings_back()) return succeed(entry);
  outcome.entry = entry;
  begin_return(is_receive() ? entry.len : ~uint64_t{0});
}

// An error is always told, wherever the completion queue is, unless the endpoint is being closed.
void Work::on_failed(qp::CompletionError&& error) noexcept {
  assert(state == State::starting || state == State::started);
  if (staging == nullptr) return fail(std::move(error));
  if (error.err != Errc::truncated) {
    staging->stop();
    return fail(std::move(error));
  }
  outcome = std::move(error);
  begin_return(outcome.entry.len);
}

Work::Filled Work::filled() const noexcept {
  return staging != nullptr ? staging->filled() : Filled{};
}

void Work::on_arrived(uint64_t through) noexcept {
  if (staging == nullptr || !staging->brings_back()) return;
  staging->note_arrived(through, false);
  if (staging->has_more()) queue->watch(*this);
}

// What is short goes back at once: a driver takes as long for a copy as a few polls do. But nothing
// overtakes what came before it.
void Work::begin_return(uint64_t len) noexcept {
  if (body->closing) {
    staging->stop();
    return queue->end(*this);
  }
  const bool is_first = !queue->is_any_returning(*body);
  const bool at_once = is_first && staging->is_short(outcome.entry.len);
  staging->note_arrived(len, true);
  if (at_once) static_cast<void>(staging->bring_back());
  if (is_first && staging->is_over()) return end_return();
  queue->begin_return(*this);
}

void Work::end_return() noexcept {
  assert(staging->is_over());
  if (staging->has_failed()) {
    outcome.err = Errc::bad_buffer;
    static_cast<void>(no_throw([&] {
      outcome.sentence =
          "what came could not be copied to the device: its driver refused, or the "
          "memory is not what was registered any more";
    }));
  }
  if (outcome.err == Errc::ok) return succeed(outcome.entry);
  fail(std::move(outcome));
}

void Work::succeed(const qp::Completion& entry) noexcept {
  if (wants_entry) {
    qp::Completion own = entry;
    own.context = context;
    if (staging != nullptr && own.buf != nullptr) own.buf = buf;
    qp::Cq* const cq = queue_of(*this);
    if (cq != nullptr && cq->make_room(1)) cq->push(own);
  }
  if (wants_entry || is_staged) {
    if (qp::Counter* counter = counter_of(*this)) counter->add(1);
  }
  if (completes != nullptr) completes->core.add(1);
  queue->end(*this);
}

void Work::fail(qp::CompletionError&& error) noexcept {
  error.entry.context = context;
  if (staging != nullptr && error.entry.buf != nullptr) error.entry.buf = buf;
  if (!body->closing) {
    if (qp::Cq* const cq = queue_of(*this)) cq->push_error(std::move(error));
    qp::Counter* const counter = !is_deferred || wants_entry ? counter_of(*this) : nullptr;
    if (counter != nullptr) counter->add_error(1);
  }
  if (completes != nullptr) completes->core.add_error(1);
  queue->end(*this);
}

// ---- all of a domain's --------------------------------------------------------------------------

WorkQueue::~WorkQueue() {
  if (!begun_) return;
  nic::EngineGuard guard(engine_);
  assert(all_.empty());
  engine_.remove_pollable(*this);
}

Status WorkQueue::begin() noexcept {
  assert(!begun_);
  const Status s = engine_.add_pollable(*this, *this);
  begun_ = s.ok();
  return s;
}

Work* WorkQueue::take() noexcept {
  Work* const work = works_.take();
  if (work == nullptr) return nullptr;
  *work = Work();
  work->queue = this;
  return work;
}

void WorkQueue::add(Work& work) noexcept {
  assert(begun_ && work.trigger != nullptr);
  work.number = numbers_++;
  all_.push_back(&work);
  work.trigger->uses.add();
  if (work.completes != nullptr) work.completes->uses.add();
  if (work.target != nullptr) work.target->uses.add();
  if (work.trigger->work.is_met(work)) {
    make_due(work);
    run_soon(true);
  } else {
    work.trigger->work.add(work);
  }
}

Status WorkQueue::start_staged(Work& work) noexcept {
  assert(begun_ && work.is_staged && work.trigger == nullptr);
  all_.push_back(&work);
  work.state = Work::State::starting;
  if (work.filled().is_late) watch(work);
  const Status s = post(work);
  work.state = Work::State::started;
  if (!s) {
    take_out(work);
  } else if (work.over) {
    drop(work);
  } else if (!work.is_returning) {
    started_.push_back(&work);
  }
  return s;
}

// ---- copies of drivers' -------------------------------------------------------------------------

namespace {

using CopyingHook = BasicListHook<CopyingWork>;

}  // namespace

void WorkQueue::watch(Work& work) noexcept {
  assert(work.staging != nullptr);
  if (static_cast<CopyingHook&>(work).linked()) return;
  copying_.push_back(&work);
  engine_.on_posted();
}

void WorkQueue::begin_return(Work& work) noexcept {
  assert(!work.is_returning);
  if (work.state == Work::State::started) started_.remove(&work);
  if (static_cast<CopyingHook&>(work).linked()) copying_.remove(&work);
  work.is_returning = true;
  watch(work);
}

bool WorkQueue::is_any_returning(const EpBody& body, const Work* before) const noexcept {
  for (const Work* w = copying_.front(); w != nullptr && w != before; w = copying_.after(w)) {
    if (w->is_returning && w->body == &body) return true;
  }
  return false;
}

// A driver that copies at once does so here, a chunk of each operation with each poll.
bool WorkQueue::go_on_copying() noexcept {
  constexpr int kMostAtATime = 4;
  bool any = false;
  int left = kMostAtATime;
  for (Work *w = copying_.front(), *next = nullptr; w != nullptr && left > 0; w = next, --left) {
    next = copying_.after(w);
    w->staging->go_on();
    if (w->is_returning) {
      if (!w->staging->is_over() || is_any_returning(*w->body, w)) continue;
      w->end_return();
      any = true;
    } else if (!w->staging->has_more()) {
      copying_.remove(w);
    }
  }
  return any;
}

void WorkQueue::make_due(Work& work) noexcept {
  assert(work.state == Work::State::waiting);
  work.state = Work::State::due;
  due_.push_back(&work);
  blocked_ = false;
}

void WorkQueue::run_soon(bool from_call) noexcept {
  if (from_call) run();
  engine_.on_posted();  // whoever sleeps is woken for what is due, or was left by what ran
}

bool WorkQueue::poll(uint64_t) noexcept {
  const bool copied = !copying_.empty() && go_on_copying();
  if (due_.empty()) return copied;
  const uint64_t before = rounds_;
  run();
  return copied || (!blocked_ && rounds_ != before);
}

// What is started may move counters, and so make more due, behind the others.
void WorkQueue::run() noexcept {
  if (running_) return;
  running_ = true;
  blocked_ = false;
  const uint64_t round = ++rounds_;
  for (Work *w = due_.front(), *next = nullptr; w != nullptr; w = next) {
    EpBody* const body = w->body;
    const bool waits = body != nullptr && body->work_round == round;
    const bool gone = !waits && start(*w);
    next = due_.after(w);
    if (gone) {
      due_.remove(w);
      if (w->state == Work::State::started && !w->over) {
        started_.push_back(w);
      } else {
        drop(*w);
      }
    } else {
      assert(body != nullptr);  // a counter always has room
      blocked_ = true;
      body->work_round = round;
    }
  }
  running_ = false;
}

// False: there is no room now. Else it was posted, or has failed, and may be over.
bool WorkQueue::start(Work& work) noexcept {
  work.state = Work::State::starting;
  const Status s = post(work);
  if (s.error() == Errc::again) {
    work.state = Work::State::due;
    return false;
  }
  if (!s) fail(work, s.error());
  work.state = Work::State::started;
  work.over = work.over || !work.is_deferred || work.body == nullptr;
  return true;
}

Status WorkQueue::post(Work& w) noexcept {
  if (w.body == nullptr) {
    assert(w.target != nullptr);
    if (w.kind == Work::Kind::cntr_set) {
      w.target->core.set(w.value);
    } else {
      assert(w.kind == Work::Kind::cntr_add);
      w.target->core.add(w.value);
    }
    return {};
  }
  nic::Endpoint* const core = w.body->core.get();
  assert(core != nullptr);
  switch (w.kind) {
    case Work::Kind::send: return core->send(w.send);
    case Work::Kind::recv: return core->recv(w.recv);
    case Work::Kind::recv_multi: return core->recv_multi(w.recv, w.least_room);
    case Work::Kind::read: return core->read(w.rma);
    case Work::Kind::write: return core->write(w.rma);
    case Work::Kind::atomic: return core->atomic(w.atomic);
    case Work::Kind::cntr_set:
    case Work::Kind::cntr_add: break;
  }
  assert(false);  // those have no endpoint
  return Errc::invalid;
}

// It could not be posted, and its call has returned long ago.
void WorkQueue::fail(Work& work, Errc why) noexcept {
  APERTURE_WARN("an operation that waited for a counter could not be started: %s", describe(why));
  qp::CompletionError error;
  error.entry.context = work.context;
  error.entry.flags = work.flags();
  error.err = why;
  work.on_failed(std::move(error));
}

// What is told has come to its end, maybe before it was all started.
void WorkQueue::end(Work& work) noexcept {
  if (work.state == Work::State::starting) {
    work.over = true;
    return;
  }
  if (!work.is_returning) started_.remove(&work);
  drop(work);
}

// Of the lists of all, and of what is copied.
void WorkQueue::take_out(Work& work) noexcept {
  all_.remove(&work);
  if (static_cast<CopyingHook&>(work).linked()) copying_.remove(&work);
}

// It is in no other list.
void WorkQueue::drop(Work& work) noexcept {
  take_out(work);
  if (work.trigger != nullptr) work.trigger->uses.drop();
  if (work.completes != nullptr) work.completes->uses.drop();
  if (work.target != nullptr) work.target->uses.drop();
  give(&work);
}

// ---- taking it back -----------------------------------------------------------------------------

namespace {

bool is_queued(const Work& work) noexcept {
  return work.state == Work::State::waiting || work.state == Work::State::due;
}

}  // namespace

void WorkQueue::take_back(Work& work) noexcept {
  assert(is_queued(work) && !running_);
  if (work.state == Work::State::waiting) {
    work.trigger->work.remove(work);
  } else {
    due_.remove(&work);
  }
}

template <typename Which>
size_t WorkQueue::take_back_all(Which&& which) noexcept {
  size_t n = 0;
  for (Work *w = all_.front(), *next = nullptr; w != nullptr; w = next) {
    next = all_.after(w);
    if (!is_queued(*w) || !which(*w)) continue;
    take_back(*w);
    drop(*w);
    ++n;
  }
  return n;
}

Status WorkQueue::cancel(const fi_deferred_work* request) noexcept {
  const size_t n = take_back_all([request](const Work& w) { return w.request == request; });
  return n != 0 ? Status() : Status(Errc::no_entry);
}

void WorkQueue::flush(const Cntr* trigger) noexcept {
  take_back_all([trigger](const Work& w) {
    return w.is_deferred && (trigger == nullptr || w.trigger == trigger);
  });
}

// What is returning to a device is not copied any further, and not told of; what a driver copies
// now is waited for.
void WorkQueue::forget(const EpBody& body) noexcept {
  take_back_all([&body](const Work& w) { return w.body == &body; });
  for (Work *w = copying_.front(), *next = nullptr; w != nullptr; w = next) {
    next = copying_.after(w);
    if (w->body != &body || !w->is_returning) continue;
    w->staging->stop();
    drop(*w);
  }
}

Status WorkQueue::cancel(EpBody& body, void* context) noexcept {
  for (Work* w = all_.front(); w != nullptr; w = all_.after(w)) {
    if (w->body != &body || w->context != context) continue;
    if (w->state == Work::State::started) {
      return body.core->cancel(static_cast<qp::Told*>(w));
    }
    take_back(*w);
    w->state = Work::State::starting;  // and is over at once
    qp::CompletionError error;
    error.entry.flags = w->flags();
    error.err = Errc::canceled;
    w->on_failed(std::move(error));
    drop(*w);
    return {};
  }
  return Errc::no_entry;
}

}  // namespace aperture::provider
