// The progress engine: see engine.hpp.
#include "nic/engine.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "nic/control_thread.hpp"
#include "protect/rights.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

namespace {

// So many queue pairs are looked at in every poll; scanning 256 would more than double the latency.
constexpr size_t kHotRings = 16;
// Each poll looks at the hot rings; everything else about a queue pair (the peer's view of our
// polls, what only time moves) is due every so many polls, a power of two.
constexpr uint64_t kLookEvery = 16;
// A hot one that had nothing for so many polls makes place, if there are more than kHotRings.
constexpr uint32_t kIdlePolls = 1024;
// Once woken, the control thread goes on until so long after its last work.
constexpr uint64_t kLingerNs = 50'000;
constexpr uint64_t kTickNs = 2'000'000;

void drain(int fd) noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(fd, &count, sizeof count);
}

void signal(int fd) noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(fd, &one, sizeof one);
}

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
  const bool due = (++polls_ & (kLookEvery - 1)) == 0;
  for (size_t i = 0; i < hot_; ++i) {
    Driven& d = driven_[i];
    const qp::Qp::Look look = due ? qp::Qp::Look::poll : d.qp->look();
    if (look == qp::Qp::Look::poll) [[unlikely]] {
      if (!drive(i)) break;  // the list has changed: the rest comes with the next poll
    } else {
      d.idle_polls = look == qp::Qp::Look::taken ? 0 : d.idle_polls + 1;
    }
  }
  if (hot_ < driven_.size() || hot_ > kHotRings) [[unlikely]]
    look_at_a_cold_one();
  // relaxed: the control thread only wants to know whether it moves
  if (auto_progress_) polls_told_.store(polls_, std::memory_order_relaxed);
}

// Drives one; what is over goes to its owner. False: the list has changed.
bool Engine::drive(size_t at) noexcept {
  Driven& d = driven_[at];
  d.idle_polls = d.qp->poll(polls_) ? 0 : d.idle_polls + 1;
  if (!d.qp->needs_wind_up()) [[likely]]
    return true;
  const Driven gone = d;  // wind_up() takes it out of driven_
  gone.owner->wind_up(*gone.qp);
  return false;
}

// The next cold one in turn becomes hot if it had work; an idle hot one makes place.
void Engine::look_at_a_cold_one() noexcept {
  if (next_cold_ < hot_ || next_cold_ >= driven_.size()) next_cold_ = hot_;
  const size_t looked_at = next_cold_++;
  if (looked_at < driven_.size() && !drive(looked_at)) return;
  if (looked_at >= hot_ && looked_at < driven_.size()) {
    const Driven& d = driven_[looked_at];
    if (d.idle_polls == 0 || d.qp->has_pending()) {
      std::swap(driven_[looked_at], driven_[hot_]);
      ++hot_;
    }
  }
  if (hot_ <= kHotRings) return;
  const size_t at = polls_ % hot_;
  if (driven_[at].idle_polls < kIdlePolls || driven_[at].qp->has_pending()) return;
  std::swap(driven_[at], driven_[hot_ - 1]);
  --hot_;
}

Status Engine::add_qp(qp::Qp& qp, Owner& owner) noexcept {
  try {
    driven_.push_back({&qp, &owner, 0});
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  std::swap(driven_.back(), driven_[hot_]);
  ++hot_;
  if (asleep_) wake_up();
  return {};
}

void Engine::remove_qp(qp::Qp& qp) noexcept {
  for (size_t i = 0; i < driven_.size(); ++i) {
    if (driven_[i].qp != &qp) continue;
    if (i < hot_) {
      std::swap(driven_[i], driven_[hot_ - 1]);
      i = --hot_;
    }
    std::swap(driven_[i], driven_.back());
    driven_.pop_back();
    return;
  }
}

bool Engine::prepare_to_sleep() noexcept {
  drain(doorbell_.get());
  for (Driven& d : driven_) {
    if (d.qp->needs_polling()) return false;
  }
  for (Driven& d : driven_) d.qp->set_consumer_state(ring::ConsumerState::asleep);
  asleep_ = true;
  heavy_barrier();  // pairs with the producers' light_barrier() in ChannelTx::must_ring
  bool any = has_posted_.load(std::memory_order_acquire);
  for (Driven& d : driven_) any = any || d.qp->anything_arrived() || d.qp->needs_wind_up();
  if (any) wake_up();
  return !any;
}

void Engine::wake_up() noexcept {
  asleep_ = false;
  for (Driven& d : driven_) d.qp->set_consumer_state(ring::ConsumerState::hot);
  if (!auto_progress_) return;
  auto thread = ControlThread::instance();
  if (thread && !(*thread)->is_current()) {
    (*thread)->post([this, control = *thread] {
      if (timer_ == 0) timer_ = control->add_timer(now_ns() + kTickNs, [this] { on_tick(); });
    });
  }
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
  signal(doorbell_.get());  // always: whether it sleeps is not ours to read, and this is rare
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
    timer_ = control->add_timer(now_ns() + kTickNs, [this] { on_tick(); });
  });
}

void Engine::on_tick() noexcept {
  timer_ = 0;
  // relaxed: a count that is compared with itself; it orders nothing
  const uint64_t told = polls_told_.load(std::memory_order_relaxed);
  if (told == polls_seen_) {
    on_doorbell();
    return;
  }
  polls_seen_ = told;
  if (auto thread = ControlThread::instance()) {
    timer_ = (*thread)->add_timer(now_ns() + kTickNs, [this] { on_tick(); });
  }
}

// Drives in the application's place until there has been nothing to do for a while, then sleeps:
// until the doorbell rings, or the application polls and stops again (wake_up() sets the timer).
void Engine::on_doorbell() noexcept {
  uint64_t until = now_ns() + kLingerNs;
  const uint64_t at_most = until + kTickNs;
  bool asleep = false;
  while (!asleep && now_ns() < at_most) {
    const EngineGuard guard(*this);
    poll();
    if (now_ns() >= until) asleep = prepare_to_sleep();
  }
  polls_seen_ = polls_told_.load(std::memory_order_relaxed);  // relaxed: our own thread's polls
  if (asleep || timer_ != 0) return;
  if (auto thread = ControlThread::instance()) {
    timer_ = (*thread)->add_timer(now_ns() + kTickNs, [this] { on_tick(); });
  }
}

}  // namespace aperture::nic
