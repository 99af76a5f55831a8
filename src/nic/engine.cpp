// The progress engine: see engine.hpp.
#include "nic/engine.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <new>
#include <utility>

#include "base/barrier.hpp"
#include "base/doorbell.hpp"
#include "base/event_fd.hpp"
#include "protect/rights.hpp"
#include "transport/tuning.hpp"

namespace aperture::nic {

namespace {

// Asleep, what waits for a peer that may not ring is looked at after the first time, and each time
// after twice as long, up to the second.
constexpr uint64_t kLookAgainNs = 2'000'000;
constexpr uint64_t kLookAtLeastNs = 16'000'000;

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const Options& options) noexcept {
  auto contact = Contact::instance();
  if (!contact) return contact.error();
  Result<UniqueFd> doorbell = make_doorbell();
  if (!doorbell) return doorbell.error();
  ParentOnlyFd sleep(move_high(UniqueFd(::epoll_create1(EPOLL_CLOEXEC))));
  if (!sleep) return errc_from_errno(errno);
  ParentOnlyFd alarm(
      move_high(UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))));
  if (!alarm) return errc_from_errno(errno);
  std::unique_ptr<Engine> engine(new (std::nothrow) Engine(options, **contact, *std::move(doorbell),
                                                           std::move(sleep), std::move(alarm)));
  if (engine == nullptr) return Errc::no_memory;
  if (Status s = engine->wake_on(engine->doorbell_fd()); !s) return s.error();
  if (Status s = engine->wake_on(engine->alarm_.get()); !s) return s.error();
  if (engine->auto_progress_) {
    if (Status s = engine->auto_.begin(); !s) return s.error();
  }
  return engine;
}

Engine::Engine(const Options& options, Contact& contact, UniqueFd doorbell, ParentOnlyFd sleep,
               ParentOnlyFd alarm) noexcept
    : lock_(options.threaded || options.auto_progress),
      life_(Life::now()),
      // where a lock is there anyway, a target that never polls shall not hang its peers
      auto_progress_(options.threaded || options.auto_progress),
      contact_(contact),
      keys_(contact.keys()),
      domain_(protect::new_domain()),
      doorbell_(std::move(doorbell)),
      sleep_(std::move(sleep)),
      alarm_(std::move(alarm)) {
  assert(doorbell_ && sleep_ && alarm_ && life_.has_begun());
}

Engine::~Engine() {
  assert(links_.empty());  // they are owned by what is gone by now
  if (auto_progress_) auto_.end();
}

void Engine::poll() noexcept {
  if (attend_) [[unlikely]]
    attend();
  // SYNC POINT: engine-posted: what was posted before the flag is in posted_
  if (has_posted_.load(std::memory_order_acquire)) [[unlikely]]
    run_posted();
  const uint64_t polls = ++polls_;
  // each poll looks at the hot rings; everything else about a queue pair is due now and then
  const bool due = (polls & (transport::kLookEvery - 1)) == 0;
  if (!pollables_.empty()) pollables_.poll(polls, due);
  qps_.poll(polls, due);
  if (auto_progress_) auto_.note_polls(polls);
}

bool Engine::is_idle() noexcept {
  constexpr uint32_t kPolls = CoreSharing::kPolls;
  const bool vain = qps_.is_idle_for(kPolls) && pollables_.is_idle_for(kPolls);
  return core_sharing_.is_due(vain, ticks());
}

// What few polls have to do, apart so that the others ask for it with one compare.
void Engine::attend() noexcept {
  assert(asleep_ || !links_.empty());
  if (asleep_) wake_up();
  for (link::Progress* link : links_) link->progress();
}

Status Engine::add_qp(qp::Qp& qp, Owner& owner) noexcept {
  if (Status s = qps_.add(qp, owner); !s) return s;
  if (asleep_) wake_up();
  return {};
}

void Engine::remove_qp(qp::Qp& qp) noexcept {
  qps_.remove(qp);
}

Status Engine::add_pollable(link::Pollable& one, PollableOwner& owner) noexcept {
  if (Status s = pollables_.add(one, owner); !s) return s;
  if (asleep_) wake_up();
  return {};
}

void Engine::remove_pollable(link::Pollable& one) noexcept {
  pollables_.remove(one);
}

// --- links, and what a sleeping engine waits for ---

Status Engine::add_progress(link::Progress& link) noexcept {
  assert(std::find(links_.begin(), links_.end(), &link) == links_.end());
  try {
    links_.push_back(&link);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  if (const int fd = link.fd(); fd >= 0) {
    if (Status s = wake_on(fd); !s) {
      links_.pop_back();
      return s;
    }
  }
  if (asleep_) {
    wake_up();  // its descriptor is quiet from here on as well
  } else {
    arm_links(false);
  }
  set_asleep(false);
  return {};
}

void Engine::remove_progress(link::Progress& link) noexcept {
  if (std::erase(links_, &link) == 0) return;
  if (const int fd = link.fd(); fd >= 0) forget_fd(fd);
  set_asleep(asleep_);
}

Status Engine::wake_on(int fd) noexcept {
  assert(fd >= 0 && sleep_);
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(sleep_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return errc_from_errno(errno);
  ++watched_fds_;
  return {};
}

void Engine::forget_fd(int fd) noexcept {
  if (life_.is_over()) return;  // the epoll is the parent's
  if (::epoll_ctl(sleep_.get(), EPOLL_CTL_DEL, fd, nullptr) == 0) --watched_fds_;
}

// Whoever watches sleep_fd() all the time shall not be woken for what polls find anyway.
void Engine::arm_links(bool armed) noexcept {
  if (life_.is_over()) return;
  epoll_event event{};
  if (armed) event.events = EPOLLIN;
  for (const link::Progress* link : links_) {
    if (const int fd = link->fd(); fd >= 0) ::epoll_ctl(sleep_.get(), EPOLL_CTL_MOD, fd, &event);
  }
}

// --- sleep ---

void Engine::set_asleep(bool asleep) noexcept {
  asleep_ = asleep;
  attend_ = asleep || !links_.empty();
}

// Each time, since a ring may come late: from a peer that saw us asleep before. Left there, it
// would end the next sleep for nothing, and that one's rings come late, too.
void Engine::drain() noexcept {
  if (drain_doorbell(doorbell_.get())) ++wakings_;
}

bool Engine::is_rung() const noexcept {
  return is_readable(sleep_.get());
}

bool Engine::prepare_to_sleep() noexcept {
  drain();
  if (qps_.any_needs_polling() || pollables_.any_needs_polling()) return false;
  arm_links(true);
  set_asleep(true);
  const bool any = fall_asleep();
  if (!any && needs_later_look()) {
    look_again_later();
  } else {
    look_again_ns_ = 0;
  }
  if (any) wake_up();
  return !any;
}

// The peers ring from now on. True: something had arrived before.
bool Engine::fall_asleep() noexcept {
  qps_.fall_asleep();
  pollables_.fall_asleep();
  full_fence();  // pairs with the producers' fence between publishing and ChannelTx::must_ring
  if (!qps_.all_peers_fence() || !pollables_.all_peers_fence()) heavy_barrier();
  return has_posted_.load(std::memory_order_acquire) || qps_.any_has_work() ||
         pollables_.any_has_work();
}

// What prepare_to_sleep() has found then is not so any more. Where it is peers that are waited for,
// they ring.
void Engine::look_at_posted() noexcept {
  assert(asleep_);
  if (qps_.any_needs_polling() || pollables_.any_needs_polling()) {
    ring_doorbell(doorbell_.get());
    return;
  }
  const bool qps_too_deep = qps_.any_sleeps_too_deep();
  if ((pollables_.any_sleeps_too_deep() || qps_too_deep) && fall_asleep()) {
    ring_doorbell(doorbell_.get());
  } else if (!alarm_set_ && needs_later_look()) {
    look_again_later();
  }
}

bool Engine::needs_later_look() const noexcept {
  return qps_.any_needs_later_look() || pollables_.any_needs_later_look();
}

void Engine::look_again_later() noexcept {
  look_again_ns_ = std::clamp(2 * look_again_ns_, kLookAgainNs, kLookAtLeastNs);
  set_alarm(look_again_ns_);
}

// 0: none; the descriptor is quiet then, whatever it was before. True: an earlier one was over.
bool Engine::set_alarm(uint64_t after_ns) noexcept {
  assert(after_ns < 1'000'000'000);
  const bool was_set = alarm_set_;
  alarm_set_ = after_ns != 0;
  if (life_.is_over()) return false;
  itimerspec at{}, before{};
  at.it_value.tv_nsec = static_cast<long>(after_ns);
  ::timerfd_settime(alarm_.get(), 0, &at, &before);
  return was_set && before.it_value.tv_sec == 0 && before.it_value.tv_nsec == 0;
}

// To be asked before its link or queue pair is polled, which quiets it.
bool Engine::is_woken_by_socket() const noexcept {
  constexpr uint32_t kOwn = 2;  // the doorbell and the alarm, which say it themselves
  return watched_fds_ > kOwn && is_readable(sleep_.get());
}

void Engine::wake_up() noexcept {
  assert(asleep_);
  if (is_woken_by_socket()) ++wakings_;
  set_asleep(false);
  if (alarm_set_ && set_alarm(0)) ++wakings_;
  arm_links(false);
  qps_.wake_up();
  pollables_.wake_up();
  if (auto_progress_) auto_.start_ticking();
}

void Engine::post(Callback<> fn) noexcept {
  {
    const std::lock_guard guard(posted_mutex_);
    posted_.push_back(std::move(fn));
    // SYNC POINT: engine-posted
    has_posted_.store(true, std::memory_order_release);
  }
  // always: whether it sleeps is not ours to read, and this is rare
  ring_doorbell(doorbell_.get());
}

void Engine::run_posted() noexcept {
  Posted work;
  {
    const std::lock_guard guard(posted_mutex_);
    work.swap(posted_);
    has_posted_.store(false, std::memory_order_relaxed);  // relaxed: under the mutex
  }
  for (auto& fn : work) fn();
}

}  // namespace aperture::nic
