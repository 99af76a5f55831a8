// The responder: executes the peer's requests in order. IBTA vol. 1, 9.7.4 and 9.9.3.
//
// Everything here is a peer's word; what cannot come from a sound peer ends the connection
// (break_protocol), what a sound peer may get wrong is refused, and the queue pair takes nothing
// more. An unreliable connection refuses nothing aloud: what cannot be executed is dropped.
//
// The fast path takes sends and writes whose bytes lie in one cell, where a send needs a receive of
// one piece; anything else, and whatever is wrong, takes the slow path. Guarded by the engine's
// lock. A part of RcQp, see rc_core.hpp. Invariant: recv_ is a receive that was taken if and only
// if taken_ is true, and then it completes before another is taken.
#pragma once

#include "ib/rc_answers.hpp"
#include "ib/rc_windows.hpp"
#include "transport/remote_access.hpp"

namespace aperture::ib {

class RcResponder {
 public:
  RcResponder(RcCore& core, RcAnswers& answers, RcWindows& windows) noexcept
      : q_(core), answers_(answers), windows_(windows), access_(core.spec().keys->access()) {}

  // The fast path. True: some of the requests at the head of the ring were of that kind, and are
  // done.
  bool take_fast() noexcept;
  // Executes what has arrived, up to a budget. True: something.
  bool poll() noexcept;

  // The head of the ring waits for a receive: there is nothing to do until one is posted.
  bool is_waiting() const noexcept { return waiting_; }
  void stop_waiting() noexcept { waiting_ = false; }
  // It was looked at and stays: it waits for room for its answer, for a claim to end, or for
  // completions to be taken.
  bool is_held() const noexcept {
    const ring::CellReader& cells = q_.lane_->request_rx.cells;
    return held_at_ == cells.pos() && cells.ready();
  }
  // A message has taken its receive, and the rest of it has not come.
  bool has_begun() const noexcept { return taken_; }
  // Its bytes are in place, and the invalidation that it asks for is under way.
  bool is_ending() const noexcept { return placed_; }
  bool is_streaming() const noexcept { return access_.is_streaming(); }
  // The receive under way fails, and with it the queue pair. theirs: what the peer is told, unless
  // success.
  void fail_receive(WcStatus mine, WcStatus theirs) noexcept;

  // What was half done with an earlier lane does not go on with the next. A receive that a message
  // of an unreliable connection had taken is for the next message.
  void begin_anew() noexcept;
  // The queue pair is reset, or in error: a receive is never lost.
  void stop() noexcept;

 private:
  static constexpr uint64_t kNowhere = ~uint64_t{0};

  void complete_answered_sends() noexcept;
  bool take_one(const wire::RcHeadFields<Wild>& head, const std::byte* body) noexcept;
  bool receive_fast(const wire::RcHeadFields<Wild>& head, uint16_t len,
                    const std::byte* payload) noexcept;
  bool write_fast(const wire::RcHeadFields<Wild>& head, uint16_t len,
                  const std::byte* body) noexcept;
  bool may_complete() const noexcept;
  void complete_fast(const wire::RcHeadFields<Wild>& head, WcOpcode opcode, uint16_t len) noexcept;

  bool execute(const wire::RcMessage& m) noexcept;
  bool on_send(const wire::RcMessage& m) noexcept;
  bool on_send_bytes(const wire::RcMessage& m) noexcept;
  bool on_write(const wire::RcMessage& m) noexcept;
  bool on_write_bytes(const wire::RcMessage& m) noexcept;
  bool on_notice(const wire::RcMessage& m) noexcept;
  bool on_read() noexcept;
  template <typename Fn>
  bool work_on_word(const protect::AccessAsk& ask, Fn&& fn) noexcept;
  bool on_atomic() noexcept;
  bool on_atomic_write() noexcept;
  bool on_flush() noexcept;

  bool serve_xrc(const wire::RcMessage& m) noexcept;
  ReceiveQueue* queue_for(const wire::RcMessage& m) noexcept;
  void forget_waiting() noexcept;
  // lost: unreliable, and nobody has posted one. refused: the request is over.
  enum class Receive : uint8_t { taken, waits, lost, refused };
  Receive take_receive(const wire::RcMessage& m) noexcept;
  WcStatus place_inline(const wire::RcMessage& m) noexcept;
  bool deliver(const wire::RcMessage& m, uint64_t len, WcOpcode opcode) noexcept;
  void fail_too_long(uint64_t len) noexcept;
  void end_receive(WcStatus mine) noexcept;
  bool refuse(WcStatus status, const protect::AccessAsk* ask, protect::Denial denial) noexcept;
  bool refuse(WcStatus status, uint8_t flags, uint32_t imm) noexcept;
  // Room has been seen to.
  template <typename Fields>
  void respond(const wire::RcHead& head, const Fields& f, uint32_t n_cells = 1) noexcept {
    wire::store_rc(q_.lane_->response_tx.cells.body(), head, f);
    q_.lane_.publish_response(n_cells);
  }
  protect::AccessAsk ask_of(Wild<uint32_t> rkey, Wild<uint64_t> addr, uint64_t len,
                            protect::Rights need) const noexcept {
    return {q_.memory_.pd(), 0, Wild<uint64_t>(rkey.unchecked()), addr, Wild<uint64_t>(len), need,
            q_.id_};
  }

  RcCore& q_;
  RcAnswers& answers_;
  RcWindows& windows_;
  transport::RemoteAccess access_;
  bool established_ = false;     // comm_est was raised
  bool taken_ = false;           // recv_ is the receive of the message under way
  bool waiting_ = false;         // told to the receive queue
  bool rnr_told_ = false;        // of the head
  bool dropping_ = false;        // UC: the rest of this message is not taken
  bool placed_ = false;          // its bytes are in place: its invalidation is under way
  bool write_refused_ = false;   // UC: of the write under way
  uint64_t got_ = 0;             // bytes of the message under way
  bool turn_over_ = false;       // what is at the head goes on with the next poll
  uint64_t held_at_ = kNowhere;  // where the head was when it was left there
  uint32_t recv_srq_ = 0;        // XRC: number of the queue that recv_ is of, or is waited for
  TakenRecv recv_;
};

}  // namespace aperture::ib
