// The commands of an id: see id.hpp.
#include "cm/id.hpp"

#include <cassert>

#include "base/no_throw.hpp"
#include "cm/listener.hpp"

namespace aperture::cm {

Result<std::unique_ptr<Id>> Id::create(nic::ControlThread& control,
                                       const Service& service) noexcept {
  std::unique_ptr<Id> id(new (std::nothrow) Id(control, service));
  if (id == nullptr) return Errc::no_memory;
  return id;
}

Id::Id(nic::ControlThread& control, const Service& service) noexcept
    : control_(control), service_(service), core_(control, service.space) {
  if (service.datagram) {
    exchange_ = &resolution_.emplace(core_);
  } else {
    exchange_ = &connection_.emplace(core_);
  }
  core_.life.on_expired = [this](State before) { exchange_->on_expired(before); };
  core_.talk.on_message = [this](wire::CmKind kind, Connection::Bytes bytes) {
    exchange_->on_message(kind, bytes);
  };
  core_.talk.on_lost = [this] { exchange_->on_lost(); };
  core_.talk.on_no_peer = [this](Errc why) { exchange_->on_no_peer(why); };
}

Id::~Id() {
  listener_.reset();
  exchange_->end();
}

// ---- addresses ----------------------------------------------------------------------------------

Status Id::set_reuse(bool reuse) noexcept {
  if (state() != State::idle && (!reuse || state() == State::listening)) return Errc::bad_state;
  core_.binding.options().reuse = reuse;
  return {};
}

Status Id::set_six_only(bool six_only) noexcept {
  if (state() != State::idle) return Errc::bad_state;
  core_.binding.options().six_only = six_only;
  return {};
}

Status Id::bind(const Address& at) noexcept {
  if (!core_.life.allows(Input::bind)) return Errc::bad_state;
  if (const Status s = core_.binding.take(at); !s) return s;
  core_.life.step(Input::bind);
  assert(state() == State::bound && binding().local());
  return {};
}

Status Id::resolve_addr(const std::optional<Address>& source, const Address& dest) noexcept {
  if (!core_.life.allows(Input::resolve_addr)) return Errc::bad_state;
  if (const Status s = core_.binding.resolve(source, dest); !s) return s;
  core_.life.step(Input::resolve_addr);
  assert(state() == State::addr_resolved && binding().remote());
  core_.life.emit(EventKind::addr_resolved);
  return {};
}

Status Id::resolve_route() noexcept {
  if (!core_.life.step(Input::resolve_route)) return Errc::bad_state;
  core_.binding.add_route();
  assert(state() == State::route_resolved && binding().has_route());
  core_.life.emit(EventKind::route_resolved);
  return {};
}

Status Id::listen(size_t backlog) noexcept {
  if (!core_.life.allows(Input::listen)) return Errc::bad_state;
  if (!binding().local()) {
    if (const Status s = bind(Address::v4(INADDR_ANY, 0)); !s) return s;
  }
  std::unique_ptr<Listener> listener;
  const Status made = no_throw([&] {
    listener =
        std::make_unique<Listener>(control_, service_, core_.timeouts, backlog,
                                   [this](Event&& event) { core_.life.pass_on(std::move(event)); });
  });
  if (!made) return made;
  auto sockets = core_.binding.listen();
  if (!sockets) return sockets.error();
  if (const Status s = listener->start(*std::move(sockets)); !s) return s;
  assert(listener_ == nullptr);
  listener_ = std::move(listener);
  core_.life.step(Input::listen);
  assert(state() == State::listening);
  return {};
}

// ---- connections and questions ------------------------------------------------------------------

Status Id::connect(const Params& params) noexcept {
  const Input input = is_datagram() ? Input::ask : Input::connect;
  if (!core_.life.allows(input)) return Errc::bad_state;
  const auto request = exchange_->request(params);
  if (!request.ok()) return request.error();
  core_.life.step(input);
  assert(state() == State::req_sent || state() == State::sidr_sent);
  core_.life.wait_at_most(exchange_->answer_ns());
  core_.talk.ask(request.value(), core_.timeouts.refused_ns);
  return {};
}

Status Id::accept(const Params& params) noexcept {
  if (!core_.life.allows(Input::accept)) return Errc::bad_state;
  if (params.qpn > wire::kMax24Bits || params.ece.vendor > wire::kMax24Bits) return Errc::invalid;
  return exchange_->accept(params);
}

Status Id::establish() noexcept {
  if (state() != State::rep_received) return Errc::bad_state;
  connection_->establish();
  return {};
}

Status Id::notify_established() noexcept {
  if (state() != State::rep_sent) return Errc::bad_state;
  core_.life.step(Input::establish);
  assert(state() == State::established && core_.talk.is_open());
  core_.life.emit(EventKind::established);
  return {};
}

Status Id::reject(uint32_t reason, std::span<const uint8_t> data) noexcept {
  if (!core_.life.allows(Input::reject)) return Errc::bad_state;
  return exchange_->reject(reason, data);
}

Status Id::disconnect() noexcept {
  const State before = state();
  if (!core_.life.step(Input::disconnect)) return Errc::bad_state;
  if (connection_) connection_->disconnect(before);
  return {};
}

}  // namespace aperture::cm
