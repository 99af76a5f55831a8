// A queue pair of the libfabric family: one lane, and all that goes on over it.
//
// This is what the rooms above use; the work is in the parts, each with its contract at its head:
//
//   core.hpp                    what they share: lane, state, operations under way
//   send_requester.hpp          messages into the ring
//   rma_requester.hpp           remote writes and reads; direct.hpp: without the owner
//   atomic_requester.hpp        atomics
//   pending.hpp, responses.hpp  acknowledgements, results, completions
//   offer.hpp                   messages too large for the ring: offer_sender, offer_receiver
//   responder.hpp               executing the peer's requests; execution, atomic_responder and
//                               invalidation_responder
//
// Guarded by its engine's lock. InfiniBand semantics (ARCHITECTURE.md): requests execute in order,
// `consumed` acknowledges, a nak stored before it names what was refused. A refused RMA leaves the
// queue pair working, as libfabric expects. States: QpState.
#pragma once

#include <memory>

#include "qp/atomic_requester.hpp"
#include "qp/responder.hpp"
#include "qp/rma_requester.hpp"
#include "qp/send_requester.hpp"
#include "transport/permit.hpp"

namespace aperture::qp {

class Qp {
 public:
  Qp(Port& port, const Address& remote) noexcept : core_(*this, port, remote) {}
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  QpState state() const noexcept { return core_.state; }
  const Address& remote() const noexcept { return core_.remote; }
  link::Lane* lane() noexcept { return core_.lane.get(); }
  // What memory windows of this peer alone are bound to: drawn when first asked for, and of no
  // other queue pair ever.
  protect::EndpointId number() noexcept {
    if (core_.number == 0) core_.number = protect::new_endpoint_id();
    return core_.number;
  }
  Port& port() noexcept { return core_.port; }

  // connecting -> ready; queued operations start with the next poll. Without memory for the lane's
  // bookkeeping it is lost at once, with Errc::no_memory: needs_wind_up() is true.
  void attach(std::unique_ptr<link::Lane> lane) noexcept;
  // ready -> draining: finish() becomes possible once drained() is true.
  void lose(Errc why) noexcept;
  bool drained() const noexcept;
  // The peer broke the protocol: finish(Errc::protocol) is due.
  bool broken() const noexcept { return core_.lane.broken(); }
  // -> dead: each operation that is left ends with one error, and nothing that the peer has begun
  // lands any more. Hands the lane back (may be null).
  std::unique_ptr<link::Lane> finish(Errc why) noexcept;

  Status send(const SendWr& wr) noexcept { return sends_.post(wr); }
  // The hot path of sending: a message of one cell that may go at once (line.hpp). False: nothing
  // was done, take send().
  bool send_line(const LineWr& wr) noexcept;
  Status rma(WqeKind kind, const RmaWr& wr) noexcept {
    const Status s = rma_.post(kind, wr);
    if (core_.one_sided.has_copied()) [[unlikely]]
      serve_peer();
    return s;
  }
  Status atomic(const AtomicWr& wr) noexcept { return atomics_.post(wr); }
  // Cancels a send that has not begun. Errors: no_entry.
  Status cancel(void* context) noexcept;
  bool has_pending() const noexcept { return core_.has_pending(); }
  // Something is in the ring and not known to be executed: what a fence waits for.
  bool under_way() const noexcept { return core_.under_way(); }
  // Learns now what has been executed, also of what nobody waits for.
  void look_at_acknowledgements() noexcept {
    if (core_.state == QpState::ready && !core_.pending.empty()) responses_.learn_executed();
  }
  // Something is not in the ring yet.
  bool has_queued() const noexcept { return !core_.queue.empty(); }

  // Progresses everything once. True if anything happened.
  bool poll(uint64_t polls) noexcept;
  // The hot path of polling: executes the requests that have arrived. Due instead is a poll(),
  // which also looks at what only time moves (claims, pulls, the peer's view of our polls), every
  // few polls and whenever there is more to do: Look::poll.
  enum class Look : uint8_t { nothing, taken, poll };
  Look look() noexcept {
    if (core_.busy || !core_.lane || core_.lane->response_rx.cells.ready()) [[unlikely]]
      return Look::poll;
    if (!core_.lane->request_rx.cells.ready()) return Look::nothing;
    const bool lines = poll_lines();
    if (core_.lane->request_rx.cells.ready() && !responder_.poll() && !lines) return Look::poll;
    return core_.busy ? Look::poll : Look::taken;
  }
  void fall_asleep() noexcept;
  void wake_up() noexcept { core_.lane.wake_up(); }
  bool sleeps_too_deep() noexcept { return core_.lane.sleeps_too_deep(core_.awaits_executed()); }
  bool peer_fences() const noexcept { return core_.lane.producer_fences(); }
  bool anything_arrived() const noexcept;
  // It is over and its owner should finish() it: broken, or lost and drained; and nobody is inside.
  bool needs_wind_up() const noexcept { return is_over() && access_over_; }
  // Completions of both come to the same queue.
  bool shares_queue_with(const Qp& other) const noexcept {
    return core_.port.shares_queue_with(other.core_.port);
  }
  // Before finish(), without anything in between but polls (nic::until): no peer begins a direct
  // access through it any more; true once nothing that one has begun can land.
  bool end_access() noexcept {
    access_over_ = !core_.lane || gate_.begin_to_shut(core_.lane, core_.port.keys);
    core_.busy = core_.busy || !access_over_;
    return access_over_;
  }
  // Why, for its owner: the loss, or that the peer broke the protocol.
  Errc why_over() const noexcept { return lost_why_ != Errc::ok ? lost_why_ : Errc::protocol; }
  // Something goes on only while we poll (claims and pulls have no doorbell): do not sleep.
  bool needs_polling() const noexcept;
  // Something waits for the peer, which may go on without ringing: look again after a while.
  bool needs_later_look() const noexcept;

  // For msg/: takes an offered message into `receive` (on_received follows, maybe at once), or
  // drops it. Also from inside on_message.
  Status begin_receive(const Arrival& offer, const Receive& receive) noexcept {
    return receiver_.begin(offer, receive);
  }
  void drop_offer(uint32_t offer_id) noexcept { receiver_.drop(offer_id); }
  // Asks the peer to send no payload unasked (or to go back to normal).
  void set_pressure(bool on) noexcept;

  // The peer's address-table index as last looked up, for the owner of the table.
  uint64_t source_index = kNoSource;
  uint64_t source_reported = kNoSource;  // what completions say instead
  uint64_t source_version = 0;

 private:
  void serve_peer() noexcept;
  bool is_over() const noexcept {
    return broken() || (core_.state == QpState::draining && drained());
  }
  bool progress(uint64_t polls) noexcept;
  bool poll_lines() noexcept;
  void acknowledge() noexcept;
  void run_queue() noexcept;
  bool start(Wqe& wqe) noexcept;

  QpCore core_;
  transport::Gate gate_;
  Errc lost_why_ = Errc::ok;
  bool access_over_ = false;  // end_access() has said so

  Pending pending_{core_};
  Replies replies_{core_};
  OfferSender sender_{core_, pending_};
  OfferReceiver receiver_{core_, replies_};
  Responses responses_{core_, pending_, sender_, receiver_};
  DirectRma direct_{core_, pending_, responses_};
  SendRequester sends_{core_, pending_, sender_, responses_};
  RmaRequester rma_{core_, pending_, responses_, direct_};
  AtomicRequester atomics_{core_, pending_, responses_};

  Execution execution_{core_};
  AtomicResponder atomic_responder_{core_, execution_};
  InvalidationResponder invalidations_{core_, execution_};
  Responder responder_{core_, responses_, execution_, atomic_responder_, invalidations_};
};

}  // namespace aperture::qp
