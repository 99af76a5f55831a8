// Completion channels: ibv_create_comp_channel(3), ibv_get_cq_event(3).
//
// The descriptor is a real one, readable while events wait. Each CQ stands in the channel's list at
// most once, with the number of its events, so that raising one never allocates. Any thread; the
// channel's own mutex, taken inside the engine lock by whoever raises an event.
#pragma once

#include <mutex>

#include "verbs/async.hpp"
#include "verbs/context.hpp"

namespace aperture::verbs {

struct DeviceCq;

struct Channel {
  // Engine lock held.
  void raise(DeviceCq& cq) noexcept;
  enum class Taken {
    event,
    must_sleep,  // there is none, and the descriptor blocks
    none,        // there is none, and it does not
  };
  // Hands out an event, which is to be acknowledged; looks for one for a while before it lets the
  // caller sleep.
  Taken take(DeviceCq*& cq) noexcept;
  // Until it is worth looking again. 0 or an errno. A cancellation point.
  int sleep();
  // The events of a CQ that is being destroyed are taken back.
  void forget(DeviceCq& cq) noexcept;

  ibv_comp_channel base{};  // first: object_of(). refcnt is guarded by mutex
  Context* context = nullptr;
  ContextUse use_context;
  std::mutex mutex;
  ReadyFd ready;
  DeviceCq* first = nullptr;  // guarded by mutex, as is what links them
  DeviceCq* last = nullptr;
  // Threads that look for themselves before they sleep; guarded by mutex. They take what is raised
  // meanwhile, and the descriptor, which costs three system calls an event, is left alone.
  uint32_t looking = 0;

 private:
  // What the sleep does that is not to be unwound: base/cancellable.h.
  [[gnu::noinline]] bool begin_sleep() noexcept;
  [[gnu::noinline]] static void end_sleep(void* channel) noexcept;
  [[gnu::noinline]] bool has_event() noexcept;
  bool take_first(DeviceCq*& cq) noexcept;
  bool look_a_while(DeviceCq*& cq) noexcept;
};

}  // namespace aperture::verbs
