// The progress engine: what drives the lanes of one domain.
//
// Everything below an engine (endpoints, queue pairs, CQs, counters, matching) is guarded by its
// lock, which is free in FI_THREAD_DOMAIN and biased to the polling thread otherwise. Polling a CQ
// drives the whole engine. Nobody else does in FI_THREAD_DOMAIN with manual progress; in all other
// cases the control thread takes over when no one has polled for a while.
//
// Sleep: prepare_to_sleep() marks all incoming channels asleep, passes a heavy barrier and looks
// once more; from then on the first arrival rings doorbell_fd().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.hpp"
#include "base/lock.hpp"
#include "link/driven.hpp"
#include "nic/contact.hpp"
#include "nic/drive_list.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

class Engine {
 public:
  struct Options {
    bool threaded = true;        // false: the application serialises (FI_THREAD_DOMAIN)
    bool auto_progress = false;  // the control thread drives when nobody polls; implied by threaded
  };

  // Also starts the process's control thread. Errors: no_fds, no_memory.
  static Result<std::unique_ptr<Engine>> create(const Options& options) noexcept;
  ~Engine();

  EngineLock& lock() noexcept { return lock_; }
  uint32_t domain() const noexcept { return domain_; }  // its protection domain, unique here
  protect::KeyTable& keys() noexcept { return keys_; }
  Contact& contact() noexcept { return contact_; }

  // Drives every lane once. Lock held.
  void poll() noexcept;
  // Readable when something may have arrived while asleep.
  int doorbell_fd() const noexcept { return doorbell_.get(); }
  // Lock held. True: asleep, nothing had arrived. False: poll() and look again. Any later poll()
  // wakes up by itself.
  bool prepare_to_sleep() noexcept;

  // A thread of the application's sleeps on doorbell_fd() itself, and polls when it rings: the
  // control thread, which would have to be woken first, leaves the doorbell to it meanwhile. Lock
  // held.
  void begin_wait() noexcept;
  void end_wait() noexcept;

  // Runs fn under the lock in the next poll; wakes a sleeping engine. Any thread.
  void post(std::function<void()> fn) noexcept;

  // For endpoints, lock held: queue pairs to drive, and a call after each poll in which one of them
  // was lost or broken (its owner winds it up). Errors of adding: no_memory.
  using Owner = OwnerOf<qp::Qp>;
  Status add_qp(qp::Qp& qp, Owner& owner) noexcept;
  void remove_qp(qp::Qp& qp) noexcept;
  // The same for queue pairs of other kinds.
  using DrivenOwner = OwnerOf<link::Driven>;
  Status add_driven(link::Driven& driven, DrivenOwner& owner) noexcept;
  void remove_driven(link::Driven& driven) noexcept;

 private:
  Engine(const Options& options, Contact& contact, UniqueFd doorbell) noexcept;
  void wake_up() noexcept;
  void run_posted() noexcept;
  void begin_watch() noexcept;
  void begin_ticking() noexcept;
  void tick_again() noexcept;
  void on_tick() noexcept;
  void on_doorbell() noexcept;
  void drive() noexcept;

  EngineLock lock_;
  const bool auto_progress_;
  Contact& contact_;
  protect::KeyTable& keys_;  // the contact's, at hand: registering asks for it each time
  const uint32_t domain_;
  UniqueFd doorbell_;
  bool asleep_ = false;             // guarded by lock_
  uint64_t polls_ = 0;              // guarded by lock_
  uint32_t waits_ = 0;              // begin_wait() without end_wait(); guarded by lock_
  DriveList<qp::Qp> qps_;           // guarded by lock_
  DriveList<link::Driven> driven_;  // all other kinds; guarded by lock_
  std::atomic<bool> has_posted_{false};
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by posted_mutex_

  // automatic progress: the control thread's view
  std::atomic<uint64_t> polls_told_{0};  // polls_ as of the application's last poll
  uint64_t polls_seen_ = 0;              // control thread only
  uint64_t timer_ = 0;                   // control thread only
  uint32_t idle_ticks_ = 0;              // in a row, asleep all the time; control thread only
  bool ticking_ = false;                 // the timer is set, or about to be; guarded by lock_
  uint64_t watch_ = 0;                   // control thread only
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

}  // namespace aperture::nic
