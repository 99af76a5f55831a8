// Progress in the application's place: what the control thread does for an engine that nobody
// polls.
//
// It looks in at the engine every kTickNs while there is something going on, and rests after
// kIdleTicks without: then it makes no wake-up until sleep_fd() becomes readable or the application
// polls again. Who waits for what:
//
//   nobody does              sleep_fd() wakes the control thread, which progresses at once, unless
//                            the application has polled since the engine was put to sleep
//   left to the application  one of its threads waits on a descriptor that sleep_fd() makes
//                            readable, and polls then. The control thread leaves sleep_fd() alone
//                            as long as it ticks, and steps in where a whole tick passes after a
//                            ring and brings no poll. An application that is late like that is not
//                            relied upon for its next waits, and for twice as many each time.
//
// note_polls(), start_ticking(), leave_to_application() and take_back() are called with the lock of
// the engine held; the rest is the control thread's.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/errc.hpp"
#include "base/fork_guard.hpp"

namespace aperture::nic {

class Engine;

class AutoProgress {
 public:
  // Not wanted: the application alone progresses, and no call does anything.
  AutoProgress(Engine& engine, bool wanted) noexcept : engine_(engine), wanted_(wanted) {}
  AutoProgress(const AutoProgress&) = delete;
  AutoProgress& operator=(const AutoProgress&) = delete;

  // Errors: no_memory, no_fds, io. Any thread; returns when the control thread has it.
  Status begin() noexcept;
  // Afterwards nothing of it runs any more.
  void end() noexcept;

  // relaxed: the control thread only wants to know whether it moves
  void note_polls(uint64_t polls) noexcept {
    if (wanted_) told_.store(polls, std::memory_order_relaxed);
  }
  // The engine is awake from now on, and somebody has to notice if its polls stop.
  void start_ticking() noexcept;
  // The engine sleeps, and a thread of the application's is about to wait on a descriptor that
  // sleep_fd() makes readable, and polls then: that is left to it, unless it is late.
  void leave_to_application() noexcept;
  // The engine sleeps, and whoever waits does so for what the control thread raises.
  void take_back() noexcept;

 private:
  static constexpr uint64_t kTickNs = 2'000'000;

  void on_readable() noexcept;
  void note_rested() noexcept;
  void tick_again() noexcept;
  void on_tick() noexcept;
  bool look_in() noexcept;
  void distrust() noexcept;
  void step_in() noexcept;
  void heed(bool heeded) noexcept;

  Engine& engine_;
  const bool wanted_;

  // The timer is set, or about to be. Set by anybody, taken back by the control thread alone, with
  // the engine's lock: who wakes the engine under it sees that.
  std::atomic<bool> ticking_{false};

  // guarded by the engine's lock
  uint32_t distrust_ = 0;  // so many waits are not left to an application that was late
  uint32_t skips_ = 0;     // of them still to come
  uint32_t prompt_ = 0;    // waits that were left to it since

  std::atomic<bool> left_{false};  // to the application; written under the lock, a hint elsewhere
  std::atomic<uint64_t> told_{0};  // polls as of the application's last one
  // As of when it last went to sleep, and not for itself to be woken; written under the lock.
  std::atomic<uint64_t> rested_{0};

  // the control thread's own
  bool heeded_ = true;
  bool rung_ = false;          // sleep_fd() was readable, and the application has not polled since
  uint64_t polls_seen_ = 0;    // as of the last look
  uint64_t polls_before_ = 0;  // and of the one before, or as many
  uint64_t timer_ = 0;
  uint64_t tick_ns_ = kTickNs;  // until the next one
  uint32_t idle_ticks_ = 0;     // in a row, asleep all the time
  uint64_t watch_ = 0;
};

}  // namespace aperture::nic
