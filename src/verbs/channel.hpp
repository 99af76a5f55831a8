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

struct Cq;

struct Channel {
  // Engine lock held.
  void raise(Cq& cq) noexcept;
  // Waits for an event and hands it out: it is to be acknowledged. 0 or an errno.
  int take(Cq*& cq) noexcept;
  // The events of a CQ that is being destroyed are taken back.
  void forget(Cq& cq) noexcept;

  ibv_comp_channel base{};  // first: object_of(). refcnt is guarded by mutex
  Context* context = nullptr;
  ContextUse use_context;
  std::mutex mutex;
  ReadyFd ready;
  Cq* first = nullptr;  // guarded by mutex, as is what links them
  Cq* last = nullptr;
};

}  // namespace aperture::verbs
