// Arrivals at a listening id: see listener.hpp.
#include "cm/listener.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "cm/farewell.hpp"
#include "cm/params_on_wire.hpp"
#include "nic/host_identity.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm {

Listener::Listener(nic::ControlThread& control, const Service& service, const Timeouts& timeouts,
                   size_t backlog, OnRequest on_request)
    : control_(control),
      service_(service),
      timeouts_(timeouts),
      backlog_(backlog),
      on_request_(std::move(on_request)) {}

Listener::~Listener() {
  for (const Watched& w : sockets_) control_.unwatch(w.watch);
  control_.cancel_timer(deadline_timer_);
  control_.cancel_timer(resume_timer_);
}

Status Listener::start(std::vector<NamedSocket> sockets) noexcept {
  assert(sockets_.empty() && !sockets.empty());
  const Status kept = no_throw([&] {
    sockets_.reserve(sockets.size());
    for (NamedSocket& named : sockets) sockets_.push_back({std::move(named), 0});
  });
  if (!kept) return kept;
  for (Watched& w : sockets_) {
    if (w.named.at.is_any_ip()) continue;
    auto watch = control_.watch(w.named.socket.get(), EPOLLIN,
                                [this, &w](uint32_t) { on_arrivals(w.named); });
    if (!watch) return watch.error();
    w.watch = *watch;
  }
  const bool is_offered = std::any_of(sockets_.begin(), sockets_.end(), [](const Watched& w) {
    return nic::serves_other_hosts(w.named.at);
  });
  if (!is_offered) return {};
  auto porters = Porters::open(control_);
  if (!porters) return porters.error();
  porters_ = *std::move(porters);
  return {};
}

void Listener::on_arrivals(const NamedSocket& named) noexcept {
  for (int i = 0; i < nic::kAcceptsAtOnce; ++i) {
    auto socket = nic::accept_one(named.socket.get());
    if (socket) {
      admit(*std::move(socket), named.at);
      continue;
    }
    if (socket.error() == Errc::again) return;
    // out of descriptors or memory: the oldest half-open connection is worth least
    if (!half_open_.empty()) half_open_.pop_front();
    return pause();
  }
}

void Listener::pause() noexcept {
  if (resume_timer_ != 0) return;
  for (const Watched& w : sockets_) {
    if (w.watch != 0) control_.rewatch(w.watch, 0);
  }
  resume_timer_ = control_.add_timer(now_ns() + nic::kNoDescriptorPauseNs, [this] {
    resume_timer_ = 0;
    for (const Watched& w : sockets_) {
      if (w.watch != 0) control_.rewatch(w.watch, EPOLLIN);
    }
  });
}

void Listener::admit(ParentOnlyFd socket, const Address& local) noexcept {
  auto remote = connected_from(socket.get(), service_.space);
  if (remote.error() == Errc::no_entry && porters_ != nullptr) {
    return admit_porter(std::move(socket), local);
  }
  if (!remote) return;  // whoever connects from no port is no id
  const auto at = make_half_open(local);
  if (at != half_open_.end()) begin(at, std::move(socket), *remote);
}

Listener::HalfOpens::iterator Listener::make_half_open(const Address& local) noexcept {
  while (half_open_.size() >= kMaxHalfOpen) half_open_.pop_front();
  const Status kept = no_throw([&] {
    half_open_.push_back({nullptr, nullptr, local, {}, now_ns() + timeouts_.request_ns});
  });
  assert(half_open_.size() <= kMaxHalfOpen);
  if (!kept) return half_open_.end();  // who connects is turned away, as beyond the number
  set_timer();
  return std::prev(half_open_.end());
}

void Listener::admit_porter(ParentOnlyFd socket, const Address& local) noexcept {
  const auto at = make_half_open(local);
  if (at == half_open_.end()) return;
  auto handover = Handover::begin(
      control_, std::move(socket), local,
      [this, at](Result<Handover::Passed> passed) { on_handed_over(at, std::move(passed)); });
  if (handover) {
    at->handover = *std::move(handover);
    return;
  }
  half_open_.erase(at);
  if (handover.error() == Errc::access_denied && !std::exchange(told_of_porter_, true)) {
    APERTURE_WARN(
        "rdma_cm: a porter that is neither root nor of our user wants to hand over connections of "
        "other hosts to %s: they are refused",
        local.print().c_str());
  }
}

void Listener::on_handed_over(HalfOpens::iterator at, Result<Handover::Passed> passed) noexcept {
  at->handover.reset();
  constexpr wire::PorterAnswer kTaken{wire::PorterVerdict::taken};
  if (!passed || !nic::send_bytes(passed->socket.get(), wire::encode(kTaken))) {
    half_open_.erase(at);
    return;
  }
  const Address remote = passed->remote;
  begin(at, std::move(passed->socket), remote);
}

void Listener::begin(HalfOpens::iterator at, ParentOnlyFd socket, const Address& remote) noexcept {
  assert(at->connection == nullptr && at->handover == nullptr);
  std::shared_ptr<Connection> connection;
  const Status made =
      no_throw([&] { connection = std::make_shared<Connection>(control_, std::move(socket)); });
  if (!made || !connection->start()) {
    half_open_.erase(at);
    return;
  }
  at->connection = connection;
  at->remote = remote;
  connection->on_message = [this, at](wire::CmKind kind, Connection::Bytes bytes) {
    on_first_message(at, kind, bytes);
  };
  connection->on_lost = [this, at](Errc) { half_open_.erase(at); };
}

void Listener::on_first_message(HalfOpens::iterator at, wire::CmKind kind,
                                Connection::Bytes bytes) noexcept {
  const HalfOpen from = std::move(*at);
  half_open_.erase(at);
  if (kind == wire::CmKind::req && !service_.datagram) return on_req(from, bytes);
  if (kind == wire::CmKind::sidr_req && service_.datagram) return on_sidr_req(from, bytes);
  from.connection->close();
}

Event Listener::make_request(const HalfOpen& from) noexcept {
  Event event;
  event.kind = EventKind::connect_request;
  event.place = take_place();
  if (event.place == nullptr) return event;
  auto child = Id::create(control_, service_);
  if (!child) return event;
  event.child = *std::move(child);
  event.child->timeouts() = timeouts_;
  event.child->core_.binding.become(from.local, from.remote);
  return event;
}

void Listener::on_req(const HalfOpen& from, Connection::Bytes bytes) noexcept {
  const auto refuse = [&](uint32_t reason) {
    wire::Rej rej;
    rej.reason = Wild(reason);
    if (!from.connection->send(wire::encode(rej))) return from.connection->close();
    Farewell::instance(control_).keep(from.connection);
  };
  auto req = wire::decode_req(bytes);
  if (!req) return from.connection->close();
  if (req->source != from.remote || req->destination != from.local) {
    return refuse(kRejInvalidServiceId);
  }
  Event event = make_request(from);
  if (event.child == nullptr) return refuse(kRejConsumer);
  event.params = params_of(*req);
  event.child->connection_->become_requested(from.connection, event.params, req->psn);
  on_request_(std::move(event));
}

std::shared_ptr<void> Listener::take_place() noexcept {
  // relaxed: a count; whoever gives a place back has handed nothing over with it
  if (waiting_->load(std::memory_order_relaxed) >= backlog_) return nullptr;
  waiting_->fetch_add(1, std::memory_order_relaxed);
  std::shared_ptr<void> place;  // without memory for it, it is given back at once
  [[maybe_unused]] const Status s = no_throw([&] {
    place = {waiting_.get(), [count = waiting_](std::atomic<size_t>*) {
               // relaxed: as above
               [[maybe_unused]] const size_t before =
                   count->fetch_sub(1, std::memory_order_relaxed);
               assert(before != 0);
             }};
  });
  return place;
}

void Listener::set_timer() noexcept {
  if (deadline_timer_ != 0 || half_open_.empty()) return;
  deadline_timer_ = control_.add_timer(half_open_.front().deadline_ns, [this] { on_deadline(); });
}

void Listener::on_deadline() noexcept {
  deadline_timer_ = 0;
  const uint64_t now = now_ns();
  while (!half_open_.empty() && half_open_.front().deadline_ns <= now) half_open_.pop_front();
  set_timer();
}

void Listener::on_sidr_req(const HalfOpen& from, Connection::Bytes bytes) noexcept {
  auto req = wire::decode_sidr_req(bytes);
  Event event;
  if (req) event = make_request(from);
  if (event.child == nullptr) return from.connection->close();  // it asks again
  const uint64_t request_id = req->request_id.unchecked();      // echoed
  event.params = params_of(*req);
  event.child->resolution_->become_asked(from.connection, request_id);
  on_request_(std::move(event));
}

}  // namespace aperture::cm
