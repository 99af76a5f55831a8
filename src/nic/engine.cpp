// The progress engine: see engine.hpp.
#include "nic/engine.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "nic/control_thread.hpp"
#include "protect/rights.hpp"

namespace aperture::nic {

namespace {

// Each poll looks at the hot rings; everything else about a queue pair (the peer's view of our
// polls, what only time moves) is due every so many polls, a power of two.
constexpr uint64_t kLookEvery = 16;
// Once woken, the control thread goes on until so long after its last work.
constexpr uint64_t kLingerNs = 50'000;
constexpr uint64_t kTickNs = 2'000'000;
constexpr uint32_t kIdleTicks = 25;  // then it ticks no more until it is woken

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const Options& options) noexcept {
  auto contact = Contact::instance();
  if (!contact) return contact.error();
  UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) return errc_from_errno(errno);
  auto* engine = new (std::nothrow) Engine(options, **contact, move_high(std::move(doorbell)));
  if (engine == nullptr) return Errc::no_memory;
  if (engine->auto_progress_) engine->begin_watch();
  return std::unique_ptr<Engine>(engine);
}

Engine::Engine(const Options& options, Contact& contact, UniqueFd doorbell) noexcept
    : lock_(options.threaded || options.auto_progress),
      // where a lock is there anyway, a target that never polls shall not hang its peers
      auto_progress_(options.threaded || options.auto_progress),
      contact_(contact),
      keys_(contact.keys()),
      domain_(protect::new_domain()),
      doorbell_(std::move(doorbell)) {}

Engine::~Engine() {
  if (!auto_progress_) return;
  auto thread = ControlThread::instance();
  if (!thread) return;
  (*thread)->run([this, control = *thread] {
    control->unwatch(watch_);
    control->cancel_timer(timer_);
  });
}

void Engine::poll() noexcept {
  if (asleep_) [[unlikely]]
    wake_up();
  // SYNC POINT: engine-posted: what was posted before the flag is in posted_
  if (has_posted_.load(std::memory_order_acquire)) [[unlikely]]
    run_posted();
  const uint64_t polls = ++polls_;
  const bool due = (polls & (kLookEvery - 1)) == 0;
  if (!driven_.empty()) driven_.poll(polls, due);
  qps_.poll(polls, due);
  // relaxed: the control thread only wants to know whether it moves
  if (auto_progress_) polls_told_.store(polls, std::memory_order_relaxed);
}

Status Engine::add_qp(qp::Qp& qp, Owner& owner) noexcept {
  if (Status s = qps_.add(qp, owner); !s) return s;
  if (asleep_) wake_up();
  return {};
}

void Engine::remove_qp(qp::Qp& qp) noexcept {
  qps_.remove(qp);
}

Status Engine::add_driven(link::Driven& driven, DrivenOwner& owner) noexcept {
  if (Status s = driven_.add(driven, owner); !s) return s;
  if (asleep_) wake_up();
  return {};
}

void Engine::remove_driven(link::Driven& driven) noexcept {
  driven_.remove(driven);
}

bool Engine::prepare_to_sleep() noexcept {
  drain_eventfd(doorbell_.get());
  if (qps_.any_needs_polling() || driven_.any_needs_polling()) return false;
  qps_.set_consumer_state(ring::ConsumerState::asleep);
  driven_.set_consumer_state(ring::ConsumerState::asleep);
  asleep_ = true;
  heavy_barrier();  // pairs with the producers' light_barrier() in ChannelTx::must_ring
  bool any = has_posted_.load(std::memory_order_acquire);
  any = any || qps_.any_has_work() || driven_.any_has_work();
  if (any) wake_up();
  return !any;
}

void Engine::wake_up() noexcept {
  asleep_ = false;
  qps_.set_consumer_state(ring::ConsumerState::hot);
  driven_.set_consumer_state(ring::ConsumerState::hot);
  if (!auto_progress_ || ticking_) return;
  // who went to sleep and is woken again and again finds it ticking still, and wakes nobody
  ticking_ = true;
  auto thread = ControlThread::instance();
  if (thread) (*thread)->post([this] { tick_again(); });
}

void Engine::begin_wait() noexcept {
  if (waits_++ != 0 || !auto_progress_) return;
  if (auto thread = ControlThread::instance()) (*thread)->heed(watch_, doorbell_.get(), false);
}

void Engine::end_wait() noexcept {
  if (--waits_ != 0 || !auto_progress_) return;
  if (auto thread = ControlThread::instance()) (*thread)->heed(watch_, doorbell_.get(), true);
}

void Engine::post(std::function<void()> fn) noexcept {
  {
    const std::lock_guard guard(posted_mutex_);
    try {
      posted_.push_back(std::move(fn));
    } catch (const std::bad_alloc&) {
      return;
    }
    // SYNC POINT: engine-posted
    has_posted_.store(true, std::memory_order_release);
  }
  // always: whether it sleeps is not ours to read, and this is rare
  signal_eventfd(doorbell_.get());
}

void Engine::run_posted() noexcept {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard guard(posted_mutex_);
    work.swap(posted_);
    has_posted_.store(false, std::memory_order_relaxed);  // relaxed: under the mutex
  }
  for (auto& fn : work) fn();
}

// --- automatic progress: everything below runs on the control thread ---

void Engine::begin_watch() noexcept {
  auto thread = ControlThread::instance();
  if (!thread) return;
  (*thread)->run([this, control = *thread] {
    auto watch = control->watch(doorbell_.get(), EPOLLIN, [this](uint32_t) { on_doorbell(); });
    if (watch) watch_ = *watch;
    ticking_ = true;  // nobody else has this engine yet
    tick_again();
  });
}

void Engine::tick_again() noexcept {
  if (timer_ != 0) return;
  auto thread = ControlThread::instance();
  if (thread) timer_ = (*thread)->add_timer(now_ns() + kTickNs, [this] { on_tick(); });
}

void Engine::on_tick() noexcept {
  timer_ = 0;
  // relaxed: a count that is compared with itself; it orders nothing
  const uint64_t told = polls_told_.load(std::memory_order_relaxed);
  if (told != polls_seen_) {
    polls_seen_ = told;
    idle_ticks_ = 0;
    tick_again();
    return;
  }
  if (!lock_.try_lock()) {  // somebody polls, if slowly
    tick_again();
    return;
  }
  const bool resting = asleep_;
  if (resting && ++idle_ticks_ > kIdleTicks) ticking_ = false;
  const bool goes_on = ticking_;
  lock_.unlock();
  if (!goes_on) return;
  if (!resting) drive();
  tick_again();
}

void Engine::on_doorbell() noexcept {
  idle_ticks_ = 0;
  drive();
  {
    const EngineGuard guard(*this);
    if (!ticking_ && asleep_) return;
    ticking_ = true;
  }
  tick_again();
}

// Drives in the application's place until there has been nothing to do for a while, then sleeps:
// until the doorbell rings, or the application polls and stops again (on_tick() sees that).
void Engine::drive() noexcept {
  uint64_t until = now_ns() + kLingerNs;
  const uint64_t at_most = until + kTickNs;
  bool asleep = false;
  while (!asleep && now_ns() < at_most) {
    const EngineGuard guard(*this);
    poll();
    if (now_ns() >= until) asleep = prepare_to_sleep();
  }
  polls_seen_ = polls_told_.load(std::memory_order_relaxed);  // relaxed: our own thread's polls
}

}  // namespace aperture::nic
