// The lane of a connected queue pair: see rc_endpoint.hpp.
#include "nic/rc_endpoint.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "link/faulty/records.hpp"
#include "link/loopback/loopback.hpp"

namespace aperture::nic {

RcEndpoint::~RcEndpoint() {
  close();
}

Status RcEndpoint::expect(const Wish& wish) noexcept {
  if (listener_ != 0) return Errc::bad_state;
  if (wish.local.index == 0) return Errc::invalid;
  assert(!connecting_ && lane_ == nullptr);
  try {
    expecting_ = std::make_shared<bool>(true);
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  wish_ = wish;
  wish_.connect_within_ns = std::max(wish.connect_within_ns, kLeastConnectNs);
  ListenSpec spec;
  spec.local = wish.local;
  spec.domain = wish.domain;
  spec.doorbell_fd = engine_.wakers().doorbell_fd();
  spec.mover = engine_.links().mover();
  spec.faults = engine_.links().faults();
  spec.language = link::faulty::Language::rc;
  spec.events = this;
  Address bound;
  auto id = engine_.contact().listen(spec, bound);
  if (!id) return id.error();
  // an upcall may have come in between; what it has posted to the engine needs no number
  const EngineGuard guard(engine_);
  listener_ = *id;
  return {};
}

void RcEndpoint::close() noexcept {
  if (listener_ == 0) return;
  engine_.contact().unlisten(listener_);  // no upcall from here on
  const EngineGuard guard(engine_);
  ignore_all();
  listener_ = 0;
  connecting_ = false;
  lane_ = nullptr;
}

Status RcEndpoint::connect() noexcept {
  if (listener_ == 0) return Errc::bad_state;
  if (connecting_ || lane_ != nullptr) return {};
  if (wish_.remote == wish_.local) return connect_to_self();
  connecting_ = true;
  engine_.contact().connect(listener_, wish_.remote, wish_.connect_within_ns);
  return {};
}

// Posted like every other lane, so that nobody is handed one inside his own call.
Status RcEndpoint::connect_to_self() noexcept {
  auto lane =
      link::loopback::make_self_lane(wish_.local, wish_.domain, engine_.wakers().doorbell_fd());
  if (!lane) return lane.error();
  connecting_ = true;
  post_lane(*std::move(lane));
  return {};
}

void RcEndpoint::post_lane(std::unique_ptr<link::Lane> lane) noexcept {
  LaneHolder holder(engine_.contact(), std::move(lane));
  engine_.post([this, expecting = expecting_, holder = std::move(holder)]() mutable {
    if (*expecting) hand_over(std::move(holder.lane));
  });
}

void RcEndpoint::hand_over(std::unique_ptr<link::Lane> lane) noexcept {
  assert(lane_ == nullptr && lane != nullptr);
  connecting_ = false;
  lane_ = lane.get();
  events_.on_lane(std::move(lane));
}

void RcEndpoint::give_back(std::unique_ptr<link::Lane> lane) noexcept {
  if (lane == nullptr) return;
  if (lane_ == lane.get()) lane_ = nullptr;
  if (!lane->to_self) engine_.contact().close_lane(std::move(lane));
}

// --- what contact tells: on the control thread ---

void RcEndpoint::on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept {
  if (remote != wish_.remote) {
    APERTURE_WARN(
        "%s wanted to connect to the queue pair at %s, which is connected to %s: refused; give "
        "each of two queue pairs the other's number and address",
        remote.print().c_str(), wish_.local.print().c_str(), wish_.remote.print().c_str());
    return engine_.contact().close_lane(std::move(lane));
  }
  post_lane(std::move(lane));
}

void RcEndpoint::on_connect_failed(const Address& remote, Errc why) noexcept {
  APERTURE_WARN(
      "no connection from the queue pair at %s to %s: %s; is the peer's queue pair there, "
      "and ready to receive from this one?",
      wish_.local.print().c_str(), remote.print().c_str(), describe(why));
  engine_.post([this, expecting = expecting_, why] {
    if (!*expecting) return;
    connecting_ = false;
    events_.on_no_lane(why);
  });
}

void RcEndpoint::on_lane_down(link::Lane* lane, Errc why) noexcept {
  engine_.post([this, expecting = expecting_, lane, why] {
    if (!*expecting || lane_ != lane) return;
    APERTURE_INFO("the connection of the queue pair at %s to %s is gone: %s",
                  wish_.local.print().c_str(), wish_.remote.print().c_str(), describe(why));
    lane_ = nullptr;
    events_.on_lane_down(why);
  });
}

}  // namespace aperture::nic
