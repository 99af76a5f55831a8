// The commands of an id: see id.hpp.
#include "cm/id.hpp"

#include <cassert>
#include <cerrno>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/random.hpp"
#include "cm/farewell.hpp"
#include "cm/listener.hpp"
#include "cm/params_on_wire.hpp"
#include "nic/host_identity.hpp"

namespace aperture::cm {

namespace {

bool is_multicast(const Address& a) noexcept {
  return a.is_v4() ? (a.ip[12] & 0xf0) == 0xe0 : a.ip[0] == 0xff;
}

Address any_of(bool four) noexcept {
  return four ? Address::v4(INADDR_ANY, 0) : Address{};
}

Address loopback_of(bool four) noexcept {
  if (four) return Address::v4(INADDR_LOOPBACK, 0);
  Address six;
  six.ip[15] = 1;
  return six;
}

Status require_gid(const Address& a) noexcept {
  if (is_gid(a)) return {};
  // libfabric tries every address of the host in every process that looks for a provider
  if (nic::is_link_local(a)) {
    APERTURE_DEBUG("rdma_cm: %s is link-local, and no GID of aperture0", a.print().c_str());
    return Errc::addr_not_avail;
  }
  return refuse(Errc::addr_not_avail,
                "rdma_cm: %s is none of this device's addresses: use one that ibv_devinfo -v lists",
                a.print().c_str());
}

Result<Address> pick_source(const Address& dest) noexcept {
  auto routed = source_for(dest);
  if (routed.ok() || !is_multicast(dest)) return routed;
  for (const Address& a : nic::host_addresses()) {
    if (a.is_v4() == dest.is_v4()) return a;  // no route for groups: the first interface will do
  }
  return Errc::unreachable;
}

uint32_t random_psn() noexcept {
  return static_cast<uint32_t>(random_u64()) & wire::kMax24Bits;
}

template <size_t N>
bool copy_data(std::span<const uint8_t> from, std::array<uint8_t, N>& to) noexcept {
  if (from.size() > N) return false;
  std::copy(from.begin(), from.end(), to.begin());
  return true;
}

}  // namespace

Result<std::unique_ptr<Id>> Id::create(nic::ControlThread& control,
                                       const Service& service) noexcept {
  std::unique_ptr<Id> id(new (std::nothrow) Id(control, service));
  if (id == nullptr) return Errc::no_memory;
  return id;
}

Id::Id(nic::ControlThread& control, const Service& service) noexcept
    : control_(control), farewell_(Farewell::instance(control)), service_(service) {}

Id::~Id() {
  control_.cancel_timer(timer_);
  control_.cancel_timer(retry_timer_);
  listener_.reset();
  switch (state_) {
    case State::req_sent:
    case State::req_received:
    case State::rep_sent:
    case State::rep_received: reject_with(kRejConsumer, {}); break;
    case State::sidr_received: answer_question(kSidrReject, {}); break;
    case State::established:
      if (connection_ && connection_->send(wire::encode_bare(wire::CmKind::dreq)).ok()) part();
      break;
    case State::dreq_sent: part(); break;
    default: break;
  }
}

bool Id::step(Input input) noexcept {
  const auto next = after(state_, input);
  if (!next) return false;
  state_ = *next;
  return true;
}

void Id::emit(EventKind kind, int status, const Params* params) noexcept {
  if (!on_event_) return;
  Event event;
  event.kind = kind;
  event.status = status;
  if (params != nullptr) event.params = *params;
  on_event_(std::move(event));
}

Status Id::set_reuse(bool reuse) noexcept {
  if (state_ != State::idle && (!reuse || state_ == State::listening)) return Errc::bad_state;
  options_.reuse = reuse;
  return {};
}

Status Id::set_six_only(bool six_only) noexcept {
  if (state_ != State::idle) return Errc::bad_state;
  options_.six_only = six_only;
  return {};
}

Status Id::take_port(const Address& at) noexcept {
  if (!at.is_any_ip()) {
    if (const Status s = require_gid(at); !s) return s;
  }
  auto port = Port::take(service_.space, at, options_);
  if (!port) return port.error();
  local_ = port->bound();
  port_ = *std::move(port);
  return {};
}

Status Id::bind(const Address& at) noexcept {
  if (!after(state_, Input::bind)) return Errc::bad_state;
  if (const Status s = take_port(at); !s) return s;
  step(Input::bind);
  return {};
}

Status Id::resolve_addr(const std::optional<Address>& source, const Address& dest) noexcept {
  if (!after(state_, Input::resolve_addr)) return Errc::bad_state;
  Address to = dest;
  if (to.is_any_ip()) {
    to.ip = has_device() ? local_->ip : loopback_of(dest.is_v4()).ip;
  }
  Address from = local_ ? *local_ : source ? *source : any_of(dest.is_v4());
  if (from.is_v4() != to.is_v4()) return Errc::invalid;
  if (from.is_any_ip()) {
    auto picked = pick_source(to);
    if (!picked) return picked.error();
    from.ip = picked->ip;
  }
  if (const Status s = require_gid(from); !s) return s;
  if (!local_) {
    if (const Status s = take_port(from); !s) return s;
  }
  local_->ip = from.ip;
  remote_ = to;
  step(Input::resolve_addr);
  emit(EventKind::addr_resolved);
  return {};
}

Status Id::resolve_route() noexcept {
  if (!step(Input::resolve_route)) return Errc::bad_state;
  has_route_ = true;
  emit(EventKind::route_resolved);
  return {};
}

Status Id::listen(size_t backlog) noexcept {
  if (!after(state_, Input::listen)) return Errc::bad_state;
  if (!local_) {
    if (const Status s = take_port(any_of(true)); !s) return s;
    step(Input::bind);
  }
  std::unique_ptr<Listener> listener;
  const Status made = no_throw([&] {
    listener =
        std::make_unique<Listener>(control_, service_, timeouts_, backlog, [this](Event&& event) {
          if (on_event_) on_event_(std::move(event));
        });
  });
  if (!made) return made;
  auto sockets = port_->listen();
  if (!sockets) return sockets.error();
  if (const Status s = listener->start(*std::move(sockets)); !s) return s;
  assert(listener_ == nullptr);
  listener_ = std::move(listener);
  step(Input::listen);
  return {};
}

Status Id::connect(const Params& params) noexcept {
  const Input input = is_datagram() ? Input::ask : Input::connect;
  if (!after(state_, input)) return Errc::bad_state;
  const Status prepared = is_datagram() ? prepare_sidr_req(params) : prepare_req(params);
  if (!prepared) return prepared;
  step(input);
  refused_until_ns_ = now_ns() + timeouts_.refused_ns;
  wait_at_most(is_datagram() ? timeouts_.sidr_ns : timeouts_.connect_ns);
  try_connect();
  return {};
}

Status Id::prepare_req(const Params& params) noexcept {
  if (params.qpn > wire::kMax24Bits || params.ece.vendor > wire::kMax24Bits) return Errc::invalid;
  wire::Req req;
  if (!copy_data(params.private_data(), req.data)) return Errc::too_big;
  put(params, req);
  req.source = *local_;
  req.destination = *remote_;
  agreed_.rq_psn = random_psn();
  req.psn = Wild(agreed_.rq_psn);
  agreed_.responder_resources = params.responder_resources;
  agreed_.initiator_depth = params.initiator_depth;
  agreed_.retry_count = std::min(params.retry_count, wire::kMaxRetries);
  agreed_.rnr_retry_count = std::min(params.rnr_retry_count, wire::kMaxRetries);
  request_ = wire::encode(req);
  return {};
}

Status Id::prepare_sidr_req(const Params& params) noexcept {
  wire::SidrReq req;
  if (!copy_data(params.private_data(), req.data)) return Errc::too_big;
  request_id_ = random_u64();
  req.request_id = Wild(request_id_);
  request_ = wire::encode(req);
  return {};
}

void Id::try_connect() noexcept {
  retry_timer_ = 0;
  if (state_ != State::req_sent && state_ != State::sidr_sent) return;
  if (const Status s = begin_connection(); !s) return on_not_connected(s.error());
  if (!connection_->send(request_)) on_lost(Errc::peer_lost);
}

Status Id::begin_connection() noexcept {
  assert(connection_ == nullptr && port_.has_value() && remote_.has_value());
  auto socket = port_->connect(*local_, *remote_);
  if (!socket) return socket.error();
  std::shared_ptr<Connection> connection;
  const Status made =
      no_throw([&] { connection = std::make_shared<Connection>(control_, *std::move(socket)); });
  if (!made) return made;
  if (const Status s = connection->start(); !s) return s;
  adopt(std::move(connection));
  return {};
}

void Id::try_again_in(uint64_t ns) noexcept {
  control_.cancel_timer(retry_timer_);
  retry_timer_ = control_.add_timer(now_ns() + ns, [this] { try_connect(); });
}

Status Id::accept(const Params& params) noexcept {
  if (!after(state_, Input::accept)) return Errc::bad_state;
  if (params.qpn > wire::kMax24Bits || params.ece.vendor > wire::kMax24Bits) return Errc::invalid;
  if (is_datagram()) {
    if (params.data_bytes > wire::kSidrRepPrivateBytes) return Errc::too_big;
    answer_question(kSidrOk, params);
    step(Input::accept);
    return {};
  }
  wire::Rep rep;
  if (!copy_data(params.private_data(), rep.data)) return Errc::too_big;
  if (state_ == State::abandoned) {
    step(Input::accept);
    emit(EventKind::unreachable, -ETIMEDOUT);
    return {};
  }
  assert(state_ == State::req_received && connection_ != nullptr);
  put(params, rep);
  rep.psn = Wild(agreed_.rq_psn);
  agreed_.responder_resources = params.responder_resources;
  agreed_.initiator_depth = params.initiator_depth;
  step(Input::accept);
  wait_at_most(timeouts_.answer_ns);
  if (!connection_->send(wire::encode(rep))) on_lost(Errc::peer_lost);
  return {};
}

Status Id::establish() noexcept {
  if (state_ != State::rep_received || !step(Input::establish)) return Errc::bad_state;
  if (!connection_->send(wire::encode_bare(wire::CmKind::rtu))) on_lost(Errc::peer_lost);
  return {};
}

Status Id::notify_established() noexcept {
  if (state_ != State::rep_sent || !step(Input::establish)) return Errc::bad_state;
  control_.cancel_timer(timer_);
  emit(EventKind::established);
  return {};
}

Status Id::reject(uint32_t reason, std::span<const uint8_t> data) noexcept {
  if (!after(state_, Input::reject)) return Errc::bad_state;
  if (is_datagram()) {
    if (data.size() > wire::kSidrRepPrivateBytes) return Errc::too_big;
    Params params;
    params.data_bytes = static_cast<uint8_t>(data.size());
    std::copy(data.begin(), data.end(), params.data.begin());
    answer_question(kSidrReject, params);
  } else {
    if (data.size() > wire::kRejPrivateBytes) return Errc::too_big;
    reject_with(reason, data);
  }
  control_.cancel_timer(timer_);
  step(Input::reject);
  return {};
}

void Id::answer_question(uint32_t status, const Params& params) noexcept {
  if (connection_ == nullptr) return;  // who asked has gone
  wire::SidrRep rep;
  rep.request_id = Wild(request_id_);
  rep.status = Wild(status);
  if (status == kSidrOk) {
    rep.qpn = Wild(params.qpn);
    rep.qkey = Wild(params.qkey);
    rep.ece = on_wire(params.ece);
  }
  copy_data(params.private_data(), rep.data);
  if (connection_->send(wire::encode(rep)).ok()) return part();
  connection_.reset();
}

void Id::reject_with(uint32_t reason, std::span<const uint8_t> data) noexcept {
  if (connection_ == nullptr) return;
  wire::Rej rej;
  rej.reason = Wild(reason);
  copy_data(data, rej.data);
  if (connection_->send(wire::encode(rej)).ok()) return part();
  connection_.reset();
}

Status Id::disconnect() noexcept {
  const State before = state_;
  if (!step(Input::disconnect)) return Errc::bad_state;
  if (before == State::dreq_received) enter_timewait();
  if (before == State::established) {
    wait_at_most(timeouts_.disconnect_ns);
    if (!connection_->send(wire::encode_bare(wire::CmKind::dreq))) on_lost(Errc::peer_lost);
  }
  return {};
}

}  // namespace aperture::cm
