// The connected endpoint: see msg_endpoint.hpp.
#include "nic/msg_endpoint.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "base/log.hpp"

namespace aperture::nic {

using qp::Qp;

Result<std::unique_ptr<MsgEndpoint>> MsgEndpoint::create(const EndpointOptions& options,
                                                         const Wish& wish) noexcept {
  try {
    auto endpoint = std::make_unique<MsgEndpoint>(options, wish);
    {
      const EngineGuard guard(*options.engine);
      if (Status s = endpoint->port_.join(); !s) return s.error();
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
      port_(options, *this, MatchedPort::Sources::none) {
  receives_ = port_.own();
}

MsgEndpoint::~MsgEndpoint() {
  flush();
  connection_.close();
  end_access();
  const EngineGuard guard(engine_);
  port_.discard();
  drop(Errc::canceled);
  port_.end();
}

Status MsgEndpoint::shutdown() noexcept {
  const Connection now = connection();
  if (now == Connection::unconnected || now == Connection::connecting) return Errc::not_connected;
  {
    const EngineGuard guard(engine_);
    engine_.poll();  // the lane, or its end, may not be handed over yet
  }
  flush();
  // of a peer that has gone, what it had published is executed
  Endpoint::flush(engine_,
                  [this] { return only_ == nullptr || only_->state() != qp::QpState::draining; });
  end_access();
  bool by_us = false;
  {
    const EngineGuard guard(engine_);
    by_us = connection_.shut_down();
    drop(Errc::canceled);
    port_.cancel_all(Errc::canceled);
  }
  if (by_us) connection_.tell_own_end();
  return {};
}

// Before drop(), so that a peer which is inside our memory holds nobody up but the caller.
void MsgEndpoint::end_access() noexcept {
  until(engine_, [this] { return only_ == nullptr || only_->ending().end_access(); });
}

void MsgEndpoint::flush() noexcept {
  Endpoint::flush(engine_, [this] {
    if (only_ == nullptr) return true;
    only_->requester().look_at_acknowledgements();  // what has been done shall not end as canceled
    return !only_->requester().has_queued();
  });
}

// --- operations ---

Status MsgEndpoint::send(const qp::SendWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->requester().send(wr);
  return connection_.why_not();
}

Status MsgEndpoint::write(const qp::RmaWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->requester().rma(qp::WqeKind::write, wr);
  return connection_.why_not();
}

Status MsgEndpoint::read(const qp::RmaWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->requester().rma(qp::WqeKind::read, wr);
  return connection_.why_not();
}

Status MsgEndpoint::atomic(const qp::AtomicWr& wr) noexcept {
  if (only_ != nullptr) [[likely]]
    return only_->requester().atomic(wr);
  return connection_.why_not();
}

Status MsgEndpoint::recv(const qp::RecvWr& wr) noexcept {
  msg::Matcher* const own = port_.own();
  if (own == nullptr) [[unlikely]]
    return Errc::not_supported;  // they are posted to the shared context
  if (comes_too_late(wr)) [[unlikely]]
    return lost_ ? cancel_late(own->recv(wr)) : connection_.why_not();
  return own->recv(wr);
}

Status MsgEndpoint::recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept {
  msg::Matcher* const own = port_.own();
  if (own == nullptr) return Errc::not_supported;
  if (comes_too_late(wr))
    return lost_ ? cancel_late(own->recv_multi(wr, least_room)) : connection_.why_not();
  return own->recv_multi(wr, least_room);
}

// What came before the end can still be received.
bool MsgEndpoint::comes_too_late(const qp::RecvWr& wr) noexcept {
  return only_ == nullptr && connection() == Connection::over && !port_.own()->would_match(wr);
}

// The application cannot know when its peer goes. A receive that crosses the peer's end is no
// mistake of its, and ends as those do that were posted a moment earlier.
Status MsgEndpoint::cancel_late(Status posted) noexcept {
  assert(lost_ && only_ == nullptr);
  port_.cancel_all(lost_why_);
  return posted;
}

Status MsgEndpoint::probe(const msg::Probe& probe) noexcept {
  msg::Matcher* const own = port_.own();
  return own != nullptr ? own->probe(probe) : Status(Errc::not_supported);
}

Status MsgEndpoint::cancel(void* context) noexcept {
  msg::Matcher* const own = port_.own();
  if (own != nullptr && own->cancel(context)) return {};
  return only_ != nullptr ? only_->requester().cancel(context) : Status(Errc::no_entry);
}

bool MsgEndpoint::has_pending() const noexcept {
  return only_ != nullptr && only_->has_pending();
}

// --- the queue pair: with the engine's lock ---

void MsgEndpoint::on_lane(std::unique_ptr<link::Lane> lane) noexcept {
  assert(only_ == nullptr && lane != nullptr);
  std::unique_ptr<Qp> made(new (std::nothrow) Qp(port_.port(), peer()));
  const Status added = made != nullptr ? engine_.add_qp(*made, *this) : Status(Errc::no_memory);
  if (!added) {
    engine_.contact().close_lane(std::move(lane));
    return connection_.over(added.error());
  }
  qp_ = std::move(made);
  only_ = qp_.get();
  only_->attach(std::move(lane));
  if (port_.under_pressure()) only_->set_pressure(true);
}

void MsgEndpoint::on_no_lane(Errc why) noexcept {
  assert(only_ == nullptr);
  receives_ = nullptr;
  lost_why_ = why;
  lost_ = true;
  port_.cancel_all(why);
}

void MsgEndpoint::on_lane_down(Errc why) noexcept {
  if (only_ == nullptr) return;
  APERTURE_INFO("connection to %s is gone: %s", peer().print().c_str(), describe(why));
  lost_why_ = why;
  only_->ending().lose(why);  // wound up by the engine once what it had published is executed
}

// Ends the queue pair: its operations complete with `why`, its lane goes back to contact.
void MsgEndpoint::drop(Errc why) noexcept {
  if (only_ == nullptr) return;
  Qp& qp = *std::exchange(only_, nullptr);
  receives_ = nullptr;  // recv() looks at what has come before the end
  engine_.remove_qp(qp);
  port_.lost(qp, why);
  if (auto lane = qp.finish(why)) engine_.contact().close_lane(std::move(lane));
}

void MsgEndpoint::wind_up(Qp& qp) noexcept {
  assert(&qp == only_);
  if (only_->broken()) lost_why_ = only_->ending().why();
  drop(lost_why_);
  lost_ = true;
  port_.cancel_all(lost_why_);
  connection_.over(lost_why_);
}

void MsgEndpoint::set_pressure(bool on) noexcept {
  if (only_ != nullptr) only_->set_pressure(on);
}

}  // namespace aperture::nic
