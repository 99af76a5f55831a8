// What every kind of queue pair has: a send queue, a receive queue, completion queues, attributes
// and a state. IBTA vol. 1, 10.2.4 and 10.3; ibv_modify_qp(3), ibv_post_send(3).
//
// Guarded by its context's engine lock: every call is made with it held. Derived classes carry the
// WQEs out: rc_qp.hpp over a lane (RC, UC, XRC), ud_qp.hpp as datagrams. WQEs of the send queue
// complete in order, each at most once; after an error the queue pair is in the error state (UD:
// its send queue is, SQE) and every WQE that is left, and every one that is posted from then on,
// completes as flushed.
#pragma once

#include <cassert>
#include <cstdint>

#include "ib/local_memory.hpp"
#include "ib/post_fault.hpp"
#include "ib/qp_spec.hpp"
#include "ib/receive_side.hpp"
#include "ib/send_queue.hpp"
#include "ib/work.hpp"
#include "link/pollable.hpp"

namespace aperture::ib {

class QueuePair : public link::Pollable {
 public:
  // By exception std::bad_alloc.
  explicit QueuePair(const QpSpec& spec);
  ~QueuePair() override;
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  uint32_t qpn() const noexcept { return spec_.qpn; }
  // What type 2 windows are bound to: unique in this process, never used again.
  protect::EndpointId id() const noexcept { return id_; }
  QpState state() const noexcept { return attr_.state; }
  const QpAttributes& attributes() const noexcept { return attr_; }
  const QpSpec& spec() const noexcept { return spec_; }

  // Errors: invalid (an operation that this type has not, too many pieces, too long, inline where
  // there is none), bad_state (before RTS), no_space (the queue is full).
  Status post_send(const SendWr& wr) noexcept;
  // Why it would not take it behind `ahead` others that are still to be posted.
  PostFault fault_of(const SendWr& wr, uint32_t ahead) const noexcept;
  // Errors: bad_state (reset), invalid, no_space. Not with an SRQ: invalid.
  Status post_recv(const RecvWr& wr) noexcept;

  // Takes the attributes that the mask names; validate_modify() has found nothing wrong with it.
  void modify(const QpAttributes& attr, uint32_t mask) noexcept;
  // -> err: everything that is posted completes as flushed. Where a peer is still inside memory of
  // ours, it goes on ending in its polls and is in that state once the peer is not.
  void fail() noexcept;
  // Its completions are gone from its CQs, and its lane is given back; before it is destroyed.
  void leave() noexcept;
  // Takes what has reached it, as a poll would. True: it has completions, successes, that nobody
  // has polled yet.
  bool has_untaken_successes() noexcept;
  // To be asked, with nothing else in between but polls (nic::until), before a call that brings it
  // to reset or err, or destroys it: no peer begins a direct access through it any more; true once
  // nothing that one has begun can land.
  virtual bool end_access() noexcept { return true; }
  // The same after modify(), of what a peer had begun under the access flags before.
  virtual bool is_older_access_over() noexcept { return true; }

  // Windows of type 2A that are bound to it: it cannot be destroyed while there are any.
  protect::WindowCount& windows_bound() noexcept { return windows_bound_; }
  bool has_pending() const noexcept override { return !sq_.is_empty(); }
  // In SQD: something that was begun before is not over. What is queued waits for RTS.
  bool is_draining() const noexcept {
    return attr_.state == QpState::sqd && (sq_.head != sq_.next || sq_.is_begun(sq_.next));
  }
  // Receives were posted: a message may wait for one.
  virtual void on_receive_posted() noexcept {}

 protected:
  // --- for derived classes ---
  // The fast path: does all of it, if it is one of the most usual kind and nothing is in its way.
  // What it declines is validated, queued and begun.
  virtual bool post_fast(const SendWr&) noexcept { return false; }
  // A WQE is there that may be begun; called after each post, and when the state allows it again.
  virtual void run_send_queue() noexcept = 0;
  // Reset, error or end: nothing comes in or goes out any more.
  virtual void stop() noexcept = 0;
  // Before it fails by itself. False: fail() is to be called again, from a poll.
  virtual bool may_fail_now() noexcept { return true; }
  // What has reached this end is executed before it goes, or is stopped by its program: a NIC would
  // have done so long ago.
  virtual void take_what_arrived() noexcept {}
  // And what the peer has executed is a success.
  virtual void take_answers() noexcept {}
  // What peers may do has been set.
  virtual void on_access_changed() noexcept {}

  bool may_send() const noexcept { return attr_.state == QpState::rts; }
  // The next WQE may be begun; or it was before the queue was to drain, and ends.
  bool may_go_on() const noexcept {
    return may_send() || (attr_.state == QpState::sqd && sq_.is_begun(sq_.next));
  }

  // The oldest WQE is over, well or badly; badly: all behind it are flushed, and the error state
  // follows, or that of the send queue alone where nobody waits for answers (UC, UD).
  void complete_head() noexcept;
  void check_drained() noexcept;
  // As fail(), for a reason that the application has to be told: a lost completion, for one.
  void fail_fatally() noexcept;
  void raise(AsyncEvent event) noexcept { spec_.events->on_async_event(event); }

  const QpSpec spec_;
  const protect::EndpointId id_;
  QpAttributes attr_;
  bool fatal_ = false;  // qp_fatal follows when it is in the error state
  ReceiveSide receiving_;
  SendQueue sq_;
  LocalMemory memory_;

 private:
  friend class ReceiveSide;

  void fail_send_queue() noexcept;
  void flush() noexcept;

  bool drain_told_ = false;  // SQD: sq_drained was raised
  protect::WindowCount windows_bound_;
};

}  // namespace aperture::ib
