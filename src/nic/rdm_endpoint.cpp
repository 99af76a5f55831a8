// The reliable datagram endpoint: see rdm_endpoint.hpp.
#include "nic/rdm_endpoint.hpp"

#include <cassert>
#include <new>

#include "base/no_throw.hpp"

namespace aperture::nic {

using qp::Qp;

Status Endpoint::create(std::unique_ptr<Endpoint>& place, const EndpointOptions& options) noexcept {
  std::unique_ptr<RdmEndpoint> made;
  if (const Status s = no_throw([&] { made = std::make_unique<RdmEndpoint>(options); }); !s)
    return s;
  RdmEndpoint& endpoint = *made;
  {
    const EngineGuard guard(*options.engine);
    assert(place == nullptr);
    place = std::move(made);
  }
  const Status s = endpoint.listen();
  if (s) return {};
  std::unique_ptr<Endpoint> failed;  // its destructor takes the lock
  const EngineGuard guard(*options.engine);
  failed.swap(place);
  return s;
}

RdmEndpoint::RdmEndpoint(const EndpointOptions& options)
    : Endpoint(nullptr, *options.addresses),
      engine_(*options.engine),
      addresses_(*options.addresses),
      directed_(options.directed_recv),
      port_(options, *this, MatchedPort::Sources::as_options),
      connections_(options, port_) {
  receives_ = port_.own();
}

Status RdmEndpoint::listen() noexcept {
  {
    const EngineGuard guard(engine_);
    if (const Status s = port_.join(); !s) return s;
    // where its receives are posted elsewhere, the table does not hear which sources they name
    if (directed_ && port_.own() == nullptr) addresses_.await_index();
  }
  return connections_.listen();
}

RdmEndpoint::~RdmEndpoint() {
  if (connections_.is_listening()) {
    flush();
    connections_.stop();
  }
  const EngineGuard guard(engine_);
  port_.discard();
  connections_.drop_all(Errc::canceled);
  port_.end();
}

void RdmEndpoint::flush() noexcept {
  {
    const EngineGuard guard(engine_);
    engine_.poll();
  }
  Endpoint::flush(engine_, [this] {
    bool queued = false;
    for (const auto& [remote, qp] : connections_.all()) {
      qp->requester().look_at_acknowledgements();  // what has been done shall not end as canceled
      queued = queued || qp->requester().has_queued();
    }
    return !queued;
  });
}

// --- operations ---

Status RdmEndpoint::send(const qp::SendWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->requester().send(wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->requester().send(wr) : Status(qp.error());
}

Status RdmEndpoint::write(const qp::RmaWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->requester().rma(qp::WqeKind::write, wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->requester().rma(qp::WqeKind::write, wr) : Status(qp.error());
}

Status RdmEndpoint::read(const qp::RmaWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->requester().rma(qp::WqeKind::read, wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->requester().rma(qp::WqeKind::read, wr) : Status(qp.error());
}

Status RdmEndpoint::atomic(const qp::AtomicWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->requester().atomic(wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->requester().atomic(wr) : Status(qp.error());
}

Result<protect::EndpointId> RdmEndpoint::queue_pair_number(uint64_t index) noexcept {
  if (Qp* qp = qp_of(index)) return qp->number();
  auto qp = connect(index);
  if (!qp) return qp.error();
  return (*qp)->number();
}

uint64_t RdmEndpoint::canonical(uint64_t index) const noexcept {
  if (!directed_ || index >= qp::kSourcesByKey || !addresses_.receives_look()) return index;
  return addresses_.receive_from(index);
}

Status RdmEndpoint::recv(const qp::RecvWr& wr) noexcept {
  msg::Matcher* const own = port_.own();
  if (own == nullptr) [[unlikely]]
    return Errc::not_supported;  // they are posted to the shared context
  if (!addresses_.receives_look()) [[likely]]
    return own->recv(wr);
  qp::RecvWr same = wr;
  same.source = canonical(wr.source);
  return own->recv(same);
}

Status RdmEndpoint::recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
  msg::Matcher* const own = port_.own();
  if (own == nullptr) return Errc::not_supported;
  qp::RecvWr same = wr;
  same.source = canonical(wr.source);
  return own->recv_multi(same, least_room);
}

Status RdmEndpoint::probe(const msg::Probe& probe) noexcept {
  msg::Matcher* const own = port_.own();
  if (own == nullptr) return Errc::not_supported;
  msg::Probe same = probe;
  same.match.source = canonical(probe.match.source);
  return own->probe(same);
}

Status RdmEndpoint::cancel(void* context) noexcept {
  msg::Matcher* const own = port_.own();
  if (own != nullptr && own->cancel(context)) return {};
  for (const auto& [remote, qp] : connections_.all()) {
    if (qp->requester().cancel(context)) return {};
  }
  return Errc::no_entry;
}

Status RdmEndpoint::recv_of_group(const qp::RecvWr& wr) noexcept {
  msg::Matcher* const groups = port_.groups();
  if (groups == nullptr) return Errc::not_supported;
  assert(wr.completion == qp::kTold && (wr.flags & msg::kGroupReceive) != 0);
  qp::RecvWr same = wr;
  same.source = addresses_.receive_from(wr.source);  // groups match by source in any case
  return groups->recv(same);
}

Status RdmEndpoint::cancel_of_group(void* context) noexcept {
  msg::Matcher* const groups = port_.groups();
  return groups != nullptr ? groups->cancel(context) : Status(Errc::no_entry);
}

bool RdmEndpoint::has_pending() const noexcept {
  for (const auto& [remote, qp] : connections_.all()) {
    if (qp->has_pending()) return true;
  }
  return false;
}

// No queue pair is known under this name of a destination.
Result<Qp*> RdmEndpoint::connect(uint64_t name) noexcept {
  auto qp = connections_.connect(name);
  const auto known = connections_.by_index();
  qps_ = known.data();
  n_qps_ = known.size();
  return qp;
}

// --- sources ---

// Receives name a peer by the lowest index that it has: AddressTable::receive_from().
void RdmEndpoint::learn(uint64_t index) noexcept {
  const Address* address = addresses_.find(index);
  assert(address != nullptr);
  const uint64_t before = addresses_.index_of(*address, index);
  if (before <= index) return;
  port_.name_source(*address, before, index);
}

// The connection stays, since the peer may go on sending; what it sends has no source from now on.
void RdmEndpoint::forget(uint64_t index) noexcept {
  connections_.forget(index);
  if (const Address* address = addresses_.find(index)) {
    port_.forget_source(index, addresses_.index_of(*address, index));
  }
}

// All contexts of a scalable endpoint have its one address.
void RdmEndpoint::look_up_source(Qp& qp) noexcept {
  bool may_come = false;
  qp.source_index = addresses_.source_of(qp.remote().of_port(), may_come);
  // of a stranger whom another process may be about to insert, each message asks again
  qp.source_version = may_come ? uint64_t{0} : addresses_.version();
  qp.source_reported = addresses_.reported(qp.source_index);
}

uint64_t RdmEndpoint::source_of(Qp& qp) noexcept {
  if (qp.source_version != addresses_.version()) look_up_source(qp);
  return qp.source_index;
}

uint64_t RdmEndpoint::reported_source_of(Qp& qp) noexcept {
  if (qp.source_version != addresses_.version()) look_up_source(qp);
  return qp.source_reported;
}

void RdmEndpoint::set_pressure(bool) noexcept {
  const bool on = port_.under_pressure();  // of either matching
  for (const auto& [remote, qp] : connections_.all()) qp->set_pressure(on);
}

}  // namespace aperture::nic
