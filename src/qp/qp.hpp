// A queue pair of the libfabric family: one lane, and all that goes on over it.
//
// This is what the rooms above use; the work is in the parts, each with its contract at its head:
//
//   core.hpp                    what they share: lane, state, operations under way
//   line.hpp                    posting what fits one cell
//   requester.hpp               posting all else, and what waits until it may begin
//   send_requester.hpp          messages into the ring
//   rma_requester.hpp           remote writes and reads; direct.hpp: without the owner
//   atomic_requester.hpp        atomics
//   pending.hpp, responses.hpp  acknowledgements, results, completions
//   offer.hpp                   messages too large for the ring: offer_sender, offer_receiver
//   responder.hpp               executing the peer's requests; execution, atomic_responder and
//                               invalidation_responder
//   ending.hpp                  loss, and the end of what peers have begun
//
// Guarded by its engine's lock. InfiniBand semantics (ARCHITECTURE.md): requests execute in order,
// `consumed` acknowledges, a nak stored before it names what was refused. A refused RMA leaves the
// queue pair working, as libfabric expects. States: QpState.
#pragma once

#include <memory>

#include "qp/ending.hpp"
#include "qp/requester.hpp"
#include "qp/responder.hpp"
#include "transport/permit.hpp"

namespace aperture::qp {

class Line;

class Qp {
 public:
  // domain: that its peer's requests meet.
  Qp(Port& port, const Address& remote, protect::DomainId domain) noexcept
      : core_(*this, port, remote, domain) {}
  Qp(Port& port, const Address& remote) noexcept : Qp(port, remote, port.domain) {}
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
  // The peer broke the protocol, or has to be left for want of memory: finish() is due.
  bool broken() const noexcept { return core_.lane.broken(); }
  // Its loss, and the end of its peers' accesses.
  Ending& ending() noexcept { return ending_; }
  // -> dead: each operation that is left ends with one error, and nothing that the peer has begun
  // lands any more. Hands the lane back (may be null).
  std::unique_ptr<link::Lane> finish(Errc why) noexcept;

  // What is posted.
  Requester& requester() noexcept { return requester_; }
  // The hot path of that: what fits one cell and may go at once (line.hpp).
  Line line() noexcept;
  bool has_pending() const noexcept { return core_.has_pending(); }

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
    const Lines lines = poll_lines();
    if (lines.stopped && !responder_.poll() && !lines.any) [[unlikely]]
      return Look::poll;
    return core_.busy ? Look::poll : Look::taken;
  }
  void fall_asleep(uint64_t sleep_number) noexcept;
  void wake_up() noexcept { core_.lane.wake_up(); }
  bool sleeps_too_deep() noexcept { return core_.lane.sleeps_too_deep(core_.awaits_executed()); }
  bool peer_fences() const noexcept { return core_.lane.producer_fences(); }
  bool anything_arrived() const noexcept;
  // It is over and its owner should finish() it: broken, or lost and drained; and nobody is inside.
  bool needs_wind_up() const noexcept { return ending_.is_over() && ending_.is_access_over(); }
  // Completions of both come to the same queue.
  bool shares_queue_with(const Qp& other) const noexcept {
    return core_.port.shares_queue_with(other.core_.port);
  }
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
  bool progress(uint64_t polls) noexcept;
  // What poll_lines() has done.
  struct Lines {
    bool any;      // some were taken
    bool stopped;  // something is at the head of the ring that it leaves to the responder
  };
  Lines poll_lines() noexcept;
  void acknowledge() noexcept;

  QpCore core_;
  transport::Gate gate_;

  Pending pending_{core_};
  Replies replies_{core_};
  OfferSender sender_{core_, pending_};
  OfferReceiver receiver_{core_, replies_};
  Responses responses_{core_, pending_, sender_, receiver_};
  DirectRma direct_{core_, pending_, responses_};
  Requester requester_{core_, pending_, sender_, responses_, direct_};

  Execution execution_{core_};
  AtomicResponder atomic_responder_{core_, execution_};
  InvalidationResponder invalidations_{core_, execution_};
  Responder responder_{core_, responses_, execution_, atomic_responder_, invalidations_};
  Ending ending_{core_, gate_, execution_};
};

}  // namespace aperture::qp
