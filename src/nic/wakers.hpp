// What wakes a sleeping engine: one epoll descriptor over its doorbell, an alarm of its own, and
// the descriptors of links and datagram sockets.
//
// Nobody takes events from sleep_fd(); it is readable while any of them is. Draining the doorbell
// is all that a round of sleep costs: a descriptor of a link is quiet once the link has been
// polled, and the alarm is set only where something is waited for that may not ring. How often it
// was readable is counted, so that who has watched it can tell whether he was woken.
//
// Descriptors of the application's that a ring makes readable, which are epolls too, are WakePaths:
// the kernel has room for few of them above one descriptor (epoll_ctl(2) fails with EINVAL from 100
// on, where sockets of a link are below, and from 50 on once the application watches them in an
// epoll of its own), and a process may have thousands of completion queues and channels.
//
// Guarded by the engine's lock, but for the two descriptors and ring(), which are any thread's. In
// a forked child it is its parent's and changes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/doorbell.hpp"
#include "base/errc.hpp"
#include "base/fd.hpp"
#include "base/fork_guard.hpp"

namespace aperture::nic {

// Of an epoll descriptor, which whoever owns this closes after Wakers::forget_path(). Guarded by
// the engine's lock.
class WakePath {
 public:
  virtual ~WakePath() = default;

  int fd = -1;

 private:
  friend class Wakers;
  // It was left and another one has its place: a ring makes the descriptor readable no more.
  virtual void on_given_away() noexcept {}

  bool is_taken = false;  // in use
  bool is_there = false;  // sleep_fd() is in it
  bool is_heard = false;  // and makes it readable
};

class Wakers {
 public:
  // The life of this process has begun.
  Wakers() noexcept;
  Wakers(const Wakers&) = delete;
  Wakers& operator=(const Wakers&) = delete;

  // Once, before everything else. Errors: no_fds, no_memory, io.
  Status open() noexcept;

  // Opened anew for each peer: whoever has published something for a sleeping engine rings it.
  int doorbell_fd() const noexcept { return doorbell_.get(); }
  void ring() const noexcept { ring_doorbell(doorbell_.get()); }
  // To be waited on, here alone: readable when something may have arrived while asleep.
  int sleep_fd() const noexcept { return sleep_.get(); }
  // sleep_fd() is readable: to be asked before a poll, which quiets it. A system call.
  bool is_rung() const noexcept;
  // A count: how often sleep_fd() was readable, as far as that has been quieted since.
  uint64_t wakings() const noexcept { return wakings_; }

  // A descriptor that wakes while it is readable. Its owner keeps it quiet outside of sleep, and
  // forgets it before closing it. Errors: no_memory, io.
  Status watch(int fd) noexcept;
  // The same of one that may be readable at any time: it counts from arm(true) to arm(false) only,
  // since whoever watches sleep_fd() all the time shall not be woken for what polls find anyway.
  Status watch_asleep(int fd) noexcept;
  void forget(int fd) noexcept;
  void arm(bool armed) noexcept;

  // As many paths may be in use at once.
  static constexpr size_t kMostPaths = 32;
  // From now on its descriptor is readable while sleep_fd() is. False: no path is to be had, and
  // who would wait for that descriptor has to be woken by other means. A system call, or two, where
  // it was not so before; what is not in use gives way to it.
  bool take_path(WakePath& path) noexcept;
  // It is in use no longer, and may be readable by it until another one is taken.
  void leave_path(WakePath& path) noexcept { path.is_taken = false; }
  // The same, but it is not readable by it any more.
  void hush_path(WakePath& path) noexcept;
  void forget_path(WakePath& path) noexcept;

  // The doorbell has been heard. A system call.
  void drain() noexcept;
  // Whether arm(true) was called after the last drain().
  bool were_armed() const noexcept { return were_armed_; }
  // Wakes after a while, and each time after twice as long, up to a bound.
  void look_again_later() noexcept;
  bool looks_again() const noexcept { return alarm_set_; }
  // There is nothing to look at; the next time begins with the shortest while.
  void look_no_more() noexcept { look_again_ns_ = 0; }
  // The engine is awake from now on: what may wake it again is quiet, but for the doorbell. Before
  // its links and queue pairs are polled.
  void wake_up() noexcept;

 private:
  Status add(int fd, uint32_t events) noexcept;
  bool control_path(const WakePath& path, int operation, bool heard) const noexcept;
  bool make_room_for_path() noexcept;
  bool set_alarm(uint64_t after_ns) noexcept;
  bool is_woken_by_socket() const noexcept;

  const Life life_;
  UniqueFd doorbell_;
  ParentOnlyFd sleep_;  // epoll
  ParentOnlyFd alarm_;  // timer
  uint64_t wakings_ = 0;
  uint32_t watched_fds_ = 0;                   // in sleep_
  std::vector<int> asleep_only_;               // of them
  std::array<WakePath*, kMostPaths> paths_{};  // that are there
  size_t path_count_ = 0;
  bool were_armed_ = false;
  bool alarm_set_ = false;
  uint64_t look_again_ns_ = 0;  // what it was set to last
};

}  // namespace aperture::nic
