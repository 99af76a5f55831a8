// Connection requests of this process, both sides: asking, holding, answering, withdrawing. See
// first_contact.hpp.
#include "base/log.hpp"
#include "nic/first_contact.hpp"

namespace aperture::nic {

// --- entry points --------------------------------------------------------------------------------

void FirstContact::request(ListenerId id, const Address& remote,
                           const wire::PrivateData& data) noexcept {
  control_.post([this, id, remote, data] { begin_connect(id, remote, &data, 0); });
}

Status FirstContact::accept(RequestId request, const ListenSpec& spec,
                            const wire::PrivateData& data, ListenerId& id) noexcept {
  if (in_forked_child()) return Errc::not_supported;
  if (spec.events == nullptr || spec.doorbell_fd < 0) return Errc::invalid;
  Status status;
  control_.run([&] { status = accept_now(request, spec, data, id); });
  return status;
}

void FirstContact::refuse(RequestId request, const wire::PrivateData& data) noexcept {
  control_.run([&] { refuse_now(request, data); });
}

void FirstContact::keep_request(RequestId request) noexcept {
  control_.run([&] {
    const auto it = held_.find(request);
    if (it == held_.end()) return;
    const auto listener = listeners_.find(it->second.listener);
    if (listener != listeners_.end()) --listener->second->waiting;
    it->second.listener = 0;
  });
}

void FirstContact::set_backlog(ListenerId id, size_t backlog) noexcept {
  control_.run([&] {
    const auto it = listeners_.find(id);
    if (it != listeners_.end()) it->second->backlog = backlog;
  });
}

// --- the side that is asked ----------------------------------------------------------------------

void FirstContact::on_connect(Peer& peer, const wire::Connect& connect, Packet& packet) noexcept {
  const wire::Open& open = connect.open;
  const uint32_t attempt = open.attempt.unchecked();
  wire::Statement statement;
  Listener* const listener = opened_listener(peer, open, packet, ListenFor::requests, statement);
  if (listener == nullptr) return;
  if (listener->waiting >= listener->backlog) {
    APERTURE_INFO("%s has %zu connection requests waiting, as many as its backlog: %s tries again",
                  listener->end.address.text().c_str(), listener->waiting,
                  open.source.text().c_str());
    return peer.reject(attempt, wire::Why::no_resources);
  }
  LocalEnd end = listener->end;
  end.address = open.destination;
  auto record = peer.hold(end, open, statement, packet);
  if (!record) {
    const bool theirs = record.error() == Errc::protocol;
    return peer.reject(attempt, theirs ? wire::Why::bad_lane : wire::Why::no_resources);
  }
  const RequestId id = next_request_++;
  held_[id] = {*std::move(record), end.listener, open.destination, attempt};
  ++listener->waiting;
  listener->events().on_request({id, open.destination, open.source, connect.data});
}

bool FirstContact::take_request(RequestId request, HeldRequest& held) noexcept {
  const auto it = held_.find(request);
  if (it == held_.end()) return false;
  held = std::move(it->second);
  held_.erase(it);
  const auto listener = listeners_.find(held.listener);
  if (listener != listeners_.end()) --listener->second->waiting;
  return true;
}

Status FirstContact::accept_now(RequestId request, const ListenSpec& spec,
                                const wire::PrivateData& data, ListenerId& id) noexcept {
  HeldRequest held;
  if (!take_request(request, held)) return Errc::no_entry;
  const std::shared_ptr<Peer> peer = held.record->peer->shared_from_this();
  const ListenerId number = next_listener_++;
  Status status = add_listener(spec, number, held.local, nullptr);
  if (status.ok()) {
    auto lane = peer->admit(listeners_.at(number)->end, *held.record, &data);
    if (lane.ok()) {
      id = number;
      lane_up(held.record, *std::move(lane), &data);
      return {};
    }
    status = lane.error();
    remove_listener(number);
  }
  peer->let_go(*held.record);
  const bool key = status.error() == Errc::access_denied;
  peer->reject(held.attempt, key ? wire::Why::wrong_key : wire::Why::no_resources);
  return status;
}

void FirstContact::refuse_now(RequestId request, const wire::PrivateData& data) noexcept {
  HeldRequest held;
  if (!take_request(request, held)) return;
  const std::shared_ptr<Peer> peer = held.record->peer->shared_from_this();
  peer->let_go(*held.record);
  peer->refuse(held.attempt, data);
}

void FirstContact::on_withdraw(Peer& peer, uint32_t attempt) noexcept {
  for (const auto& [id, held] : held_) {
    if (held.record->peer != &peer || held.attempt != attempt) continue;
    const auto listener = listeners_.find(held.listener);
    const RequestId gone = id;
    if (listener != listeners_.end()) listener->second->events().on_request_gone(gone);
    return refuse_now(gone, {});
  }
  // otherwise it has been answered, and the answer is on its way
}

void FirstContact::drop_requests_of(const Peer& peer) noexcept {
  for (auto it = held_.begin(); it != held_.end();) {
    const auto next = std::next(it);
    if (it->second.record->peer == &peer) {
      const auto listener = listeners_.find(it->second.listener);
      const RequestId gone = it->first;
      HeldRequest held;
      take_request(gone, held);
      if (listener != listeners_.end()) listener->second->events().on_request_gone(gone);
    }
    it = next;
  }
}

// --- the side that asks --------------------------------------------------------------------------

void FirstContact::on_connected(Peer& peer, const wire::Connected& connected,
                                Packet& packet) noexcept {
  std::shared_ptr<PeerLane> record;
  auto lane = peer.opened(connected.accept, packet, record);
  if (record == nullptr) return peer.go_down(Errc::protocol);
  Connector* connector = connector_of(connected.accept.attempt.unchecked());
  const bool wanted = connector != nullptr && connector->peer() == &peer &&
                      connector->stage() == Connector::Stage::opening &&
                      connector->request() != nullptr;
  if (!lane || !wanted) {
    peer.close_here(*record);  // the other side has a lane that will not be used
    if (wanted) on_connector_failed(*connector, lane.error());
    return;
  }
  take_connector({connector->end().listener, connector->remote()});
  lane_up(record, *std::move(lane), &connected.data);
}

void FirstContact::on_refuse(Peer& peer, const wire::Refuse& refuse) noexcept {
  const uint32_t attempt = refuse.attempt.unchecked();
  peer.open_rejected(attempt);
  Connector* connector = connector_of(attempt);
  if (connector == nullptr || connector->peer() != &peer || connector->request() == nullptr) return;
  const ListenerId id = connector->end().listener;
  take_connector({id, connector->remote()});
  const auto listener = listeners_.find(id);
  if (listener != listeners_.end()) listener->second->events().on_refused(refuse.data);
}

}  // namespace aperture::nic
