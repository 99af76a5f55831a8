// The progress engine: see engine.hpp.
#include "nic/engine.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "protect/rights.hpp"
#include "transport/tuning.hpp"

namespace aperture::nic {

Result<std::unique_ptr<Engine>> Engine::create(const Options& options) noexcept {
  auto contact = Contact::instance();
  if (!contact) return contact.error();
  std::unique_ptr<Engine> engine(new (std::nothrow) Engine(options, **contact));
  if (engine == nullptr) return Errc::no_memory;
  if (Status s = engine->wakers_.open(); !s) return s.error();
  if (Status s = engine->make_links(); !s) return s.error();
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

Status Engine::make_links() noexcept {
  if (Status s = links_.make_own(moving_); !s) return s;
  const auto& faults = links_.faults();
  return faults != nullptr ? add_progress(*faults) : Status{};
}

Engine::~Engine() {
  auto_.end();
  if (const auto& faults = links_.faults(); faults != nullptr) remove_progress(*faults);
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
  if (sleep_.is_poll_longer()) [[unlikely]]
    return poll_longer();
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
void Engine::poll_longer() noexcept {
  assert(sleep_.is_asleep() || !links_.empty());
  if (sleep_.is_asleep()) sleep_.wake_up();
  links_.progress();
  poll_queue_pairs();
  links_.flush(false);
}

bool Engine::is_idle() noexcept {
  constexpr uint32_t kPolls = CoreSharing::kPolls;
  const bool vain = qps_.is_idle_for(kPolls) && pollables_.is_idle_for(kPolls);
  return core_sharing_.is_due(vain, ticks());
}

Status Engine::add_qp(qp::Qp& qp, Owner& owner) noexcept {
  if (Status s = qps_.add(qp, owner); !s) return s;
  if (sleep_.is_asleep()) sleep_.wake_up();
  return {};
}

void Engine::remove_qp(qp::Qp& qp) noexcept {
  qps_.remove(qp);
}

Status Engine::add_pollable(link::Pollable& one, PollableOwner& owner) noexcept {
  if (Status s = pollables_.add(one, owner); !s) return s;
  if (sleep_.is_asleep()) sleep_.wake_up();
  return {};
}

void Engine::remove_pollable(link::Pollable& one) noexcept {
  pollables_.remove(one);
}

Status Engine::add_progress(link::Progress& link) noexcept {
  if (Status s = links_.add(link); !s) return s;
  if (sleep_.is_asleep()) sleep_.wake_up();
  sleep_.note_links();
  return {};
}

void Engine::remove_progress(link::Progress& link) noexcept {
  links_.remove(link);
  sleep_.note_links();
}

void Engine::post(Callback<> fn) noexcept {
  posted_.put(std::move(fn));
  // always: whether it sleeps is not ours to read, and this is rare
  wakers_.ring();
}

}  // namespace aperture::nic
