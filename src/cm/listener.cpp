// Arrivals at a listening id: see listener.hpp.
#include "cm/listener.hpp"

#include <sys/epoll.h>

#include <cassert>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "cm/farewell.hpp"
#include "cm/params_on_wire.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm {

namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr uint64_t kPauseNs = 10'000'000;  // without descriptors, accept would fail again at once

}  // namespace

Listener::Listener(nic::ControlThread& control, const Timeouts& timeouts, size_t backlog,
                   OnRequest on_request)
    : control_(control),
      timeouts_(timeouts),
      backlog_(backlog),
      on_request_(std::move(on_request)) {}

Listener::~Listener() {
  control_.unwatch(watch_);
  control_.cancel_timer(deadline_timer_);
  control_.cancel_timer(resume_timer_);
  if (udp_ != nullptr) {
    udp_->stop();
    udp_->on_datagram = nullptr;
  }
}

Status Listener::start(nic::ParentOnlyFd& socket) noexcept {
  auto watch = control_.watch(socket.get(), EPOLLIN, [this](uint32_t) { on_arrivals(); });
  if (!watch) return watch.error();
  watch_ = *watch;
  socket_ = std::move(socket);
  return {};
}

Status Listener::start(std::shared_ptr<UdpPort> port) noexcept {
  udp_ = std::move(port);
  udp_->on_datagram = [this](const Datagram& datagram) { on_sidr_req(datagram); };
  return udp_->start();
}

void Listener::on_arrivals() noexcept {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    auto socket = nic::accept_one(socket_.get());
    if (socket) {
      admit(*std::move(socket));
      continue;
    }
    if (socket.error() == Errc::again) return;
    // out of descriptors or memory: the oldest half-open connection is worth least
    if (!half_open_.empty()) half_open_.pop_front();
    if (resume_timer_ != 0) return;
    control_.rewatch(watch_, 0);
    resume_timer_ = control_.add_timer(now_ns() + kPauseNs, [this] {
      resume_timer_ = 0;
      control_.rewatch(watch_, EPOLLIN);
    });
    return;
  }
}

void Listener::admit(nic::ParentOnlyFd socket) noexcept {
  while (half_open_.size() >= kMaxHalfOpen) half_open_.pop_front();
  make_hasty(socket.get());
  std::shared_ptr<Connection> connection;
  const Status kept = no_throw([&] {
    connection = std::make_shared<Connection>(control_, std::move(socket));
    half_open_.push_back({connection, now_ns() + timeouts_.request_ns});
  });
  if (!kept) return;  // who connects is turned away, as beyond the number
  const auto at = std::prev(half_open_.end());
  assert(half_open_.size() <= kMaxHalfOpen && at->connection == connection);
  if (!connection->start(false)) {
    half_open_.erase(at);
    return;
  }
  connection->on_message = [this, at](wire::CmKind kind, Connection::Bytes bytes) {
    on_first_message(at, kind, bytes);
  };
  connection->on_lost = [this, at](Errc) { half_open_.erase(at); };
  set_timer();
}

void Listener::on_first_message(HalfOpens::iterator at, wire::CmKind kind,
                                Connection::Bytes bytes) noexcept {
  const std::shared_ptr<Connection> connection = at->connection;
  half_open_.erase(at);
  const auto refuse = [&](uint32_t reason) {
    wire::Rej rej;
    rej.reason = Wild(reason);
    if (connection->send(wire::encode(rej)).ok()) Farewell::instance(control_).keep(connection);
  };
  auto req = wire::decode_req(bytes);
  if (kind != wire::CmKind::req || !req) return connection->close();
  const Address local = nic::local_address(connection->fd());
  const Address remote = remote_address(connection->fd());
  if (req->source != remote || req->destination != local) return refuse(kRejInvalidServiceId);
  if (!is_gid(local)) {
    APERTURE_WARN("rdma_cm: a request came to %s, which is none of this device's addresses",
                  local.print().c_str());
    return refuse(kRejInvalidGid);
  }
  Event event;
  event.kind = EventKind::connect_request;
  event.place = take_place();
  if (event.place == nullptr) return refuse(kRejConsumer);
  auto child = Id::create(control_, PortSpace::tcp);
  if (!child) return refuse(kRejConsumer);
  event.child = *std::move(child);
  event.child->timeouts() = timeouts_;
  event.params = params_of(*req);
  event.child->become_requested(connection, event.params, req->psn, local, remote);
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

void Listener::on_sidr_req(const Datagram& datagram) noexcept {
  auto req = wire::decode_sidr_req(datagram.view());
  if (!req || datagram.from.port == 0 || !is_gid(datagram.to)) return;
  const uint64_t request_id = req->request_id.unchecked();  // compared, and echoed
  if (const UdpPort::Asked* known = udp_->find(datagram.from, request_id)) {
    if (!known->answered) return;
    [[maybe_unused]] const Status s =
        send_datagram(udp_->fd(), known->answer.view(), datagram.to, datagram.from);
    return;
  }
  Event event;
  event.kind = EventKind::connect_request;
  event.place = take_place();
  if (event.place == nullptr) return;  // it asks again
  auto child = Id::create(control_, PortSpace::udp);
  if (!child) return;
  event.child = *std::move(child);
  std::unique_ptr<Sidr> sidr;
  const Status made =
      no_throw([&] { sidr = std::make_unique<Sidr>(control_, udp_, datagram.to, datagram.from); });
  // last: a request that is remembered is taken for one that is going to be answered
  if (!made || udp_->remember(datagram.from, request_id) == nullptr) return;
  sidr->was_asked(request_id);
  event.child->become_asked(std::move(sidr), datagram.to, datagram.from);
  event.params = params_of(*req);
  on_request_(std::move(event));
}

}  // namespace aperture::cm
