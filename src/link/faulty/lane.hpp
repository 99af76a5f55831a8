// A lane with faults: what stands between a queue pair and the lane that it was given, where the
// user has asked for faults (APERTURE_FAULT). docs/adr/0014.
//
// What this side publishes goes into the rings of the lane beneath at once. What the other side has
// published comes up record by record, into cells of our own, when its time has come:
//
//   the queue pair's          cells                words
//   request_tx, response_tx   of the lane beneath  ours: `consumed` as far as it has come up
//   request_rx, response_rx   ours                 of the lane beneath: the other side sees us
//                                                  sleep and execute by itself
//
// So `consumed`, which acknowledges, passes no response and no request passes `consumed`: the order
// of docs/adr/0002 holds whatever is held back. `state` of our words always says asleep: whoever
// publishes rings, which is where the lane beneath is rung, and operations are counted.
//
//   delay   nothing comes up until then
//   rnr     a message of the other side's waits as if no receive were there, and it is told so;
//           responses come up meanwhile
//   retry   what was posted before is acknowledged, this operation and all behind it never are;
//           then the lane is lost
//   flush, death   the lane is lost at once, with what has come up
//
// There is no direct path, this way or that, and there are no claims: neither side reaches the
// other's memory but through what comes up. What a fault strikes is drawn by the lane's number and
// a count, so it is the same whatever threads do.
//
// Guarded by the engine's lock, like every lane; moved by the engine's Mover (mover.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/fault_plan.hpp"
#include "base/fd.hpp"
#include "link/faulty/records.hpp"
#include "link/lane.hpp"

namespace aperture::link::faulty {

class Mover;

// Who is told that a fault has ended a lane.
class LaneHost {
 public:
  virtual ~LaneHost() = default;
  // Once, with the lock of the lane's engine: hand over and return. timed_out: nobody answers;
  // canceled: what is pending is flushed; peer_lost.
  virtual void on_lane_struck(Lane& lane, Errc why) noexcept = 0;
};

struct LaneSpec {
  const FaultPlan* plan = nullptr;  // outlives the lane
  uint64_t number = 0;
  Language language = Language::request;
  LaneHost* host = nullptr;  // outlives the lane; null: no fault ends it
  std::shared_ptr<Mover> mover;
};

class FaultyLane final : public Lane, private PendingWatch {
 public:
  // A lane that no queue pair has had, set up but for what a queue pair adds. Errors: no_memory;
  // it is there still then.
  static Result<std::unique_ptr<FaultyLane>> make(std::unique_ptr<Lane>& inner,
                                                  LaneSpec spec) noexcept;
  ~FaultyLane() override;

  bool prepare_request_bytes() noexcept override { return inner_->prepare_request_bytes(); }
  bool prepare_response_bytes() noexcept override { return inner_->prepare_response_bytes(); }
  void ring_doorbell() noexcept override;
  void on_attached() noexcept override;
  void on_released() noexcept override;
  void on_lost() noexcept override;
  std::unique_ptr<Lane> take_inner() noexcept override;

  // --- for who moves it ---

  // Brings up what has come and whose time it is. True: anything.
  bool move(uint64_t now_ns) noexcept;
  // When to move() again although nothing comes; 0: at no time.
  uint64_t look_again_ns() const noexcept { return look_again_ns_; }
  // Something has come that could come up now.
  bool has_arrived(uint64_t now_ns) const noexcept;

 private:
  // A channel on its way up.
  struct Incoming {
    ring::CellReader from;
    ring::CellWriter to;
    uint64_t records = 0;        // that have come up
    uint64_t messages = 0;       // of them, those that begin one
    bool is_drawn = false;       // whether the next one comes later
    bool has_waited = false;     // the next one, for a receive
    uint64_t hold_until_ns = 0;  // of this channel alone
  };
  enum class Passed : uint8_t { one, none, held };

  FaultyLane(std::unique_ptr<Lane>& inner, LaneSpec spec, Mapping memory, uint32_t request_log2,
             uint32_t response_log2) noexcept;
  // PendingWatch
  void wake() noexcept override;

  Passed pass(Incoming& channel, ring::ChannelRx& reader, uint32_t salt, uint64_t now_ns) noexcept;
  bool bring_up(Incoming& channel, const ring::ChannelRx& reader) noexcept;
  bool draw_rnr() const noexcept;
  Passed await_receive(uint64_t now_ns) noexcept;
  bool say_not_ready() noexcept;
  Passed pass_answers(uint64_t now_ns, bool& any) noexcept;
  bool acknowledge(ring::ChannelWords& from, ring::ChannelWords& to, uint64_t at_most) noexcept;
  void count_operations() noexcept;
  void draw_end(uint64_t pos) noexcept;
  void end(Errc why) noexcept;
  Passed hold(uint64_t until_ns) noexcept;
  Passed hold(Incoming& channel, uint64_t until_ns) noexcept;
  void show_inner() noexcept;
  void set_asleep() noexcept;

  std::unique_ptr<Lane> inner_;
  LaneSpec spec_;
  Mapping memory_;
  ring::ChannelWords* request_words_;
  ring::ChannelWords* response_words_;
  FaultDice dice_;
  Incoming requests_;
  Incoming responses_;
  ring::CellReader posted_;  // our requests, as far as they are counted
  uint64_t operations_ = 0;
  uint64_t hold_until_ns_ = 0;  // nothing comes up before
  uint64_t look_again_ns_ = 0;
  uint64_t last_rung_requests_ = 0;  // published when the lane beneath was last asked
  uint64_t last_rung_responses_ = 0;
  // From this position on no request of ours is ever acknowledged.
  static constexpr uint64_t kNever = ~uint64_t{0};
  uint64_t unanswered_ = kNever;
  bool ended_ = false;  // nothing comes up any more
  bool is_moved_ = false;
};

}  // namespace aperture::link::faulty
