// A reliable datagram endpoint: lazily connected queue pairs to the addresses of a table, and the
// matching of incoming messages. What the libfabric door wraps as fid_ep.
//
// Guarded by its engine's lock: every call below is made with it held, unless it says otherwise.
// Posting calls return Errc::again when there is no room now (poll and call again); nothing has
// been done then. An operation accepted gives exactly one completion if it asked for one, or one
// error.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "msg/matcher.hpp"
#include "nic/address_table.hpp"
#include "nic/engine.hpp"
#include "qp/completion.hpp"
#include "qp/limits.hpp"
#include "qp/work_request.hpp"

namespace aperture::nic {

class SharedReceive;

struct EndpointOptions {
  Engine* engine = nullptr;
  AddressTable* addresses = nullptr;
  protect::DomainId domain = 0;            // that peers' requests meet; 0: the engine's
  std::shared_ptr<const Secret> auth_key;  // null: none; peers must have the same
  // Instead of those two, one or more.
  struct Key {
    uint8_t number = 0;  // Address::key of its peers
    std::shared_ptr<const Secret> secret;
    protect::DomainId domain = 0;
  };
  std::vector<Key> keys;
  const qp::RawKeys* raw_keys = nullptr;  // see qp::Port
  qp::Cq* tx_cq = nullptr;                // may be null: no such operations then
  qp::Cq* rx_cq = nullptr;
  struct Counters {  // each may be null
    qp::Counter* send = nullptr;
    qp::Counter* recv = nullptr;
    qp::Counter* read = nullptr;
    qp::Counter* write = nullptr;
    qp::Counter* remote_read = nullptr;
    qp::Counter* remote_write = nullptr;
  } counters;
  const protect::Wording* wording = &protect::kNeutralWording;  // of the door that opens it
  protect::EndpointId id = 0;     // for regions that are bound to it; 0: none are
  bool watches_regions = false;   // remote writes through it count in counters of regions
  Address local;                  // port 0: any
  bool at_open_port = false;      // of Contact::open_context_port(): one context of several
  bool connects_only = false;     // nobody may come to it
  uint64_t imm_flag = 0;          // or-ed into Completion::flags when imm is valid
  uint64_t invalidated_flag = 0;  // the same when it is the key of a window that is no more
  uint64_t release_flag = 0;      // or-ed into the last entry of a multi-receive buffer
  const msg::BufferedRule* buffered = nullptr;  // messages are shown; null: they are received
  uint64_t remote_write_flags = 0;  // Completion::flags of an incoming write with immediate data
  bool groups = false;              // may be a member of groups
  bool directed_recv = false;       // honour RecvWr::source
  bool report_source = false;       // fill Completion::source
  bool strict_rma_order = false;    // RMA after every earlier operation to the same peer
  size_t tx_size = 1024;            // operations in flight that are planned for
  size_t atomics_waiting = 0;       // of tx_size, atomics that wait for a connection or for room
  size_t rx_size = 1024;            // receives posted that are planned for (more are taken)
  SharedReceive* shared_receive = nullptr;       // where receives are posted; null: here
  qp::TransmitQueue* shared_transmit = nullptr;  // null: one of its own, of tx_size

  protect::DomainId met_by_requests() const noexcept {
    return domain != 0 ? domain : engine->domain();
  }
};

// Everything in a port but its sink.
void set_up(qp::Port& port, const EndpointOptions& options) noexcept;

class Endpoint {
 public:
  // Listens at options.local. Into `place`, which is written with the lock held, and before anybody
  // can come to the endpoint: who tells it of changes to the table finds it there in time. Empty
  // after an error. Lock not held. Errors: those of Contact::listen, no_memory.
  static Status create(std::unique_ptr<Endpoint>& place, const EndpointOptions& options) noexcept;
  // Flushes what was accepted (bounded by about 1 s while a connection comes up), then cancels the
  // rest and closes the lanes. Lock not held, and nobody else in a call on it.
  virtual ~Endpoint() = default;

  virtual const Address& address() const noexcept = 0;

  // The hot path of sending asks for the queue pair to an address itself; a connected endpoint has
  // one, whatever the address. nullptr: none is known yet; send() finds or makes it.
  qp::Qp* qp_of(uint64_t index) const noexcept { return index < n_qps_ ? qps_[index] : only_; }

  virtual Status send(const qp::SendWr& wr) noexcept = 0;
  virtual Status recv(const qp::RecvWr& wr) noexcept = 0;
  // A buffer for many messages, released once less than least_room bytes are left of it.
  virtual Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept = 0;
  virtual Status write(const qp::RmaWr& wr) noexcept = 0;
  virtual Status read(const qp::RmaWr& wr) noexcept = 0;
  virtual Status atomic(const qp::AtomicWr& wr) noexcept = 0;
  // The number of the queue pair to that address, which memory windows may be bound to: of its life
  // alone, never used again. Begins to connect if there is none. Errors: no_entry, no_memory,
  // not_supported (a connected endpoint has one peer, so its own id will do).
  virtual Result<protect::EndpointId> queue_pair_number(uint64_t /*index*/) noexcept {
    return Errc::not_supported;
  }

  // Looks for an unexpected message. msg::Probe tells what to do with it.
  virtual Status probe(const msg::Probe& probe) noexcept = 0;
  // Cancels the first operation with that context that can still be (receives, and sends not
  // begun); it completes with Errc::canceled. Errors: no_entry.
  virtual Status cancel(void* context) noexcept = 0;
  // Receives for messages of groups (SendWr::has_imm is kOfGroup), with options.groups: tagged, of
  // a source, kTold, with msg::kGroupReceive; and ending one, as cancel().
  virtual Status recv_of_group(const qp::RecvWr& /*wr*/) noexcept { return Errc::not_supported; }
  virtual Status cancel_of_group(void* /*context*/) noexcept { return Errc::not_supported; }
  // The address table has this index anew: what its owner sent before is a message of it.
  virtual void learn(uint64_t /*index*/) noexcept {}
  // The address table has lost this index: its connection is closed, pending operations end with
  // Errc::canceled.
  virtual void forget(uint64_t index) noexcept = 0;
  // True while anything accepted for sending is not with the peer yet.
  virtual bool has_pending() const noexcept = 0;

  // Likewise that of posting receives; nullptr: recv() has to look first, for sources that it does
  // not know or that mean the same peer, or at a connection that is over.
  msg::Matcher* matcher() const noexcept { return sources_.receives_look() ? nullptr : receives_; }

 protected:
  // Operations accepted before the end get so long to reach their peer.
  static constexpr uint64_t kFlushNs = 1'000'000'000;
  // Sends what was accepted: an injected message may be all that the peer waits for. Polls until
  // all_sent() is true, which is asked with the engine's lock held. Lock not held.
  template <typename AllSent>
  static void flush(Engine& engine, AllSent&& all_sent) noexcept {
    const uint64_t deadline_ns = now_ns() + kFlushNs;
    for (;;) {
      {
        PollGuard guard(engine);
        if (all_sent()) return;
        engine.poll();
        guard.found_nothing();
      }
      if (now_ns() >= deadline_ns) return;
      cpu_relax();
    }
  }

  // Both outlive the endpoint, or are members of the derived class.
  // receives: see matcher(); the derived class may change it.
  Endpoint(msg::Matcher* receives, const AddressTable& sources) noexcept
      : receives_(receives), sources_(sources) {}

  msg::Matcher* receives_;
  const AddressTable& sources_;
  // Queue pairs by address index, owned by the derived class, which keeps this up to date.
  qp::Qp* const* qps_ = nullptr;
  size_t n_qps_ = 0;
  qp::Qp* only_ = nullptr;  // of a connected endpoint, while operations may be posted to it
};

}  // namespace aperture::nic
