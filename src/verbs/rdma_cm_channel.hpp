// An open /dev/infiniband/rdma_cm: what rdma_create_event_channel(3) gets, and the events that wait
// there. The ids that live on it are in rdma_cm_ids.hpp.
//
// The descriptor that the application holds is one end of a socket pair: it can be polled, it
// blocks or not as its flags say, and there is a byte in it for each waiting event (up to a bound,
// and always at least one while there is any). Event queues, and the counts of events that were
// handed out, are guarded by one mutex for all channels, so that an id can move between two.
#pragma once

#include <rdma/rdma_user_cm.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "base/errc.hpp"
#include "base/fork_guard.hpp"
#include "base/per_process.hpp"
#include "base/reserve.hpp"

namespace aperture::verbs::rdma_cm {

// Whose event it is: an id, or a membership of one; how many events it has handed out is what
// librdmacm waits for when it destroys one. Guarded by events_mutex().
struct Reporter {
  uint32_t events_reported = 0;
};

struct QueuedEvent {
  rdma_ucm_event_resp response{};
  Reporter* reporter = nullptr;    // the id; of a connection request the listening one
  Reporter* membership = nullptr;  // or null
  std::shared_ptr<void> place;     // of a connection request: in the listener's backlog
  uint32_t child = kNoChild;       // of a connection request: the new id, until it is handed out

  static constexpr uint32_t kNoChild = 0xffff'ffff;
};

// An event that has nobody to go to would be waited for in vain: where the heap has no memory they
// are taken from the reserve. Once that is used up as well the process ends.
using Events = std::list<QueuedEvent, reserve::Allocator<QueuedEvent>>;

ProcessLock& events_mutex() noexcept;

class Channel {
 public:
  // Its descriptor, with those of O_NONBLOCK and O_CLOEXEC that flags has, is in `fd`. Errors:
  // no_fds, no_memory.
  static Result<std::shared_ptr<Channel>> open(int flags, UniqueFd& fd) noexcept;
  Channel() noexcept = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // True if that descriptor is still the one that was made here, and not another file that has got
  // its number behind our back.
  bool is_behind(int fd) const noexcept;
  // False in a child of the process that opened it, or adopted it.
  bool is_of_this_process() const noexcept;
  // The parent had opened it and made no id on it: programs fork to become daemons. It is this
  // process's from now on; the parent must not go on with it. With events_mutex() held. False: it
  // has been used, or there is no memory or descriptor.
  bool adopt(int fd) noexcept;
  // An id has been made on it.
  // relaxed: looked at in a forked child alone
  void note_use() noexcept { used_.store(true, std::memory_order_relaxed); }
  // Until its descriptor is readable, or not, as that one's flags say; an error number. Who waits
  // goes on waiting when the application has closed the descriptor, as in the kernel: programs
  // leave a thread here and close the channel at their end. A cancellation point.
  int wait() const;

  // --- with events_mutex() held ---
  void push(Events&& events) noexcept;
  const rdma_ucm_event_resp* first() const noexcept;  // null: no event waits
  void pop() noexcept;                                // counts it for its reporters
  // The descriptor is readable if events wait, and otherwise not; again, where that failed before.
  void show_count() noexcept;
  // Takes out all events for which `which` is true.
  Events extract(const std::function<bool(const QueuedEvent&)>& which) noexcept;

 private:
  // The socket pair; the application's end. Errors: no_fds.
  Result<UniqueFd> make_ends() noexcept;

  Events events_;
  size_t bytes_ = 0;       // in the socket pair
  ParentOnlyFd signal_;    // the other end: a byte written here can be read by the application
  ParentOnlyFd unsignal_;  // the application's end, under a number of our own
  uint64_t inode_ = 0;
  uint64_t epoch_ = 0;  // process_epoch() of whose it is
  std::atomic<bool> used_{false};
};

}  // namespace aperture::verbs::rdma_cm
