// The connections of a reliable datagram endpoint: see rdm_connections.hpp.
#include "nic/rdm_connections.hpp"

#include <algorithm>
#include <cassert>
#include <new>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "link/loopback/loopback.hpp"

namespace aperture::nic {

using qp::Qp;

RdmConnections::RdmConnections(const EndpointOptions& options, MatchedPort& port)
    : engine_(*options.engine),
      addresses_(*options.addresses),
      port_(port),
      address_(options.local),
      at_open_port_(options.at_open_port),
      connects_only_(options.connects_only),
      alive_(std::make_shared<bool>(true)) {
  if (options.keys.empty()) {
    ends_.emplace_back(*this, EndpointOptions::Key{0, options.auth_key, port.port().domain});
  }
  for (const EndpointOptions::Key& key : options.keys) ends_.emplace_back(*this, key);
}

RdmConnections::~RdmConnections() {
  assert(by_remote_.empty() && next_lives_.empty());
}

Status RdmConnections::listen() noexcept {
  assert(!is_listening());
  ListenSpec spec;
  spec.local = address_;
  spec.doorbell_fd = engine_.wakers().doorbell_fd();
  spec.mover = engine_.links().mover();
  spec.faults = engine_.links().faults();
  spec.at_open_port = at_open_port_;
  spec.what = connects_only_ ? ListenFor::nobody : ListenFor::lanes;
  for (End& end : ends_) {
    spec.domain = end.key.domain;
    spec.auth_key = end.key.secret;
    spec.events = &end;
    auto id = engine_.contact().listen(spec, address_);
    if (!id) return id.error();
    end.listener = *id;
    if (spec.beside == 0) spec.beside = *id;
  }
  return {};
}

void RdmConnections::stop() noexcept {
  assert(is_listening());
  for (const End& end : ends_) {
    if (end.listener != 0) engine_.contact().unlisten(end.listener);  // no upcall from here on
  }
  until(engine_, [this] {
    *alive_ = false;
    bool quiet = true;
    for (const auto& [remote, qp] : by_remote_) quiet = qp->ending().end_access() && quiet;
    return quiet;
  });
}

void RdmConnections::drop_all(Errc why) noexcept {
  next_lives_.clear();
  while (!by_remote_.empty()) drop(*by_remote_.begin()->second, why);
}

// --- connecting ---

// Of what names a receive context other than the first, none is ever kept by index.
Result<Qp*> RdmConnections::connect(uint64_t name) noexcept {
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
  by_index_[index] = *qp;
  return *qp;
}

Result<Qp*> RdmConnections::connect_to(const Address& remote) noexcept {
  if (const auto it = by_remote_.find(remote); it != by_remote_.end()) return it->second.get();
  auto qp = qp_to(remote);
  if (!qp) return qp;
  const End& end = *end_for(remote);
  if (remote.without_key() == address_) {
    auto lane =
        link::loopback::make_self_lane(address_, end.key.domain, engine_.wakers().doorbell_fd());
    if (!lane) {
      drop(**qp, lane.error());
      return lane.error();
    }
    (*qp)->attach(*std::move(lane));
  } else {
    engine_.contact().connect(end.listener, remote.without_key());
  }
  return *qp;
}

// nullptr: the address vector had no such key yet when this endpoint was enabled.
RdmConnections::End* RdmConnections::end_for(const Address& remote) noexcept {
  const auto end = std::find_if(ends_.begin(), ends_.end(),
                                [&](const End& one) { return one.key.number == remote.key; });
  return end != ends_.end() ? &*end : nullptr;
}

Result<Qp*> RdmConnections::qp_to(const Address& remote) noexcept {
  if (const auto it = by_remote_.find(remote); it != by_remote_.end()) return it->second.get();
  const End* const end = end_for(remote);
  if (end == nullptr) {
    APERTURE_WARN(
        "%s was inserted with an authorization key that came into the address vector after this "
        "endpoint was enabled: insert all keys before that",
        remote.print().c_str());
    return Errc::access_denied;
  }
  return no_throw([&]() -> Result<Qp*> {
    auto made = std::make_unique<Qp>(port_.port(), remote, end->key.domain);
    Qp* const qp = made.get();
    by_remote_.emplace(remote, std::move(made));
    if (Status s = engine_.add_qp(*qp, *this); !s) {
      by_remote_.erase(remote);
      return s.error();
    }
    return qp;
  });
}

void RdmConnections::forget(uint64_t index) noexcept {
  if (index < by_index_.size()) by_index_[index] = nullptr;
}

// --- what becomes of them ---

// Ends a queue pair: its operations complete with `why`, its lane goes back to contact.
void RdmConnections::drop(Qp& qp, Errc why) noexcept {
  assert(by_remote_.contains(qp.remote()));
  engine_.remove_qp(qp);
  for (Qp*& cached : by_index_) {
    if (cached == &qp) cached = nullptr;
  }
  port_.lost(qp, why);
  if (auto lane = qp.finish(why)) {
    if (lane->remote != address_) engine_.contact().close_lane(std::move(lane));
  }
  by_remote_.erase(qp.remote());
}

void RdmConnections::wind_up(Qp& qp) noexcept {
  const Address remote = qp.remote();
  drop(qp, qp.ending().why());
  const auto next = next_life(remote);
  if (next == next_lives_.end()) return;
  NextLife life = std::move(*next);
  next_lives_.erase(next);
  link::Lane* const lane = life.holder.lane.get();
  adopt(remote, std::move(life.holder.lane));
  if (life.lost != Errc::ok) lose(lane, life.lost);
}

std::list<RdmConnections::NextLife>::iterator RdmConnections::next_life(
    const Address& remote) noexcept {
  return std::find_if(next_lives_.begin(), next_lives_.end(),
                      [&](const NextLife& life) { return life.remote == remote; });
}

// --- what contact tells: on the control thread ---

void RdmConnections::End::on_lane_up(const Address& remote,
                                     std::unique_ptr<link::Lane> lane) noexcept {
  LaneHolder holder(all.engine_.contact(), std::move(lane));
  Address there = remote;
  there.key = key.number;
  all.engine_.post([to = &all, alive = all.alive_, there, holder = std::move(holder)]() mutable {
    if (*alive) to->adopt(there, std::move(holder.lane));
  });
}

void RdmConnections::adopt(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept {
  auto known = by_remote_.find(remote);
  if (known != by_remote_.end() && known->second->state() != qp::QpState::connecting) {
    // An old life of the peer: what it has published comes first, and the peer may still be inside.
    Qp& old_life = *known->second;
    if (old_life.lane() != nullptr) old_life.lane()->on_lost();
    if (next_life(remote) != next_lives_.end() || !old_life.ending().drained() ||
        !old_life.ending().end_access()) {
      return adopt_later(old_life, std::move(lane));
    }
    drop(old_life, Errc::peer_lost);
  }
  auto qp = qp_to(remote);
  if (!qp) return engine_.contact().close_lane(std::move(lane));  // the peer may come again
  (*qp)->attach(std::move(lane));
  if (port_.under_pressure()) (*qp)->set_pressure(true);
}

void RdmConnections::adopt_later(Qp& old_life, std::unique_ptr<link::Lane> lane) noexcept {
  if (old_life.state() == qp::QpState::ready) old_life.ending().lose(Errc::peer_lost);
  NextLife life{old_life.remote(), {engine_.contact(), std::move(lane)}, Errc::ok};
  // without memory the lane goes back, and the peer may come again
  static_cast<void>(no_throw([&] { next_lives_.push_back(std::move(life)); }));
}

void RdmConnections::End::on_connect_failed(const Address& remote, Errc why) noexcept {
  Address there = remote;
  there.key = key.number;
  all.engine_.post([to = &all, alive = all.alive_, there, why] {
    if (*alive) to->fail_connect(there, why);
  });
}

void RdmConnections::fail_connect(const Address& remote, Errc why) noexcept {
  auto it = by_remote_.find(remote);
  if (it == by_remote_.end() || it->second->state() != qp::QpState::connecting) return;
  APERTURE_WARN("no connection to %s: %s; %s", remote.print().c_str(), describe(why),
                why == Errc::access_denied
                    ? "it has another authorization key: give both endpoints the same auth_key"
                    : "is the peer's endpoint enabled, and the address its own?");
  drop(*it->second, why);
}

void RdmConnections::End::on_lane_down(link::Lane* lane, Errc why) noexcept {
  all.engine_.post([to = &all, alive = all.alive_, lane, why] {
    if (*alive) to->lose(lane, why);
  });
}

void RdmConnections::lose(link::Lane* lane, Errc why) noexcept {
  for (NextLife& life : next_lives_) {
    if (life.holder.lane.get() == lane) life.lost = why;
  }
  for (auto& [remote, qp] : by_remote_) {
    if (qp->lane() != lane) continue;
    APERTURE_INFO("connection to %s is gone: %s", remote.print().c_str(), describe(why));
    qp->ending().lose(why);  // wound up by the engine once what it had published is executed
    return;
  }
}

}  // namespace aperture::nic
