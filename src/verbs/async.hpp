// Things that an application waits for through a file descriptor: a queue with a descriptor that is
// readable exactly while the queue is not empty, so that poll(2), epoll and O_NONBLOCK work as with
// a descriptor of the kernel's. ibv_get_async_event(3), ibv_get_cq_event(3).
//
// Any thread; the queue's own mutex, taken inside the engine lock by whoever raises an event.
#pragma once

#include <deque>
#include <mutex>

#include "base/fd.hpp"
#include "verbs/api.hpp"

namespace aperture::verbs {

// Whether a read(2) of it would wait: not if the application has set O_NONBLOCK on it.
bool blocks(int fd) noexcept;

// The descriptor. Guarded by the mutex of the queue it belongs to, but for wait().
class ReadyFd {
 public:
  // Given to the application, which may read from it and change how it blocks; or kept. Errors:
  // no_fds, no_memory.
  enum class Whose : uint8_t { applications, ours };
  Status open(Whose whose) noexcept;
  int get() const noexcept { return fd_.get(); }
  void set(bool ready) noexcept;
  // Until it is readable. 0, or the errno that a read(2) of it would have: EAGAIN unless it blocks,
  // EINTR. A cancellation point.
  int wait() const;

 private:
  UniqueFd fd_;
  bool is_ours_ = false;
  bool ready_ = false;
};

// The asynchronous events of a context.
class AsyncQueue {
 public:
  Status open() noexcept { return ready_.open(ReadyFd::Whose::applications); }
  int fd() const noexcept { return ready_.get(); }

  void push(const ibv_async_event& event) noexcept;
  // False: there is none.
  bool take(ibv_async_event& event) noexcept;
  // Until there is one. 0 or an errno. A cancellation point.
  int wait() const { return ready_.wait(); }
  // The events of that object, which is being destroyed, are taken back.
  void forget(const void* element) noexcept;

 private:
  static constexpr size_t kMaxEvents = 65536;  // what nobody reads is bounded

  std::mutex mutex_;
  ReadyFd ready_;
  std::deque<ibv_async_event> events_;  // guarded by mutex_
};

// Before an event is handed out, and while its object cannot be destroyed: it is to be
// acknowledged, or the object's destruction waits.
void note_handed(const ibv_async_event& event) noexcept;

// Waits until `completed` has reached `handed`; both guarded by `mutex`.
void wait_for_acknowledgements(pthread_mutex_t& mutex, pthread_cond_t& condition,
                               const uint32_t& completed, const uint32_t& handed) noexcept;

}  // namespace aperture::verbs
