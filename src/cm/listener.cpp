// Arrivals at a listening id: see listener.hpp.
#include "cm/listener.hpp"

#include <sys/epoll.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "cm/farewell.hpp"
#include "nic/host_identity.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm {

namespace {

constexpr int kAcceptsAtOnce = 64;
constexpr uint64_t kPauseNs = 10'000'000;  // without descriptors, accept would fail again at once

bool is_gid(const Address& a) noexcept {
  const auto& table = nic::host_addresses();
  return std::any_of(table.begin(), table.end(), [&](const Address& g) { return g.ip == a.ip; });
}

Params params_of(const wire::Req& req) noexcept {
  Params p;
  p.qpn = req.qpn;
  p.responder_resources = req.initiator_depth;
  p.initiator_depth = req.responder_resources;
  p.flow_control = req.flow_control;
  p.retry_count = req.retry_count;
  p.rnr_retry_count = req.rnr_retry_count;
  p.srq = req.srq;
  p.ece = req.ece;
  p.data_bytes = static_cast<uint8_t>(req.data.size());
  std::copy(req.data.begin(), req.data.end(), p.data.begin());
  return p;
}

}  // namespace

Listener::Listener(nic::ControlThread& control, const Patience& patience, size_t backlog,
                   OnRequest on_request) noexcept
    : control_(control),
      patience_(patience),
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

Status Listener::start(nic::ParentOnlyFd socket) noexcept {
  socket_ = std::move(socket);
  auto watch = control_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { on_arrivals(); });
  if (!watch) return watch.error();
  watch_ = *watch;
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
  auto connection = std::make_shared<Connection>(control_, std::move(socket));
  if (!connection->start(false)) return;
  half_open_.push_back({connection, now_ns() + patience_.request_ns});
  const auto at = std::prev(half_open_.end());
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
    rej.reason = reason;
    if (connection->send(wire::encode(rej)).ok()) Farewell::instance(control_).keep(connection);
  };
  auto req = wire::decode_req(bytes);
  if (kind != wire::CmKind::req || !req) return connection->close();
  const Address local = nic::local_address(connection->fd());
  const Address remote = remote_address(connection->fd());
  if (req->source != remote || req->destination != local) return refuse(kRejInvalidServiceId);
  if (!is_gid(local)) {
    APERTURE_WARN("rdma_cm: a request came to %s, which is none of this device's addresses",
                  local.text().c_str());
    return refuse(kRejInvalidGid);
  }
  Event event;
  event.kind = EventKind::connect_request;
  event.place = take_place();
  if (event.place == nullptr) return refuse(kRejConsumer);
  auto child = Id::create(control_, PortSpace::tcp);
  if (!child) return refuse(kRejConsumer);
  event.child = *std::move(child);
  event.child->patience() = patience_;
  event.child->become_requested(connection, *req, local, remote);
  event.params = params_of(*req);
  on_request_(std::move(event));
}

std::shared_ptr<void> Listener::take_place() noexcept {
  // relaxed: a count; whoever gives a place back has handed nothing over with it
  if (waiting_->load(std::memory_order_relaxed) >= backlog_) return nullptr;
  waiting_->fetch_add(1, std::memory_order_relaxed);
  return {waiting_.get(), [count = waiting_](std::atomic<size_t>*) {
            count->fetch_sub(1, std::memory_order_relaxed);  // relaxed: as above
          }};
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
  if (const UdpPort::Asked* known = udp_->find(datagram.from, req->request_id)) {
    if (!known->answered) return;
    [[maybe_unused]] const Status s =
        send_datagram(udp_->fd(), known->answer.view(), datagram.to, datagram.from);
    return;
  }
  Event event;
  event.kind = EventKind::connect_request;
  event.place = take_place();
  if (event.place == nullptr) return;  // it asks again
  if (udp_->remember(datagram.from, req->request_id) == nullptr) return;
  auto child = Id::create(control_, PortSpace::udp);
  if (!child) return;
  auto sidr = std::make_unique<Sidr>(control_, udp_, datagram.to, datagram.from);
  sidr->was_asked(req->request_id);
  event.child = *std::move(child);
  event.child->become_asked(std::move(sidr), datagram.to, datagram.from);
  event.params.data_bytes = static_cast<uint8_t>(req->data.size());
  std::copy(req->data.begin(), req->data.end(), event.params.data.begin());
  on_request_(std::move(event));
}

}  // namespace aperture::cm
