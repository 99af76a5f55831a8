// The responder: executes the peer's requests in order. IBTA vol. 1, 9.7.4 and 9.9.3.
//
// Everything here is a peer's word; what cannot come from a sound peer ends the connection
// (break_protocol), what a sound peer may get wrong is refused, and the queue pair takes nothing
// more. An unreliable connection refuses nothing aloud: what cannot be executed is dropped.
//
// The fast path takes sends and writes whose bytes lie in one cell, where a send needs a receive of
// one piece; anything else, and whatever is wrong, takes the slow path: messages are for the
// receiver, what is about one word is RcWordResponder's, writes and reads are done here. Guarded by
// the engine's lock. A part of RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_answers.hpp"
#include "ib/rc_receiver.hpp"
#include "ib/rc_word_responder.hpp"
#include "transport/pace.hpp"
#include "transport/turn.hpp"

namespace aperture::ib {

class RcResponder {
 public:
  RcResponder(RcCore& core, RcAnswers& answers, RcWindows& windows) noexcept
      : q_(core),
        answers_(answers),
        execution_(core),
        receiver_(core, execution_, windows),
        words_(core, execution_) {}

  // The fast path. True: some of the requests at the head of the ring were of that kind, and are
  // done.
  bool take_fast() noexcept;
  // Executes what has arrived, up to a budget. True: something.
  bool poll() noexcept;

  // Messages of the peer, and what they wait for.
  RcReceiver& receiver() noexcept { return receiver_; }
  const RcReceiver& receiver() const noexcept { return receiver_; }
  // The head of the ring stays: it waits for room for its answer, for a claim to end, or for
  // completions to be taken. Not what waits for a receive: no room and no time helps it on.
  bool is_held() const noexcept {
    return !receiver_.is_waiting() && turn_.is_held(q_.lane_->request_rx.cells);
  }
  bool is_streaming() const noexcept { return execution_.access().is_streaming(); }
  // What was half done with an earlier lane does not go on with the next. A receive that a message
  // of an unreliable connection had taken is for the next message.
  void begin_anew() noexcept;
  // The queue pair is reset, or in error: a receive is never lost.
  void stop() noexcept;

 private:
  void complete_answered_sends() noexcept;
  bool take_one(const wire::RcHeadFields<Wild>& head, const std::byte* body) noexcept;
  bool receive_fast(const wire::RcHeadFields<Wild>& head, uint16_t len,
                    const std::byte* payload) noexcept;
  bool write_fast(const wire::RcHeadFields<Wild>& head, uint16_t len,
                  const std::byte* body) noexcept;
  bool may_complete() const noexcept;
  void complete_fast(const wire::RcHeadFields<Wild>& head, WcOpcode opcode, uint16_t len) noexcept;

  bool execute(const wire::RcMessage& m) noexcept;
  bool on_write(const wire::RcMessage& m) noexcept;
  bool on_write_bytes(const wire::RcMessage& m) noexcept;
  bool on_notice(const wire::RcMessage& m) noexcept;
  bool on_read() noexcept;

  RcCore& q_;
  RcAnswers& answers_;
  RcExecution execution_;
  RcReceiver receiver_;
  RcWordResponder words_;
  bool established_ = false;    // comm_est was raised
  bool write_refused_ = false;  // UC: of the write under way
  transport::Turn turn_;
  transport::Pace pace_;
};

}  // namespace aperture::ib
