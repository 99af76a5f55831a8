// What an engine progresses besides qp::Qp: a queue pair of another kind, over a lane.
//
// The engine (nic/engine.hpp) knows qp::Qp by its concrete type, so that its fast path costs no
// indirect call; every other kind of queue pair implements this. All calls are made with the
// engine's lock held, by whoever polls.
#pragma once

#include <cstdint>

namespace aperture::link {

class Pollable {
 public:
  Pollable() = default;
  Pollable(const Pollable&) = delete;
  Pollable& operator=(const Pollable&) = delete;
  virtual ~Pollable() = default;

  // Progresses everything once; `polls` counts the engine's polls. True if anything happened.
  virtual bool poll(uint64_t polls) noexcept = 0;
  // The hot path of polling: executes what has arrived, if that is all there is to do. `poll` asks
  // for a poll() now; one comes every few polls in any case.
  enum class Look : uint8_t { nothing, taken, poll };
  virtual Look look() noexcept { return Look::poll; }

  // The engine goes to sleep, with the peers ringing its doorbell from now on, or is awake again.
  // sleep_number: of that sleep, by which a peer knows that it has rung (ring/channel.hpp).
  virtual void fall_asleep(uint64_t sleep_number) noexcept = 0;
  virtual void wake_up() noexcept = 0;
  // Asked while asleep, after something was posted: what it waits for now would not ring.
  virtual bool sleeps_too_deep() noexcept { return false; }
  // The peer does its part of the fence, and going to sleep needs no heavy barrier. Asked after a
  // fence of our own.
  virtual bool peer_fences() const noexcept { return true; }
  virtual bool anything_arrived() const noexcept = 0;
  // Something goes on only while it is polled, so the engine may not sleep.
  virtual bool needs_polling() const noexcept = 0;
  // It waits for the other side, which may go on without ringing, or for a time: a sleeping engine
  // looks at it now and then.
  virtual bool needs_later_look() const noexcept { return false; }
  // It waits for the other side: it keeps its place among the hot ones.
  virtual bool has_pending() const noexcept = 0;
  // It is over: its owner is told after the poll, and takes it from the engine or mends it.
  virtual bool needs_wind_up() const noexcept = 0;
  // Completions of both come to the same queue: not known here, so it may be.
  bool shares_queue_with(const Pollable&) const noexcept { return true; }
};

}  // namespace aperture::link
