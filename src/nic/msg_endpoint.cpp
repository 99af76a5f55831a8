// The connected endpoint: see msg_endpoint.hpp.
#include "nic/msg_endpoint.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace aperture::nic {

using qp::Qp;

namespace {

template <typename Done>
void poll_until(Engine& engine, uint64_t deadline_ns, Done&& done) noexcept {
  for (;;) {
    {
      PollGuard guard(engine);
      if (done()) return;
      engine.poll();
      guard.found_nothing();
    }
    if (now_ns() >= deadline_ns) return;
    cpu_relax();
  }
}

}  // namespace

Result<std::unique_ptr<MsgEndpoint>> MsgEndpoint::create(const EndpointOptions& options,
                                                         const Wish& wish) noexcept {
  try {
    auto endpoint = std::make_unique<MsgEndpoint>(options, wish);
    if (endpoint->member_) {
      const EngineGuard guard(*options.engine);
      if (Status s = endpoint->member_->join(); !s) return s.error();
    }
    if (!endpoint->connection_.accepts()) {
      if (Status s = endpoint->connection_.listen(); !s) return s.error();
    }
    return endpoint;
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
}

MsgEndpoint::MsgEndpoint(const EndpointOptions& options, const Wish& wish)
    : Endpoint(nullptr, no_addresses()),
      engine_(*options.engine),
      connection_(options, *wish.events, *this, wish.request, wish.peer),
      port_(options.engine->keys(), options.tx_size, options.atomics_waiting,
            options.shared_transmit) {
  msg::Matcher::Host& host = *this;
  if (options.shared_receive == nullptr) {
    own_.emplace(port_, host, options.rx_size, false, false);
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
}

MsgEndpoint::~MsgEndpoint() {
  flush(now_ns() + kFlushNs);
  connection_.close();
  end_access();
  const EngineGuard guard(engine_);
  drop(Errc::canceled);
  if (own_) own_->cancel_all(Errc::canceled);
  member_.reset();
}

Status MsgEndpoint::shutdown() noexcept {
  const Connection now = connection();
  if (now == Connection::unconnected || now == Connection::connecting) return Errc::not_connected;
  {
    const EngineGuard guard(engine_);
    engine_.poll();  // the lane, or its end, may not be handed over yet
  }
  flush(now_ns() + kFlushNs);
  // of a peer that has gone, what it had published is executed
  poll_until(engine_, now_ns() + kFlushNs,
             [this] { return only_ == nullptr || only_->state() != qp::QpState::draining; });
  end_access();
  bool by_us = false;
  {
    const EngineGuard guard(engine_);
    by_us = connection_.shut_down();
    drop(Errc::canceled);
    if (own_) own_->cancel_all(Errc::canceled);
  }
  if (by_us) connection_.tell_own_end();
  return {};
}

// Before drop(), so that a peer which is inside our memory holds nobody up but the caller.
void MsgEndpoint::end_access() noexcept {
  until(engine_, [this] { return only_ == nullptr || only_->end_access(); });
}

// Sends what was accepted: an injected message may be all that the peer waits for.
void MsgEndpoint::flush(uint64_t deadline_ns) noexcept {
  poll_until(engine_, deadline_ns, [this] {
    if (only_ == nullptr) return true;
    only_->look_at_acknowledgements();  // what has been done shall not end as canceled
    return !only_->has_queued();
  });
}

// --- operations ---

Status MsgEndpoint::send(const qp::SendWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->send(wr);
  return connection_.why_not();
}

Status MsgEndpoint::write(const qp::RmaWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->rma(qp::WqeKind::write, wr);
  return connection_.why_not();
}

Status MsgEndpoint::read(const qp::RmaWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->rma(qp::WqeKind::read, wr);
  return connection_.why_not();
}

Status MsgEndpoint::atomic(const qp::AtomicWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->atomic(wr);
  return connection_.why_not();
}

Status MsgEndpoint::recv(const qp::RecvWr& wr) noexcept {
  if (member_) [[unlikely]]
    return Errc::not_supported;  // they are posted to the shared context
  if (comes_too_late(wr)) [[unlikely]]
    return lost_ ? cancel_late(own_->recv(wr)) : connection_.why_not();
  return own_->recv(wr);
}

Status MsgEndpoint::recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
  if (member_) return Errc::not_supported;
  if (comes_too_late(wr))
    return lost_ ? cancel_late(own_->recv_multi(wr, least_room)) : connection_.why_not();
  return own_->recv_multi(wr, least_room);
}

// What came before the end can still be received.
bool MsgEndpoint::comes_too_late(const qp::RecvWr& wr) noexcept {
  return only_ == nullptr && connection() == Connection::over && !own_->would_match(wr);
}

// The application cannot know when its peer goes. A receive that crosses the peer's end is no
// mistake of its, and ends as those do that were posted a moment earlier.
Status MsgEndpoint::cancel_late(Status posted) noexcept {
  assert(lost_ && only_ == nullptr);
  own_->cancel_all(lost_why_);
  return posted;
}

Status MsgEndpoint::probe(const msg::Probe& probe) noexcept {
  return member_ ? Status(Errc::not_supported) : own_->probe(probe);
}

Status MsgEndpoint::cancel(void* context) noexcept {
  if (own_ && own_->cancel(context)) return {};
  return only_ != nullptr ? only_->cancel(context) : Status(Errc::no_entry);
}

bool MsgEndpoint::has_pending() const noexcept {
  return only_ != nullptr && only_->has_pending();
}

// --- the queue pair: with the engine's lock ---

void MsgEndpoint::on_lane(std::unique_ptr<link::Lane> lane) noexcept {
  assert(only_ == nullptr && lane != nullptr);
  std::unique_ptr<Qp> made(new (std::nothrow) Qp(port_, peer()));
  const Status added = made != nullptr ? engine_.add_qp(*made, *this) : Status(Errc::no_memory);
  if (!added) {
    engine_.contact().close_lane(std::move(lane));
    return connection_.over(added.error());
  }
  qp_ = std::move(made);
  only_ = qp_.get();
  only_->attach(std::move(lane));
  if (matcher_->under_pressure()) only_->set_pressure(true);
}

void MsgEndpoint::on_no_lane(Errc why) noexcept {
  assert(only_ == nullptr);
  receives_ = nullptr;
  lost_why_ = why;
  lost_ = true;
  if (own_) own_->cancel_all(why);
}

void MsgEndpoint::on_lane_down(Errc why) noexcept {
  if (only_ == nullptr) return;
  APERTURE_INFO("connection to %s is gone: %s", peer().print().c_str(), describe(why));
  lost_why_ = why;
  only_->lose(why);  // wound up by the engine once what it had published is executed
}

// Ends the queue pair: its operations complete with `why`, its lane goes back to contact.
void MsgEndpoint::drop(Errc why) noexcept {
  if (only_ == nullptr) return;
  Qp& qp = *std::exchange(only_, nullptr);
  receives_ = nullptr;  // recv() looks at what has come before the end
  engine_.remove_qp(qp);
  if (member_) {
    member_->on_lost(qp, why);
  } else {
    own_->on_lost(qp, why);
  }
  if (auto lane = qp.finish(why)) engine_.contact().close_lane(std::move(lane));
}

void MsgEndpoint::wind_up(Qp& qp) noexcept {
  assert(&qp == only_);
  const bool broke = only_->broken();
  if (broke) lost_why_ = Errc::protocol;
  drop(lost_why_);
  lost_ = true;
  if (own_) own_->cancel_all(lost_why_);
  connection_.over(lost_why_);
}

void MsgEndpoint::set_pressure(bool on) noexcept {
  if (only_ != nullptr) only_->set_pressure(on);
}

}  // namespace aperture::nic
