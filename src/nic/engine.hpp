// The progress engine: what progresses the lanes of one domain.
//
// Everything below an engine (endpoints, queue pairs, CQs, counters, matching) is guarded by its
// lock, which is free where the application serialises its calls and biased to the polling thread
// otherwise. Polling a CQ progresses the whole engine. Without threads and automatic progress
// nobody else does; in all other cases the control thread takes over when no one has polled for a
// while.
//
// Its parts: the links that it moves (engine_links.hpp), how it falls asleep (engine_sleep.hpp) and
// what wakes it (wakers.hpp), what it progresses in each poll (poll_list.hpp), what others hand
// over to it (posted_work.hpp), and the control thread in its application's place
// (auto_progress.hpp).
#pragma once

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "base/callback.hpp"
#include "base/clock.hpp"
#include "base/core_sharing.hpp"
#include "base/fork_guard.hpp"
#include "base/lock.hpp"
#include "link/pollable.hpp"
#include "link/progress.hpp"
#include "link/tcp/mover.hpp"
#include "nic/auto_progress.hpp"
#include "nic/contact.hpp"
#include "nic/engine_links.hpp"
#include "nic/engine_sleep.hpp"
#include "nic/poll_list.hpp"
#include "nic/posted_work.hpp"
#include "nic/wakers.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

class Engine {
 public:
  struct Options {
    bool threaded = true;  // false: the application serialises its calls
    // The control thread progresses when nobody polls; implied by threaded.
    bool auto_progress = false;
  };

  // Also starts the process's control thread. Errors: no_fds, no_memory.
  static Result<std::unique_ptr<Engine>> create(const Options& options) noexcept;
  ~Engine();

  EngineLock& lock() noexcept { return lock_; }
  uint32_t domain() const noexcept { return domain_; }  // its protection domain, unique here
  protect::KeyTable& keys() noexcept { return keys_; }
  Contact& contact() noexcept { return contact_; }

  // Whose calls are turned away when it is over.
  const Life& life() const noexcept { return life_; }

  // Progresses every lane once. Lock held.
  void poll() noexcept;
  // The same, until what had arrived before is taken in: a poll takes no more of a lane than its
  // share, and whoever asks what is there shall be told of all.
  void poll_arrived() noexcept;
  // Lock held, after a poll that has left its caller with nothing. True: nothing has happened here
  // for a while, and share_core() is to be called once the lock is released (PollGuard does both).
  bool has_been_idle() noexcept { return is_look_due() && is_idle(); }
  // The same in two steps, for calls that programs make again and again, and between which they
  // give their core away (MPI where cores are few): that would be in the middle of a large message,
  // several times, with a wait for their turn each time. look() goes on with what was begun, for a
  // few polls, while something moves and has_enough() does not say that there is what was asked.
  // Not where the engine was put to sleep since: somebody is about to wait, and counts on the ring.
  bool is_look_due() noexcept { return core_sharing_.count(); }
  template <typename Fn>
  bool look(Fn&& has_enough) noexcept {
    for (int left = kPollsOfACall; left > 0 && may_go_on() && !has_enough(); --left) poll();
    const bool idle = is_idle();  // always: it begins the next count
    return idle && !has_enough();
  }
  void share_core() noexcept { core_sharing_.give_away(); }

  // Putting it to sleep. Lock held.
  EngineSleep& sleep() noexcept { return sleep_; }
  const EngineSleep& sleep() const noexcept { return sleep_; }
  // What wakes it, and by which descriptor.
  Wakers& wakers() noexcept { return wakers_; }
  // Who is woken by that: the control thread, or a thread of the application's.
  AutoProgress& auto_progress() noexcept { return auto_; }

  // Lock held, after operations were posted. What they left for this side to do goes on although
  // the engine sleeps: whoever waits on sleep_fd(), or the control thread, is woken for it.
  void on_posted() noexcept {
    if (sleep_.is_asleep()) [[unlikely]]
      sleep_.look_at_posted();
  }

  // Runs fn under the lock in the next poll; wakes a sleeping engine. Any thread. Cannot fail
  // (PostedWork), since a lane or its end could be told to nobody.
  void post(Callback<> fn) noexcept;

  // For endpoints, lock held: queue pairs to progress, and a call after each poll in which one of
  // them was lost or broken (its owner winds it up). Errors of adding: no_memory.
  using Owner = OwnerOf<qp::Qp>;
  Status add_qp(qp::Qp& qp, Owner& owner) noexcept;
  void remove_qp(qp::Qp& qp) noexcept;
  // The same for queue pairs of other kinds.
  using PollableOwner = OwnerOf<link::Pollable>;
  Status add_pollable(link::Pollable& one, PollableOwner& owner) noexcept;
  void remove_pollable(link::Pollable& one) noexcept;

  // Lock held, not from a progress(). A link whose lanes need moving: each poll calls it once,
  // before the queue pairs, and its descriptor wakes a sleeping engine. Errors: no_memory, no_fds,
  // io.
  Status add_progress(link::Progress& link) noexcept;
  void remove_progress(link::Progress& link) noexcept;
  const EngineLinks& links() const noexcept { return links_; }

 private:
  Engine(const Options& options, Contact& contact) noexcept;
  // A part and no base, so that the lock, which every call asks for, comes first.
  class Moving final : public link::tcp::MoverHost {
   public:
    explicit Moving(Engine& engine) noexcept : engine_(engine) {}
    Status begin_moving(link::Progress& mover) noexcept override {
      return engine_.add_progress(mover);
    }
    void end_moving(link::Progress& mover) noexcept override { engine_.remove_progress(mover); }

   private:
    Engine& engine_;
  };
  Status make_links() noexcept;

  // Up to so many more for one call: a quarter of a megabyte, and what it takes to copy that.
  static constexpr int kPollsOfACall = 8;

  bool may_go_on() const noexcept {
    return !sleep_.is_asleep() && (qps_.has_moved(polls_) || pollables_.has_moved(polls_));
  }
  [[gnu::always_inline]] void poll_queue_pairs() noexcept;
  [[gnu::cold, gnu::noinline]] void poll_longer() noexcept;
  [[gnu::cold]] bool is_idle() noexcept;

  EngineLock lock_;
  const Life life_;
  Contact& contact_;
  protect::KeyTable& keys_;  // the contact's, at hand: registering asks for it each time
  const uint32_t domain_;
  Wakers wakers_;  // guarded by lock_, but for what it says
  EngineSleep sleep_{{wakers_, qps_, pollables_, links_, posted_, auto_}};  // guarded by lock_
  uint64_t polls_ = 0;                                                      // guarded by lock_
  CoreSharing core_sharing_;                           // guarded by lock_, but for share_core()
  PollList<qp::Qp> qps_{core_sharing_};                // guarded by lock_
  PollList<link::Pollable> pollables_{core_sharing_};  // all other kinds; guarded by lock_
  Moving moving_{*this};
  EngineLinks links_{wakers_};  // guarded by lock_
  PostedWork posted_;           // put by any thread, run under lock_
  AutoProgress auto_;
};

// Holds the engine's lock for a scope.
class EngineGuard {
 public:
  explicit EngineGuard(Engine& engine) noexcept : lock_(engine.lock()) { lock_.lock(); }
  ~EngineGuard() { lock_.unlock(); }
  EngineGuard(const EngineGuard&) = delete;
  EngineGuard& operator=(const EngineGuard&) = delete;

 private:
  EngineLock& lock_;
};

// The same for a call that polls. One that comes back with nothing says so, and gives the core away
// when that has been so for a while.
class PollGuard {
 public:
  explicit PollGuard(Engine& engine) noexcept : engine_(engine) { engine_.lock().lock(); }
  ~PollGuard() {
    engine_.lock().unlock();
    if (idle_) [[unlikely]]
      engine_.share_core();
  }
  PollGuard(const PollGuard&) = delete;
  PollGuard& operator=(const PollGuard&) = delete;

  void found_nothing() noexcept { idle_ = engine_.has_been_idle(); }
  // Engine::look().
  template <typename Fn>
  void look(Fn&& has_enough) noexcept {
    idle_ = engine_.look(has_enough);
  }

 private:
  Engine& engine_;
  bool idle_ = false;
};

// Before a thread sleeps: looks for about what a sleep and a wake-up cost, then gives the core away
// once, whatever its patience, and looks again. Without that, who has learnt where it was alone
// that nobody wants its core would never learn otherwise: its patience is longer than the look, and
// it would sleep and be woken in each round with a peer on the same core. look(): called without
// the lock, true once there is no need to sleep; so is this.
template <typename Look>
bool look_before_sleep(Engine& engine, Look&& look) noexcept {
  constexpr uint64_t kLookNs = 20'000;
  for (const uint64_t until = now_ns() + kLookNs; now_ns() < until;) {
    if (look()) return true;
  }
  engine.share_core();
  return look();
}

// Calls over() with the engine's lock until it says true, and sleeps without it in between: for
// calls that wait for a peer. Not from a callback of the engine.
template <typename Over>
void until(Engine& engine, Over&& over) noexcept {
  for (long nap_ns = 10'000;; nap_ns = std::min(2 * nap_ns, 1'000'000L)) {
    {
      const EngineGuard guard(engine);
      if (over()) return;
    }
    const timespec nap{0, nap_ns};
    ::nanosleep(&nap, nullptr);
  }
}

}  // namespace aperture::nic
