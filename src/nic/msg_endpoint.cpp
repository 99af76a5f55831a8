// The connected endpoint: see msg_endpoint.hpp.
#include "nic/msg_endpoint.hpp"

#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "nic/lane_holder.hpp"

namespace aperture::nic {

using qp::Qp;

Result<std::unique_ptr<MsgEndpoint>> MsgEndpoint::create(const EndpointOptions& options,
                                                         const Wish& wish) noexcept {
  try {
    auto endpoint = std::make_unique<MsgEndpoint>(options, wish);
    if (wish.shared != nullptr) {
      const EngineGuard guard(*options.engine);
      if (Status s = wish.shared->add(*endpoint); !s) return s.error();
    }
    if (!endpoint->accepts_) {
      if (Status s = endpoint->listen(); !s) return s.error();
    }
    return endpoint;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

MsgEndpoint::MsgEndpoint(const EndpointOptions& options, const Wish& wish)
    : Endpoint(nullptr, no_addresses()),
      engine_(*options.engine),
      events_(*wish.events),
      shared_(wish.shared),
      request_(wish.request),
      accepts_(wish.request != 0),
      address_(options.local),
      auth_key_(options.auth_key),
      peer_(wish.peer),
      port_(options.engine->keys(), options.tx_size, options.atomics_waiting),
      alive_(std::make_shared<bool>(true)) {
  if (shared_ == nullptr) {
    own_.emplace(port_, static_cast<msg::Matcher::Host&>(*this), options.rx_size, false, false);
    matcher_ = receives_ = &*own_;
    port_.sink = matcher_;
  } else {
    matcher_ = &shared_->receives();
    port_.sink = shared_;
  }
  set_up(port_, options);
}

MsgEndpoint::~MsgEndpoint() {
  flush(now_ns() + kFlushNs);
  Contact& contact = engine_.contact();
  if (listener_ != 0) contact.unlisten(listener_);  // no upcall from here on
  const EngineGuard guard(engine_);
  *alive_ = false;
  drop(Errc::canceled);
  if (own_) own_->cancel_all(Errc::canceled);
  if (shared_ != nullptr) shared_->remove(*this);
}

ListenSpec MsgEndpoint::spec_of(ListenFor what) noexcept {
  ListenSpec spec;
  spec.local = address_;
  spec.domain = port_.domain;
  spec.doorbell_fd = engine_.doorbell_fd();
  spec.events = this;
  spec.what = what;
  spec.notices = port_.notices_wanted();
  spec.auth_key = auth_key_;
  return spec;
}

Status MsgEndpoint::listen() noexcept {
  auto id = engine_.contact().listen(spec_of(ListenFor::nobody), address_);
  if (!id) return id.error();
  listener_ = *id;
  return {};
}

bool MsgEndpoint::advance(ConnectionEvent event) noexcept {
  Connection now = connection();
  for (;;) {
    const auto next = after(now, event);
    if (!next) return false;
    // SYNC POINT: connection
    if (connection_.compare_exchange_weak(now, *next, std::memory_order_acq_rel)) return true;
  }
}

// --- connecting ---

Status MsgEndpoint::connect(const Address& remote, const wire::PrivateData& data) noexcept {
  if (accepts_ || connection() != Connection::unconnected) return Errc::bad_state;
  peer_ = remote;
  if (!advance(ConnectionEvent::connect)) return Errc::bad_state;
  engine_.contact().request(listener_, remote, data);
  return {};
}

Status MsgEndpoint::accept(const wire::PrivateData& data) noexcept {
  if (request_ == 0 || connection() != Connection::unconnected) return Errc::bad_state;
  const Status s = engine_.contact().accept(std::exchange(request_, 0), spec_of(ListenFor::nobody),
                                            data, listener_);
  if (!s) advance(ConnectionEvent::connect), advance(ConnectionEvent::fail);
  return s;
}

Status MsgEndpoint::shutdown() noexcept {
  const Connection now = connection();
  if (now == Connection::unconnected || now == Connection::connecting) return Errc::not_connected;
  if (now == Connection::over) return {};
  flush(now_ns() + kFlushNs);
  const EngineGuard guard(engine_);
  engine_.poll();  // the lane may not be handed over yet
  if (!advance(ConnectionEvent::shutdown)) return {};
  closed_ = true;
  drop(Errc::canceled);
  if (own_) own_->cancel_all(Errc::canceled);
  return {};
}

// Sends what was accepted: an injected message may be all that the peer waits for.
void MsgEndpoint::flush(uint64_t deadline_ns) noexcept {
  for (;;) {
    {
      const EngineGuard guard(engine_);
      if (only_ == nullptr) return;
      only_->look_at_acknowledgements();  // what has been done shall not end as canceled
      if (!only_->has_queued()) return;
      engine_.poll();
    }
    if (now_ns() >= deadline_ns) return;
    cpu_relax();
  }
}

// --- operations ---

// There is no queue pair to post to: why, or `again` if it is about to come.
Status MsgEndpoint::not_now() const noexcept {
  // SYNC POINT: lane-coming
  if (lane_coming_.load(std::memory_order_acquire)) return Errc::again;
  const Connection now = connection();
  return now == Connection::unconnected || now == Connection::connecting ? Errc::not_connected
                                                                         : Errc::shut_down;
}

Status MsgEndpoint::send(const qp::SendWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->send(wr);
  return not_now();
}

Status MsgEndpoint::write(const qp::RmaWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->rma(qp::WqeKind::write, wr);
  return not_now();
}

Status MsgEndpoint::read(const qp::RmaWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->rma(qp::WqeKind::read, wr);
  return not_now();
}

Status MsgEndpoint::atomic(const qp::AtomicWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->atomic(wr);
  return not_now();
}

Status MsgEndpoint::recv(const qp::RecvWr& wr) noexcept {
  if (shared_ != nullptr) [[unlikely]]
    return Errc::not_supported;  // they are posted to the shared context
  // what came before the end can still be received
  if (only_ == nullptr && connection() == Connection::over && !own_->would_match(wr)) [[unlikely]]
    return not_now();
  return own_->recv(wr);
}

Status MsgEndpoint::recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
  if (shared_ != nullptr) return Errc::not_supported;
  if (only_ == nullptr && connection() == Connection::over && !own_->would_match(wr))
    return not_now();
  return own_->recv_multi(wr, least_room);
}

Status MsgEndpoint::probe(const msg::Probe& probe) noexcept {
  return shared_ != nullptr ? Status(Errc::not_supported) : own_->probe(probe);
}

Status MsgEndpoint::cancel(void* context) noexcept {
  if (own_ && own_->cancel(context)) return {};
  return only_ != nullptr ? only_->cancel(context) : Status(Errc::no_entry);
}

bool MsgEndpoint::has_pending() const noexcept {
  return only_ != nullptr && only_->has_pending();
}

// --- the queue pair: with the engine's lock ---

Status MsgEndpoint::adopt(std::unique_ptr<link::Lane> lane) noexcept {
  std::unique_ptr<Qp> made(new (std::nothrow) Qp(port_, peer_));
  const Status added = made != nullptr ? engine_.add_qp(*made, *this) : Status(Errc::no_memory);
  if (!added) {
    engine_.contact().close_lane(std::move(lane));
    return added;
  }
  qp_ = std::move(made);
  only_ = qp_.get();
  only_->attach(std::move(lane));
  if (matcher_->under_pressure()) only_->set_pressure(true);
  return {};
}

// Ends the queue pair: its operations complete with `why`, its lane goes back to contact.
void MsgEndpoint::drop(Errc why) noexcept {
  if (only_ == nullptr) return;
  Qp& qp = *std::exchange(only_, nullptr);
  receives_ = nullptr;  // recv() looks at what has come before the end
  engine_.remove_qp(qp);
  matcher_->on_lost(qp, why);
  if (auto lane = qp.finish(why)) engine_.contact().close_lane(std::move(lane));
}

void MsgEndpoint::wind_up(Qp&) noexcept {
  const bool broke = only_->broken();
  const Errc why = broke ? Errc::protocol : lost_why_;
  drop(why);
  if (own_) own_->cancel_all(why);
  if (advance(ConnectionEvent::down)) events_.on_shut_down(why);
}

void MsgEndpoint::set_pressure_of(bool on) noexcept {
  if (only_ != nullptr) only_->set_pressure(on);
}

// --- what contact tells: on the control thread ---

void MsgEndpoint::on_lane_up(const Address&, std::unique_ptr<link::Lane> lane) noexcept {
  engine_.contact().close_lane(std::move(lane));  // not for us: only requests are made here
}

void MsgEndpoint::on_connected(const Address&, std::unique_ptr<link::Lane> lane,
                               const wire::PrivateData& data) noexcept {
  auto holder = std::make_shared<LaneHolder>(engine_.contact(), std::move(lane));
  // SYNC POINT: lane-coming: whoever finds no queue pair and the flag set looks again after a poll
  lane_coming_.store(true, std::memory_order_release);
  if (!advance(ConnectionEvent::up)) {
    // SYNC POINT: lane-coming
    return lane_coming_.store(false, std::memory_order_release);
  }
  engine_.post([this, alive = alive_, holder] {
    if (!*alive) return;
    // SYNC POINT: lane-coming
    lane_coming_.store(false, std::memory_order_release);
    if (closed_) return;
    if (const Status s = adopt(std::move(holder->lane)); !s) {
      if (advance(ConnectionEvent::down)) events_.on_shut_down(s.error());
    }
  });
  events_.on_connected(accepts_ ? wire::PrivateData{} : data);
}

void MsgEndpoint::on_refused(const wire::PrivateData& data) noexcept {
  fail(Errc::refused, &data);
}

void MsgEndpoint::on_connect_failed(const Address& remote, Errc why) noexcept {
  APERTURE_WARN("no connection to %s: %s; %s", remote.text().c_str(), describe(why),
                why == Errc::access_denied
                    ? "it has another authorization key: give both endpoints the same auth_key"
                    : "does a passive endpoint listen there?");
  fail(why, nullptr);
}

void MsgEndpoint::fail(Errc why, const wire::PrivateData* data) noexcept {
  if (!advance(ConnectionEvent::fail)) return;
  engine_.post([this, alive = alive_, why] {
    if (!*alive) return;
    receives_ = nullptr;
    if (own_) own_->cancel_all(why);
  });
  events_.on_refused(why, data);
}

void MsgEndpoint::on_lane_down(link::Lane* lane, Errc why) noexcept {
  engine_.post([this, alive = alive_, lane, why] {
    if (!*alive || only_ == nullptr || only_->lane() != lane) return;
    APERTURE_INFO("connection to %s is gone: %s", peer_.text().c_str(), describe(why));
    lost_why_ = why;
    only_->lose(why);  // wound up by the engine once what it had published is executed
  });
  if (advance(ConnectionEvent::down)) events_.on_shut_down(why);
}

}  // namespace aperture::nic
