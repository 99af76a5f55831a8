// The connection of a connected endpoint: see msg_connection.hpp.
#include "nic/msg_connection.hpp"

#include <cassert>
#include <utility>

#include "base/log.hpp"

namespace aperture::nic {

MsgConnection::MsgConnection(const EndpointOptions& options, ConnectionEvents& events,
                             LaneEvents& lanes, RequestId request, const Address& peer)
    : engine_(*options.engine),
      events_(events),
      lanes_(lanes),
      request_(request),
      accepts_(request != 0),
      peer_(peer),
      alive_(std::make_shared<bool>(true)) {
  spec_.local = options.local;
  spec_.domain = options.met_by_requests();
  spec_.doorbell_fd = engine_.wakers().doorbell_fd();
  spec_.mover = engine_.links().mover();
  spec_.faults = engine_.links().faults();
  spec_.events = this;
  spec_.what = ListenFor::nobody;
  spec_.auth_key = options.auth_key;
}

Status MsgConnection::listen() noexcept {
  assert(!accepts_ && listener_ == 0);
  Address bound;
  auto id = engine_.contact().listen(spec_, bound);
  if (!id) return id.error();
  listener_ = *id;
  spec_.local = bound;
  return {};
}

void MsgConnection::close() noexcept {
  if (listener_ != 0) engine_.contact().unlisten(listener_);  // no upcall from here on
  const EngineGuard guard(engine_);
  assert(*alive_);
  *alive_ = false;
}

bool MsgConnection::advance(ConnectionEvent event) noexcept {
  Connection now = state();
  for (;;) {
    const auto next = after(now, event);
    if (!next) return false;
    // SYNC POINT: connection
    if (state_.compare_exchange_weak(now, *next, std::memory_order_acq_rel)) return true;
  }
}

// --- what the application asks ---

Status MsgConnection::connect(const Address& remote, const wire::PrivateData& data) noexcept {
  if (accepts_ || state() != Connection::unconnected) return Errc::bad_state;
  peer_ = remote;
  if (!advance(ConnectionEvent::connect)) return Errc::bad_state;
  const Status s = engine_.contact().request(listener_, remote, data);
  if (!s) advance(ConnectionEvent::fail);
  return s;
}

Status MsgConnection::accept(const wire::PrivateData& data) noexcept {
  if (request_ == 0 || state() != Connection::unconnected) return Errc::bad_state;
  const Status s = engine_.contact().accept(std::exchange(request_, 0), spec_, data, listener_);
  if (!s) advance(ConnectionEvent::connect), advance(ConnectionEvent::fail);
  return s;
}

bool MsgConnection::shut_down() noexcept {
  closed_ = true;
  return advance(ConnectionEvent::shutdown);
}

void MsgConnection::over(Errc why) noexcept {
  if (advance(ConnectionEvent::down)) events_.on_shut_down(why);
}

Status MsgConnection::why_not() const noexcept {
  // SYNC POINT: lane-coming
  if (lane_coming_.load(std::memory_order_acquire)) return Errc::again;
  const Connection now = state();
  return now == Connection::unconnected || now == Connection::connecting ? Errc::not_connected
                                                                         : Errc::shut_down;
}

// --- what contact tells: on the control thread ---

void MsgConnection::on_lane_up(const Address&, std::unique_ptr<link::Lane> lane) noexcept {
  engine_.contact().close_lane(std::move(lane));  // not for us: only requests are made here
}

void MsgConnection::on_connected(const Address&, std::unique_ptr<link::Lane> lane,
                                 const wire::PrivateData& data) noexcept {
  LaneHolder holder(engine_.contact(), std::move(lane));
  // SYNC POINT: lane-coming: whoever finds no queue pair and the flag set looks again after a poll
  lane_coming_.store(true, std::memory_order_release);
  if (!advance(ConnectionEvent::up)) {
    // SYNC POINT: lane-coming
    return lane_coming_.store(false, std::memory_order_release);
  }
  engine_.post([this, alive = alive_, holder = std::move(holder)]() mutable {
    if (!*alive) return;
    // SYNC POINT: lane-coming
    lane_coming_.store(false, std::memory_order_release);
    if (closed_) return;
    assert(lane_ == nullptr);
    lane_ = holder.lane.get();
    lanes_.on_lane(std::move(holder.lane));
  });
  events_.on_connected(accepts_ ? wire::PrivateData{} : data);
}

void MsgConnection::on_refused(const wire::PrivateData& data) noexcept {
  fail(Errc::refused, &data);
}

void MsgConnection::on_connect_failed(const Address& remote, Errc why) noexcept {
  APERTURE_WARN("no connection to %s: %s; %s", remote.print().c_str(), describe(why),
                why == Errc::access_denied
                    ? "it has another authorization key: give both endpoints the same auth_key"
                    : "does a passive endpoint listen there?");
  fail(why, nullptr);
}

void MsgConnection::fail(Errc why, const wire::PrivateData* data) noexcept {
  if (!advance(ConnectionEvent::fail)) return;
  engine_.post([this, alive = alive_, why] {
    if (*alive) lanes_.on_no_lane(why);
  });
  events_.on_refused(why, data);
}

void MsgConnection::on_lane_down(link::Lane* lane, Errc why) noexcept {
  engine_.post([this, alive = alive_, lane, why] {
    if (*alive && lane_ == lane) lanes_.on_lane_down(why);
  });
  over(why);
}

}  // namespace aperture::nic
