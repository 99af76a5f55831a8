// The receiver: messages of the peer into receives, and the receives that its writes take.
//
// A message takes the oldest receive of its queue; where there is none, the peer is told once and
// the message waits at the head of the ring, or is lost if nobody waits for an answer. The
// invalidation that a send asks for comes before its completion. Guarded by the engine's lock. A
// part of RcQp, see rc_core.hpp. Invariant: recv_ is a receive that was taken if and only if taken_
// is true, and then it completes before another is taken.
#pragma once

#include "ib/rc_execution.hpp"
#include "ib/rc_windows.hpp"

namespace aperture::ib {

// What the sender says to the application: immediate data are its business alone.
inline void say(Wc& wc, uint8_t flags, Wild<uint32_t> imm) noexcept {
  wc.imm = imm.unchecked();
  wc.flags = (flags & wire::kRcImm) != 0 ? kWcWithImm : 0;
  wc.solicited = (flags & wire::kRcSolicited) != 0;
}

class RcReceiver {
 public:
  RcReceiver(RcCore& core, RcExecution& execution, RcWindows& windows) noexcept
      : q_(core), execution_(execution), windows_(windows) {}

  // The request at the head of the ring. False: it stays there.
  bool on_send(const wire::RcMessage& m) noexcept;
  bool on_send_bytes(const wire::RcMessage& m) noexcept;
  // An XRC request works for the receive queue that it names: in its domain, with its completions.
  // False: it names none of ours.
  bool serve_xrc(const wire::RcMessage& m) noexcept;
  // Where the messages that it serves complete. Null: nowhere yet, or that queue is gone.
  CompletionQueue* completes_at() const noexcept;
  // A receive for the message at the head; if none is posted, the peer is told once. lost:
  // unreliable, and nobody has posted one. refused: the request is over.
  enum class Receive : uint8_t { taken, waits, lost, refused };
  Receive take(const wire::RcMessage& m) noexcept;
  // Its bytes are in place: what is left is the invalidation it asks for, and the completion.
  // False: the invalidation is not over.
  bool deliver(const wire::RcMessage& m, uint64_t len, WcOpcode opcode) noexcept;
  // The head of the ring has moved on.
  void step() noexcept { rnr_told_ = waiting_ = false; }

  // The head of the ring waits for a receive: there is nothing to do until one is posted.
  bool is_waiting() const noexcept { return waiting_; }
  void stop_waiting() noexcept { waiting_ = false; }
  // A message has taken its receive, and the rest of it has not come.
  bool has_begun() const noexcept { return taken_; }
  // Its bytes are in place, and the invalidation that it asks for is under way.
  bool is_ending() const noexcept { return placed_; }
  // The receive under way fails, and with it the queue pair. theirs: what the peer is told, unless
  // success.
  void fail(WcStatus mine, WcStatus theirs) noexcept;

  // As RcResponder's.
  void begin_anew() noexcept;
  void stop() noexcept;

 private:
  ReceiveQueue* queue_for(const wire::RcMessage& m) noexcept;
  void forget_waiting() noexcept;
  WcStatus place_inline(const wire::RcMessage& m) noexcept;
  void fail_too_long(uint64_t len) noexcept;
  void end(WcStatus mine) noexcept;

  RcCore& q_;
  RcExecution& execution_;
  RcWindows& windows_;
  bool taken_ = false;     // recv_ is the receive of the message under way
  bool waiting_ = false;   // told to the receive queue
  bool rnr_told_ = false;  // of the head
  bool dropping_ = false;  // UC: the rest of this message is not taken
  bool placed_ = false;    // its bytes are in place: its invalidation is under way
  uint64_t got_ = 0;       // bytes of the message under way
  uint32_t recv_srq_ = 0;  // XRC: number of the queue that recv_ is of, or is waited for
  TakenRecv recv_;
};

}  // namespace aperture::ib
