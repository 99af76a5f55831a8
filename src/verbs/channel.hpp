// Completion channels: ibv_create_comp_channel(3), ibv_get_cq_event(3).
//
// The descriptor is a real one, readable while events wait. Each CQ stands in the channel's list at
// most once, with the number of its events, so that raising one never allocates. Any thread; the
// channel's own mutex, taken inside the engine lock by whoever raises an event.
//
// It is an epoll descriptor over two others: one that is readable while events wait, and the
// engine's sleep_fd() (nic::WakePath). The latter only while the application has set O_NONBLOCK and
// a CQ is armed for any completion: then a peer wakes the application directly, without the control
// thread in between, and ibv_get_cq_event polls before it answers. Where what has come is no
// completion it hands out an event all the same, as devices do now and then and programs expect
// ("if any exist"): the page's own example takes EAGAIN from a readable descriptor for a failure. A
// descriptor that blocks is made readable by the control thread, for events that there are.
//
// Of the channels that one thread fetches from, the one that it waited for last is woken so
// (Waiter), if there is a path to it: that wakes the thread, whose look raises the others' events,
// and no channel is readable for nothing. And the engine is put to sleep for the last of those
// whose events lie ready.
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
  // Engine lock held. A CQ is armed: for any completion, or for solicited ones only.
  void on_armed(DeviceCq& cq, bool any) noexcept;
  void disarm(DeviceCq& cq) noexcept;  // engine lock held; it has raised its event, or ends
  // Engine lock held. Before the application waits for the descriptor: what arrives from now on
  // wakes it, or the control thread.
  void rest() noexcept;
  // Engine lock held. It is about to be destroyed: nobody is woken by it any more.
  void leave() noexcept;
  // The events of a CQ that is being destroyed are taken back.
  void forget(DeviceCq& cq) noexcept;

  // Errors: no_fds, no_memory.
  Status open(Context& its_context) noexcept;

  ibv_comp_channel base{};  // first: object_of(). refcnt is guarded by mutex
  Context* context = nullptr;
  ContextUse use_context;
  std::mutex mutex;
  ReadyFd ready;
  UniqueFd fd;                // the application's: epoll, over ready and the engine's sleep_fd()
  nic::WakePath path;         // to the latter; guarded by the engine lock
  bool is_direct = false;     // it is taken; guarded by the engine lock
  bool stays = true;          // it blocks, when it was last asked; guarded by the engine lock
  Waiter* waiter = nullptr;   // the thread that came last; guarded by the engine lock
  DeviceCq* armed = nullptr;  // a list: CQs, for any completion; guarded by the engine lock
  uint64_t wakings = 0;       // of the engine, when one last looked; guarded by the engine lock
  uint32_t idle_looks = 0;    // in a row, with no CQ armed; guarded by the engine lock
  DeviceCq* first = nullptr;  // guarded by mutex, as is what links them
  DeviceCq* last = nullptr;
  bool has_handed = false;   // an event, in the last call; guarded by mutex
  Waiter* told = nullptr;    // that an event lies ready; guarded by mutex, as is
  uint32_t told_number = 0;  // what on_ready() said
  // Threads that look for themselves before they sleep; guarded by mutex. They take what is raised
  // meanwhile, and the descriptor, which costs three system calls an event, is left alone.
  uint32_t looking = 0;

 private:
  // What the sleep does that is not to be unwound: base/cancellable.h.
  [[gnu::noinline]] bool begin_sleep() noexcept;
  [[gnu::noinline]] bool has_event() noexcept;
  bool put_to_sleep() noexcept;
  bool take_first(DeviceCq*& cq) noexcept;
  bool look_a_while(DeviceCq*& cq) noexcept;
  bool look_once(DeviceCq*& cq) noexcept;
  void on_none() noexcept;
  bool begin_look() noexcept;
  void end_look() noexcept;
  void set_direct(bool direct) noexcept;
  void wake_by_this(Waiter* who) noexcept;
  bool is_done_with() noexcept;
  void note_fetched() noexcept;
};

}  // namespace aperture::verbs
