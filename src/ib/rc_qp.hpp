// Queue pairs over a lane: reliable and unreliable connections, and XRC. IBTA vol. 1, 9.7 (reliable
// service), 9.8 (unreliable), 9.9 (errors), 10.2.
//
// Guarded by its context's engine lock. Requests execute in order at the responder, and `consumed`
// acknowledges them; a nak that was stored before it names what was refused. Then the requester
// fails that WQE and flushes the rest, and the responder takes nothing more. An unreliable
// connection goes the same way, only that nobody waits for the responder and nothing is refused
// aloud: what cannot be executed is dropped.
//
// This class is the life of the lane and polling. The work is done by its parts:
//   rc_core.hpp       the lane and the state that all parts look at
//   rc_requester.hpp  WQEs into the ring, by the fast path and the slow path
//   rc_answers.hpp    results, refusals, receiver-not-ready, acknowledgements
//   rc_direct.hpp     RDMA without the target's help where it does not poll; claims
//   rc_windows.hpp    windows: bind and invalidate
//   rc_responder.hpp  executing the peer's requests, by the fast path and the slow path;
//                     rc_receiver, rc_word_responder and rc_execution
//   rc_loss.hpp       what is left when the peer is gone
//   rc_explain.hpp    the sentence for a refusal
#pragma once

#include <memory>

#include "ib/rc_loss.hpp"
#include "ib/rc_requester.hpp"
#include "ib/rc_responder.hpp"

namespace aperture::ib {

class RcQp final : public RcCore {
 public:
  RcQp(const QpSpec& spec, LaneHost& host);
  ~RcQp() override;

  // The lane to the queue pair that is the other end.
  void attach(std::unique_ptr<link::Lane> lane) noexcept;
  // None can be had; or the lane that there was is down, and what the peer had published is read.
  void lane_failed(Errc why) noexcept;
  void lose() noexcept;
  // Into the error state as it is, by a fault that the user has asked for.
  void break_down() noexcept;
  link::Lane* lane() const noexcept { return lane_.get(); }
  const Address& remote() const noexcept { return remote_; }

  // link::Pollable
  bool poll(uint64_t polls) noexcept override;
  Look look() noexcept override {
    if (!lane_) [[unlikely]]
      return windows_.is_waiting() || lost_until_ns_ != 0 ? Look::poll : Look::nothing;
    if (busy_ || lane_->response_rx.cells.ready()) return Look::poll;
    if (!lane_->request_rx.cells.ready() || responder_.receiver().is_waiting())
      return Look::nothing;
    return responder_.take_fast() ? Look::taken : Look::poll;
  }
  void fall_asleep(uint64_t sleep_number) noexcept override;
  void wake_up() noexcept override { lane_.wake_up(); }
  bool sleeps_too_deep() noexcept override { return lane_.sleeps_too_deep(awaits_answers()); }
  bool peer_fences() const noexcept override { return lane_.producer_fences(); }
  bool anything_arrived() const noexcept override;
  bool needs_polling() const noexcept override;
  bool needs_later_look() const noexcept override;
  bool needs_wind_up() const noexcept override { return false; }

  void on_receive_posted() noexcept override;
  bool end_access() noexcept override {
    return !lane_ || gate_.begin_to_shut(lane_, spec_.keys->accessors());
  }
  bool is_older_access_over() noexcept override {
    return !lane_ || gate_.is_quiet(lane_, spec_.keys->accessors());
  }

 protected:
  bool post_fast(const SendWr& wr) noexcept override;
  void run_send_queue() noexcept override;
  // From here on nothing of the peer's lands in our memory, whatever it has begun.
  void stop() noexcept override;
  bool may_fail_now() noexcept override;
  void take_what_arrived() noexcept override;
  void take_answers() noexcept override;
  void on_access_changed() noexcept override;

 private:
  void begin_anew() noexcept;
  bool poll_without_lane() noexcept;
  template <typename Allowed>
  void execute_arrived(Allowed&& allowed) noexcept;
  void end_if_broken() noexcept;
  void update_pending() noexcept;
  void serve_peer() noexcept override;

  transport::Gate gate_;
  bool is_ending_ = false;  // the lane has ceased, and a peer is inside
  RcAnswers answers_{*this};
  RcWindows windows_{*this, answers_};
  RcDirect direct_{*this, answers_};
  RcRequester requester_{*this, answers_, direct_, windows_};
  RcResponder responder_{*this, answers_, windows_};
  RcLoss loss_{*this, answers_, requester_, responder_.receiver()};
};

}  // namespace aperture::ib
