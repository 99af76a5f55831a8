// Completion queues: ibv_create_cq(3), ibv_create_cq_ex(3), ibv_poll_cq(3), ibv_req_notify_cq(3).
//
// An ib::CompletionQueue under the engine lock, with the faces that libibverbs gives it. Polling an
// empty one makes the engine progress once and looks again.
#pragma once

#include <memory>
#include <mutex>

#include "ib/cq.hpp"
#include "verbs/channel.hpp"
#include "verbs/context.hpp"

namespace aperture::verbs {

struct DeviceCq {
  ibv_cq* base() noexcept { return ibv_cq_ex_to_cq(&ex); }

  // What the queue tells: completion events to the channel, an overrun to the context.
  struct Events final : ib::CqEvents {
    explicit Events(DeviceCq& its_cq) noexcept : cq(its_cq) {}
    void on_completion_event() noexcept override;
    void on_overrun() noexcept override;
    DeviceCq& cq;
  };

  ibv_cq_ex ex{};  // first: object_of(), of either face
  Context* context = nullptr;
  Channel* channel = nullptr;
  Events events{*this};
  // Guarded by the engine lock. Armed: when it is found empty, so often, its program is about to
  // wait.
  uint8_t rests_due = 0;
  uint32_t takes = 0;              // that found the queue not empty; wraps
  bool is_armed = false;           // for any completion: in the channel's list of those
  DeviceCq* next_armed = nullptr;  // in that list
  ContextUse use_context;
  Use use_parent_domain;
  Uses uses;  // queue pairs and SRQs

  uint32_t handed_events = 0;  // guarded by ex.mutex
  uint32_t handed_async = 0;   // guarded by ex.mutex

  // of the channel, guarded by its mutex
  uint32_t events_waiting = 0;
  DeviceCq* next_in_channel = nullptr;

  // between start_poll and end_poll
  bool single_threaded = false;
  std::mutex poll_mutex;
  ib::Wc current;  // guarded by poll_mutex, unless single_threaded

  std::unique_ptr<ib::CompletionQueue>
      queue;  // guarded by the engine lock; last: it goes before its memory's PD
};

inline DeviceCq& cq_of(ibv_cq* cq) noexcept {
  return object_of<DeviceCq>(cq);
}

int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) noexcept;
int req_notify_cq(ibv_cq* cq, int solicited_only) noexcept;
ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* attr) noexcept;
int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* attr) noexcept;

// Takes one completion, after progress if there is none. Engine lock held.
bool take_one(DeviceCq& cq, ib::Wc& wc) noexcept;
// The extended face: start_poll and all that is read from a completion.
void fill_extended(ibv_cq_ex& ex, uint64_t wc_flags) noexcept;

}  // namespace aperture::verbs
