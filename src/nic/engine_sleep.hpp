// How an engine falls asleep, and what ends its sleep.
//
// prepare() arms the descriptors of links, marks all incoming channels asleep, passes a fence (a
// heavy barrier where a peer does not promise one of its own) and looks once more. From then on the
// first arrival makes Wakers::sleep_fd() readable: peers in shared memory ring the doorbell, links
// and datagram sockets have descriptors of their own, and where something waits for a peer that may
// go on without ringing (it is stopped, or in the middle of a claim), or for a time, an alarm wakes
// after a while. The next poll, whoever makes it, ends the sleep.
//
// Guarded by the engine's lock.
#pragma once

#include "link/pollable.hpp"
#include "nic/auto_progress.hpp"
#include "nic/engine_links.hpp"
#include "nic/poll_list.hpp"
#include "nic/posted_work.hpp"
#include "nic/wakers.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

class EngineSleep {
 public:
  // Of the engine: what falls asleep with it, and what has to be told.
  struct Parts {
    Wakers& wakers;
    PollList<qp::Qp>& qps;
    PollList<link::Pollable>& pollables;
    EngineLinks& links;
    const PostedWork& posted;
    AutoProgress& auto_progress;
  };
  explicit EngineSleep(const Parts& parts) noexcept : parts_(parts) {}
  EngineSleep(const EngineSleep&) = delete;
  EngineSleep& operator=(const EngineSleep&) = delete;

  // True: asleep, nothing had arrived. False: poll and look again. Any later poll wakes up by
  // itself.
  bool prepare() noexcept;
  bool is_asleep() const noexcept { return asleep_; }
  // True: asleep, and nothing has woken it, so that a poll would find nothing. For who is about to
  // wait anyway, and would have to put it to sleep again: with many lanes, that costs more than
  // this. A system call while asleep.
  bool goes_on() const noexcept { return asleep_ && !parts_.wakers.is_rung(); }
  // After a poll: sleep_fd() is quiet again, although the engine is not put to sleep yet. A system
  // call.
  void hush() noexcept {
    if (!asleep_) parts_.wakers.drain();
  }
  // The same where it has been asleep since. If not, a ring that comes late may be left, by which
  // the next wait ends for nothing.
  void hush_after() noexcept {
    if (!asleep_ && parts_.wakers.were_armed()) parts_.wakers.drain();
  }

  // --- for the engine ---

  // A poll has more to do than to look at queue pairs: it ends a sleep, or there are links.
  bool is_poll_longer() const noexcept { return poll_is_longer_; }
  // A link has come or gone.
  void note_links() noexcept { set_asleep(asleep_); }
  // While asleep: operations were posted, and what they left for this side to do goes on although
  // the engine sleeps. Whoever waits on sleep_fd() is woken for it.
  [[gnu::cold]] void look_at_posted() noexcept;
  // While asleep: it is awake from now on.
  void wake_up() noexcept;

 private:
  void set_asleep(bool asleep) noexcept {
    asleep_ = asleep;
    poll_is_longer_ = asleep || !parts_.links.empty();
  }
  bool fall_asleep() noexcept;
  bool needs_polling() const noexcept;
  bool needs_later_look() const noexcept;

  const Parts parts_;
  uint64_t sleeps_ = ring::kUnnumbered;  // the number of the last one
  // At the end, beside what the engine counts in each poll.
  bool poll_is_longer_ = false;
  bool asleep_ = false;
};

}  // namespace aperture::nic
