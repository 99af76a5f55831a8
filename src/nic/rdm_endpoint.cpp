// The reliable datagram endpoint: see rdm_endpoint.hpp.
#include "nic/rdm_endpoint.hpp"

#include <algorithm>
#include <cassert>
#include <new>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "link/loopback/loopback.hpp"

namespace aperture::nic {

using qp::Qp;
using qp::QpState;

Result<std::unique_ptr<Endpoint>> Endpoint::create(const EndpointOptions& options) noexcept {
  std::unique_ptr<Endpoint> made;
  if (const Status s = create_at(made, options); !s) return s.error();
  return made;
}

Status Endpoint::create_at(std::unique_ptr<Endpoint>& place,
                           const EndpointOptions& options) noexcept {
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
      address_(options.local),
      at_open_port_(options.at_open_port),
      connects_only_(options.connects_only),
      directed_(options.directed_recv),
      auth_key_(options.auth_key),
      port_(options.engine->keys(), options.tx_size, options.atomics_waiting,
            options.shared_transmit),
      alive_(std::make_shared<bool>(true)) {
  msg::Matcher::Host& host = *this;
  if (options.shared_receive == nullptr) {
    own_.emplace(port_, host, options.rx_size, options.directed_recv, options.report_source);
    if (options.buffered != nullptr && !own_->show_messages(*options.buffered))
      throw std::bad_alloc();
    matcher_ = receives_ = &*own_;
    port_.sink = matcher_;
  } else {
    member_.emplace(*options.shared_receive, port_, host);
    matcher_ = &options.shared_receive->receives();
    port_.sink = &*member_;
  }
  set_up(port_, options);
  if (!options.groups) return;
  groups_ = std::make_unique<msg::GroupMatching>(*port_.sink, port_, host);
  port_.sink = groups_.get();
  port_.takes_groups = true;
}

Status RdmEndpoint::listen() noexcept {
  if (member_) {
    const EngineGuard guard(engine_);
    if (const Status s = member_->join(); !s) return s;
    // its receives are posted elsewhere, and the table does not hear which sources they name
    if (directed_) addresses_.await_index();
  }
  ListenSpec spec;
  spec.local = address_;
  spec.domain = port_.domain;
  spec.doorbell_fd = engine_.doorbell_fd();
  spec.events = this;
  spec.at_open_port = at_open_port_;
  spec.what = connects_only_ ? ListenFor::nobody : ListenFor::lanes;
  spec.auth_key = auth_key_;
  auto id = engine_.contact().listen(spec, address_);
  if (!id) return id.error();
  listener_ = *id;
  listening_ = true;
  return {};
}

RdmEndpoint::~RdmEndpoint() {
  if (!listening_) {
    const EngineGuard guard(engine_);
    member_.reset();
    return;
  }
  flush(now_ns() + kFlushNs);
  engine_.contact().unlisten(listener_);  // no upcall from here on
  until(engine_, [this] {
    *alive_ = false;
    bool quiet = true;
    for (const auto& [remote, qp] : by_remote_) quiet = qp->end_access() && quiet;
    return quiet;
  });
  const EngineGuard guard(engine_);
  next_lives_.clear();
  while (!by_remote_.empty()) drop(*by_remote_.begin()->second, Errc::canceled);
  if (own_) own_->cancel_all(Errc::canceled);
  if (groups_ != nullptr) groups_->groups().cancel_all(Errc::canceled);
  member_.reset();
}

// Sends what was accepted: an injected message may be all that the peer waits for.
void RdmEndpoint::flush(uint64_t deadline_ns) noexcept {
  for (;;) {
    {
      PollGuard guard(engine_);
      engine_.poll();
      bool queued = false;
      for (const auto& [remote, qp] : by_remote_) {
        qp->look_at_acknowledgements();  // what has been done shall not end as canceled
        queued = queued || qp->has_queued();
      }
      if (!queued) return;
      guard.found_nothing();
    }
    if (now_ns() >= deadline_ns) return;
    cpu_relax();
  }
}

// --- operations ---

Status RdmEndpoint::send(const qp::SendWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->send(wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->send(wr) : Status(qp.error());
}

Status RdmEndpoint::write(const qp::RmaWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->rma(qp::WqeKind::write, wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->rma(qp::WqeKind::write, wr) : Status(qp.error());
}

Status RdmEndpoint::read(const qp::RmaWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->rma(qp::WqeKind::read, wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->rma(qp::WqeKind::read, wr) : Status(qp.error());
}

Status RdmEndpoint::atomic(const qp::AtomicWr& wr) noexcept {
  if (Qp* qp = qp_of(wr.dest)) [[likely]]
    return qp->atomic(wr);
  auto qp = connect(wr.dest);
  return qp ? (*qp)->atomic(wr) : Status(qp.error());
}

Result<protect::EndpointId> RdmEndpoint::queue_pair_number(uint64_t index) noexcept {
  if (Qp* qp = qp_of(index)) return qp->number();
  auto qp = connect(index);
  if (!qp) return qp.error();
  return (*qp)->number();
}

uint64_t RdmEndpoint::canonical(uint64_t index) const noexcept {
  if (!directed_ || index == qp::kAnySource || !addresses_.receives_look()) return index;
  return addresses_.receive_from(index);
}

Status RdmEndpoint::recv(const qp::RecvWr& wr) noexcept {
  if (member_) [[unlikely]]
    return Errc::not_supported;  // they are posted to the shared context
  if (addresses_.receives_look()) [[unlikely]] {
    qp::RecvWr same = wr;
    same.source = canonical(wr.source);
    return matcher_->recv(same);
  }
  return matcher_->recv(wr);
}

Status RdmEndpoint::recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
  if (member_) return Errc::not_supported;
  qp::RecvWr same = wr;
  same.source = canonical(wr.source);
  return matcher_->recv_multi(same, least_room);
}

Status RdmEndpoint::probe(const msg::Probe& probe) noexcept {
  if (member_) return Errc::not_supported;
  msg::Probe same = probe;
  same.match.source = canonical(probe.match.source);
  return matcher_->probe(same);
}

Status RdmEndpoint::cancel(void* context) noexcept {
  if (own_ && own_->cancel(context)) return {};
  for (auto& [remote, qp] : by_remote_) {
    if (qp->cancel(context)) return {};
  }
  return Errc::no_entry;
}

Status RdmEndpoint::recv_of_group(const qp::RecvWr& wr) noexcept {
  if (groups_ == nullptr) return Errc::not_supported;
  assert(wr.completion == qp::kTold && (wr.flags & msg::kGroupReceive) != 0);
  qp::RecvWr same = wr;
  same.source = canonical(wr.source);
  return groups_->groups().recv(same);
}

Status RdmEndpoint::cancel_of_group(void* context) noexcept {
  return groups_ != nullptr ? groups_->groups().cancel(context) : Status(Errc::no_entry);
}

bool RdmEndpoint::has_pending() const noexcept {
  for (const auto& [remote, qp] : by_remote_) {
    if (qp->has_pending()) return true;
  }
  return false;
}

// --- queue pairs ---

// The slow path of an operation: no queue pair is known under this name of a destination. Of what
// names a receive context other than the first, none ever is.
Result<Qp*> RdmEndpoint::connect(uint64_t name) noexcept {
  const auto [index, context] = addresses_.destination(name);
  const Address* address = addresses_.find_fresh(index);
  if (address == nullptr || context >= Address::kContexts) return Errc::no_entry;
  if (context != 0) return connect_to(address->of_rx_context(context));
  auto qp = connect_to(*address);
  if (!qp) return qp.error();
  try {
    if (index >= by_index_.size()) by_index_.resize(index + 1, nullptr);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  qps_ = by_index_.data();
  n_qps_ = by_index_.size();
  assert(index < n_qps_);
  by_index_[index] = *qp;
  return *qp;
}

Result<Qp*> RdmEndpoint::connect_to(const Address& remote) noexcept {
  if (const auto it = by_remote_.find(remote); it != by_remote_.end()) return it->second.get();
  auto qp = qp_to(remote);
  if (!qp) return qp;
  if (remote == address_) {
    auto lane = link::loopback::make_self_lane(address_, port_.domain, engine_.doorbell_fd());
    if (!lane) {
      drop(**qp, lane.error());
      return lane.error();
    }
    (*qp)->attach(*std::move(lane));
  } else {
    engine_.contact().connect(listener_, remote);
  }
  return *qp;
}

Result<Qp*> RdmEndpoint::qp_to(const Address& remote) noexcept {
  if (const auto it = by_remote_.find(remote); it != by_remote_.end()) return it->second.get();
  return no_throw([&]() -> Result<Qp*> {
    auto made = std::make_unique<Qp>(port_, remote);
    Qp* const qp = made.get();
    by_remote_.emplace(remote, std::move(made));
    if (Status s = engine_.add_qp(*qp, *this); !s) {
      by_remote_.erase(remote);
      return s.error();
    }
    return qp;
  });
}

// Ends a queue pair: its operations complete with `why`, its lane goes back to contact.
void RdmEndpoint::drop(Qp& qp, Errc why) noexcept {
  assert(by_remote_.contains(qp.remote()));
  engine_.remove_qp(qp);
  for (Qp*& cached : by_index_) {
    if (cached == &qp) cached = nullptr;
  }
  if (member_) {
    member_->on_lost(qp, why);
  } else {
    own_->on_lost(qp, why);
  }
  if (groups_ != nullptr) groups_->groups().on_lost(qp, why);
  if (auto lane = qp.finish(why)) {
    if (lane->remote != address_) engine_.contact().close_lane(std::move(lane));
  }
  by_remote_.erase(qp.remote());
}

void RdmEndpoint::wind_up(Qp& qp) noexcept {
  const Address remote = qp.remote();
  drop(qp, qp.why_over());
  const auto next = next_life(remote);
  if (next == next_lives_.end()) return;
  NextLife life = std::move(*next);
  next_lives_.erase(next);
  link::Lane* const lane = life.holder.lane.get();
  adopt(remote, std::move(life.holder.lane));
  if (life.lost != Errc::ok) lose(lane, life.lost);
}

std::list<RdmEndpoint::NextLife>::iterator RdmEndpoint::next_life(const Address& remote) noexcept {
  return std::find_if(next_lives_.begin(), next_lives_.end(),
                      [&](const NextLife& life) { return life.remote == remote; });
}

// Receives name a peer by the lowest index that it has: canonical().
void RdmEndpoint::learn(uint64_t index) noexcept {
  const Address* address = addresses_.find(index);
  assert(address != nullptr);
  const uint64_t before = addresses_.index_of(*address, index);
  if (before <= index) return;
  matcher_->name_source(*address, before, index);
  if (groups_ != nullptr) groups_->groups().name_source(*address, before, index);
}

// The connection stays, since the peer may go on sending; what it sends has no source from now on.
void RdmEndpoint::forget(uint64_t index) noexcept {
  if (index < by_index_.size()) by_index_[index] = nullptr;
  if (const Address* address = addresses_.find(index)) {
    const uint64_t now = addresses_.index_of(*address, index);
    matcher_->forget_source(index, now);
    if (groups_ != nullptr) groups_->groups().forget_source(index, now);
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
  const bool on = under_pressure();  // of either matching
  for (auto& [remote, qp] : by_remote_) qp->set_pressure(on);
}

// --- what contact tells: on the control thread ---

void RdmEndpoint::on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept {
  LaneHolder holder(engine_.contact(), std::move(lane));
  engine_.post([this, alive = alive_, remote, holder = std::move(holder)]() mutable {
    if (*alive) adopt(remote, std::move(holder.lane));
  });
}

void RdmEndpoint::adopt(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept {
  auto known = by_remote_.find(remote);
  if (known != by_remote_.end() && known->second->state() != QpState::connecting) {
    // An old life of the peer: what it has published comes first, and the peer may still be inside.
    Qp& old_life = *known->second;
    if (next_life(remote) != next_lives_.end() || !old_life.drained() || !old_life.end_access()) {
      return adopt_later(old_life, std::move(lane));
    }
    drop(old_life, Errc::peer_lost);
  }
  auto qp = qp_to(remote);
  if (!qp) return engine_.contact().close_lane(std::move(lane));  // the peer may come again
  (*qp)->attach(std::move(lane));
  if (under_pressure()) (*qp)->set_pressure(true);
}

void RdmEndpoint::adopt_later(Qp& old_life, std::unique_ptr<link::Lane> lane) noexcept {
  if (old_life.state() == QpState::ready) old_life.lose(Errc::peer_lost);
  NextLife life{old_life.remote(), {engine_.contact(), std::move(lane)}, Errc::ok};
  // without memory the lane goes back, and the peer may come again
  static_cast<void>(no_throw([&] { next_lives_.push_back(std::move(life)); }));
}

void RdmEndpoint::on_connect_failed(const Address& remote, Errc why) noexcept {
  engine_.post([this, alive = alive_, remote, why] {
    if (*alive) fail_connect(remote, why);
  });
}

void RdmEndpoint::fail_connect(const Address& remote, Errc why) noexcept {
  auto it = by_remote_.find(remote);
  if (it == by_remote_.end() || it->second->state() != QpState::connecting) return;
  APERTURE_WARN("no connection to %s: %s; %s", remote.print().c_str(), describe(why),
                why == Errc::access_denied
                    ? "it has another authorization key: give both endpoints the same auth_key"
                    : "is the peer's endpoint enabled, and the address its own?");
  drop(*it->second, why);
}

void RdmEndpoint::on_lane_down(link::Lane* lane, Errc why) noexcept {
  engine_.post([this, alive = alive_, lane, why] {
    if (*alive) lose(lane, why);
  });
}

void RdmEndpoint::lose(link::Lane* lane, Errc why) noexcept {
  for (NextLife& life : next_lives_) {
    if (life.holder.lane.get() == lane) life.lost = why;
  }
  for (auto& [remote, qp] : by_remote_) {
    if (qp->lane() != lane) continue;
    APERTURE_INFO("connection to %s is gone: %s", remote.print().c_str(), describe(why));
    qp->lose(why);  // wound up by the engine once what it had published is executed
    return;
  }
}

}  // namespace aperture::nic
