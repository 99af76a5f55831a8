// The threads of the application's that wait for completion channels of one context, and what is
// known of each: which channel it waited for last, and whether events lie ready for which it will
// come before it waits again. A server has a channel for each of its clients and one thread in
// epoll: what one channel promises need not be promised by all.
//
// Guarded by the engine's lock, but for what says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

namespace aperture::verbs {

struct Channel;

class Waiter {
 public:
  explicit Waiter(const void* thread) noexcept : thread_(thread) {}

  bool is(const void* thread) const noexcept { return thread_ == thread; }

  // The one whose descriptor is readable when the engine is rung; null: none.
  Channel* direct = nullptr;

  // An event lies ready that another channel's look has raised: its number, for on_fetched(). Any
  // thread, as is that.
  uint32_t on_ready() noexcept;
  void on_fetched(uint32_t number) noexcept;

  // It is about to wait, as far as a queue of its can tell. True: not yet, since it has such events
  // to fetch; but who fetches none of them after it was said once has others in mind.
  bool comes_back() noexcept;

 private:
  const void* const thread_;
  // The number of waits so far, above how many events of after the last one are ready.
  std::atomic<uint64_t> ready_{0};
  std::atomic<bool> has_fetched_{true};  // since it was said last that it comes back
};

class Waiters {
 public:
  // Null: there is no memory for one.
  Waiter* of_this_thread() noexcept;
  // That channel's descriptor is none of those any more.
  void forget(const Channel& channel) noexcept;

 private:
  std::deque<Waiter> waiters_;  // they stay where they are
};

}  // namespace aperture::verbs
