// What the control thread does for an engine: see auto_progress.hpp.
#include "nic/auto_progress.hpp"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "nic/control_thread.hpp"
#include "nic/engine.hpp"

namespace aperture::nic {

namespace {

// While an application serves itself: each tick takes a turn of a core away from it.
constexpr uint64_t kSeldomTickNs = 8'000'000;
constexpr uint32_t kIdleTicks = 25;  // then it ticks no more until it is woken
// Once woken, it goes on until so long after its last work.
constexpr uint64_t kLingerNs = 50'000;
// Waits that a late application is not relied upon, at most, and those that halve it again.
constexpr uint32_t kMaxDistrust = 64;
constexpr uint32_t kPromptWaits = 64;

}  // namespace

Status AutoProgress::begin() noexcept {
  if (!wanted_) return {};
  auto thread = ControlThread::instance();
  if (!thread) return thread.error();
  assert(watch_ == 0 && timer_ == 0);
  Status status;
  (*thread)->run([&, control = *thread] {
    auto watch =
        control->watch(engine_.wakers().sleep_fd(), EPOLLIN, [this](uint32_t) { on_readable(); });
    status = watch.error();
    if (!watch) return;
    watch_ = *watch;
    ticking_ = true;
    tick_again();
  });
  return status;
}

void AutoProgress::end() noexcept {
  if (!wanted_) return;
  auto thread = ControlThread::instance();
  if (!thread) return;
  (*thread)->run([this, control = *thread] {
    control->unwatch(watch_);
    control->cancel_timer(timer_);
  });
}

// Who went to sleep and is woken again and again finds it ticking still, and wakes nobody.
void AutoProgress::start_ticking() noexcept {
  if (!wanted_) return;
  // relaxed: under the lock, as is whoever takes it back
  if (ticking_.load(std::memory_order_relaxed)) return;
  ticking_.store(true, std::memory_order_relaxed);
  auto thread = ControlThread::instance();
  if (!thread) return;
  if ((*thread)->is_current()) {  // what it posts to itself comes after what ~Engine has posted
    tick_again();
  } else {
    (*thread)->post([this] { tick_again(); });
  }
}

void AutoProgress::leave_to_application() noexcept {
  if (!wanted_) return;
  assert(skips_ <= distrust_ && distrust_ <= kMaxDistrust);
  if (skips_ != 0) {
    --skips_;
    note_rested();
    return;
  }
  if (++prompt_ >= kPromptWaits) {
    prompt_ = 0;
    distrust_ /= 2;
  }
  // relaxed: a hint
  if (!left_.load(std::memory_order_relaxed)) left_.store(true, std::memory_order_relaxed);
}

// relaxed: counts that are compared, and order nothing
void AutoProgress::note_rested() noexcept {
  rested_.store(told_.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

void AutoProgress::take_back() noexcept {
  if (!wanted_) return;
  note_rested();
  if (!left_.load(std::memory_order_relaxed)) return;  // relaxed: a hint
  left_.store(false, std::memory_order_relaxed);
  if (auto thread = ControlThread::instance()) (*thread)->post([this] { heed(true); });
}

// --- on the control thread ---

void AutoProgress::heed(bool heeded) noexcept {
  if (heeded == heeded_) return;
  heeded_ = heeded;
  auto thread = ControlThread::instance();
  if (thread) (*thread)->rewatch(watch_, heeded ? uint32_t{EPOLLIN} : 0);
}

void AutoProgress::tick_again() noexcept {
  if (timer_ != 0) return;
  assert(tick_ns_ >= kTickNs && tick_ns_ <= kSeldomTickNs);
  auto thread = ControlThread::instance();
  if (thread) timer_ = (*thread)->add_timer(now_ns() + tick_ns_, [this] { on_tick(); });
}

// Where the application has polled since it rested, or since we put the engine to sleep, it is
// there and has woken it: sleeping anew under its hands, each of its messages would ring. One that
// polls all the time leaves a ring where it is, for each tick to find: it is not there only if it
// has not polled since the tick before.
void AutoProgress::on_readable() noexcept {
  idle_ticks_ = 0;
  tick_ns_ = kTickNs;
  ticking_.store(true, std::memory_order_relaxed);  // relaxed: as in start_ticking()
  // relaxed, all: as in look_in()
  const uint64_t told = told_.load(std::memory_order_relaxed);
  const bool polls = told != polls_before_ && told != rested_.load(std::memory_order_relaxed);
  if (polls || left_.load(std::memory_order_relaxed)) {
    heed(false);
    rung_ = true;
    polls_seen_ = told;
  } else {
    step_in();
  }
  tick_again();
}

void AutoProgress::on_tick() noexcept {
  timer_ = 0;
  if (look_in()) tick_again();
}

// True: it goes on ticking.
bool AutoProgress::look_in() noexcept {
  // relaxed: a count that is compared with itself; it orders nothing
  const uint64_t told = told_.load(std::memory_order_relaxed);
  polls_before_ = std::exchange(polls_seen_, told);
  if (told != polls_before_) {
    idle_ticks_ = 0;
    rung_ = false;
    const bool left = left_.load(std::memory_order_relaxed);  // relaxed: a hint
    heed(!left);
    tick_ns_ = left ? std::min(2 * tick_ns_, kSeldomTickNs) : kTickNs;
    return true;
  }
  tick_ns_ = kTickNs;
  // somebody polls, if slowly, or is about to
  if (engine_.lock().is_waited_for() || !engine_.lock().try_lock()) return true;
  const bool resting = engine_.sleep().is_asleep();
  const bool rung = resting && !heeded_ && is_readable(engine_.wakers().sleep_fd());
  const bool late = rung && rung_;
  rung_ = rung;
  if (late) distrust();
  const bool goes_on = !resting || rung || ++idle_ticks_ <= kIdleTicks;
  ticking_.store(goes_on, std::memory_order_relaxed);  // relaxed: under the lock
  engine_.lock().unlock();
  if (late || !goes_on) heed(true);
  if (!resting || late) step_in();
  return goes_on;
}

// Lock held. A tick ago it had been rung already.
void AutoProgress::distrust() noexcept {
  left_.store(false, std::memory_order_relaxed);  // relaxed: a hint
  skips_ = distrust_ = std::min(2 * distrust_ + 1, kMaxDistrust);
  prompt_ = 0;
}

// Progresses in the application's place until there has been nothing to do for a while, then
// sleeps: until something makes sleep_fd() readable, or the application polls and stops again,
// which on_tick() finds.
void AutoProgress::step_in() noexcept {
  uint64_t until = now_ns() + kLingerNs;
  const uint64_t at_most = until + kTickNs;
  bool asleep = false;
  rung_ = false;
  for (uint64_t now = now_ns(); !asleep && now < at_most;) {
    {
      // kept until it is wanted: to take it from an application costs a heavy barrier
      const EngineGuard guard(engine_);
      do {
        engine_.poll();
        now = now_ns();
        if (now >= until) asleep = engine_.sleep().prepare();
      } while (!asleep && now < at_most && !engine_.lock().is_wanted());
    }
    // an application that waits comes first, however long it takes to get a processor
    for (; engine_.lock().is_waited_for() && now < at_most; now = now_ns()) ::sched_yield();
  }
  // relaxed: our own thread's polls
  polls_before_ = polls_seen_ = told_.load(std::memory_order_relaxed);
}

}  // namespace aperture::nic
