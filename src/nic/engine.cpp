// The progress engine: see engine.hpp.
#include "nic/engine.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "base/barrier.hpp"
#include "base/no_throw.hpp"
#include "link/faulty/setting.hpp"
#include "protect/rights.hpp"
#include "transport/tuning.hpp"

namespace aperture::nic {

Result<std::unique_ptr<Engine>> Engine::create(const Options& options) noexcept {
  auto contact = Contact::instance();
  if (!contact) return contact.error();
  std::unique_ptr<Engine> engine(new (std::nothrow) Engine(options, **contact));
  if (engine == nullptr) return Errc::no_memory;
  if (Status s = engine->make_mover(); !s) return s.error();
  if (Status s = engine->wakers_.open(); !s) return s.error();
  if (Status s = engine->make_faults(); !s) return s.error();
  if (Status s = engine->auto_.begin(); !s) return s.error();
  return engine;
}

Engine::Engine(const Options& options, Contact& contact) noexcept
    : lock_(options.threaded || options.auto_progress),
      life_(Life::now()),
      contact_(contact),
      keys_(contact.keys()),
      domain_(protect::new_domain()),
      // where a lock is there anyway, a target that never polls shall not hang its peers
      auto_(*this, options.threaded || options.auto_progress) {
  assert(life_.has_begun());
}

Status Engine::make_mover() noexcept {
  return no_throw([&] { mover_ = std::make_shared<link::tcp::Mover>(moving_); });
}

Status Engine::make_faults() noexcept {
  if (link::faulty::configured() == nullptr) return {};
  auto made = link::faulty::Mover::make();
  if (!made) return made.error();
  const Status s = add_progress(**made);
  if (s) faults_ = *std::move(made);
  return s;
}

Engine::~Engine() {
  auto_.end();
  if (faults_ != nullptr) remove_progress(*faults_);
  assert(links_.empty());  // they are owned by what is gone by now
}

inline void Engine::poll_queue_pairs() noexcept {
  if (posted_.any()) [[unlikely]]
    posted_.run();
  const uint64_t polls = ++polls_;
  // each poll looks at the hot rings; everything else about a queue pair is due now and then
  const bool due = (polls & (transport::kLookEvery - 1)) == 0;
  if (!pollables_.empty()) pollables_.poll(polls, due);
  qps_.poll(polls, due);
  auto_.note_polls(polls);
}

void Engine::poll() noexcept {
  if (attend_) [[unlikely]]
    return poll_with_links();
  poll_queue_pairs();
}

// What comes meanwhile is not waited for: a peer that never pauses must not keep us here.
void Engine::poll_arrived() noexcept {
  for (int left = transport::kPollsOfFullRing; left > 0; --left) {
    poll();
    if (qps_.is_idle_for(1)) break;
  }
}

// What few polls have to do, apart so that the others ask for it with one compare.
void Engine::poll_with_links() noexcept {
  assert(asleep_ || !links_.empty());
  if (asleep_) wake_up();
  for (link::Progress* link : links_) link->progress();
  poll_queue_pairs();
  flush_links(false);
}

void Engine::flush_links(bool hurry) noexcept {
  for (link::Progress* link : links_) link->flush(hurry);
}

bool Engine::is_idle() noexcept {
  constexpr uint32_t kPolls = CoreSharing::kPolls;
  const bool vain = qps_.is_idle_for(kPolls) && pollables_.is_idle_for(kPolls);
  return core_sharing_.is_due(vain, ticks());
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

// --- links ---

Status Engine::add_progress(link::Progress& link) noexcept {
  assert(std::find(links_.begin(), links_.end(), &link) == links_.end());
  try {
    links_.push_back(&link);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  if (const int fd = link.fd(); fd >= 0) {
    if (Status s = wakers_.watch_asleep(fd); !s) {
      links_.pop_back();
      return s;
    }
  }
  if (asleep_) wake_up();
  set_asleep(false);
  return {};
}

void Engine::remove_progress(link::Progress& link) noexcept {
  if (std::erase(links_, &link) == 0) return;
  if (const int fd = link.fd(); fd >= 0) wakers_.forget(fd);
  set_asleep(asleep_);
}

// --- sleep ---

void Engine::set_asleep(bool asleep) noexcept {
  asleep_ = asleep;
  attend_ = asleep || !links_.empty();
}

bool Engine::prepare_to_sleep() noexcept {
  wakers_.drain();
  flush_links(true);
  if (needs_polling()) return false;
  wakers_.arm(true);
  set_asleep(true);
  const bool any = fall_asleep();
  if (!any && needs_later_look()) {
    wakers_.look_again_later();
  } else {
    wakers_.look_no_more();
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
  // a link that brings up what comes knows of it before the queue pairs do
  return posted_.any() || qps_.any_has_work() || pollables_.any_has_work() ||
         do_links_need_polling();
}

// What prepare_to_sleep() has found then is not so any more. Where it is peers that are waited for,
// they ring.
void Engine::look_at_posted() noexcept {
  assert(asleep_);
  if (needs_polling()) return wakers_.ring();
  const bool qps_too_deep = qps_.any_sleeps_too_deep();
  if ((pollables_.any_sleeps_too_deep() || qps_too_deep) && fall_asleep()) {
    wakers_.ring();
  } else if (!wakers_.looks_again() && needs_later_look()) {
    wakers_.look_again_later();
  }
}

bool Engine::needs_polling() const noexcept {
  return qps_.any_needs_polling() || pollables_.any_needs_polling() || do_links_need_polling();
}

bool Engine::do_links_need_polling() const noexcept {
  return std::any_of(links_.begin(), links_.end(),
                     [](const link::Progress* link) { return link->needs_polling(); });
}

bool Engine::needs_later_look() const noexcept {
  return qps_.any_needs_later_look() || pollables_.any_needs_later_look();
}

void Engine::wake_up() noexcept {
  assert(asleep_);
  wakers_.wake_up();
  set_asleep(false);
  qps_.wake_up();
  pollables_.wake_up();
  auto_.start_ticking();
}

void Engine::post(Callback<> fn) noexcept {
  posted_.put(std::move(fn));
  // always: whether it sleeps is not ours to read, and this is rare
  wakers_.ring();
}

}  // namespace aperture::nic
