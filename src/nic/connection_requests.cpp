// Requests that wait for an application: see connection_requests.hpp.
#include "nic/connection_requests.hpp"

#include <algorithm>
#include <cassert>

#include "base/log.hpp"
#include "base/no_throw.hpp"

namespace aperture::nic {

void ConnectionRequests::hold(Peer& peer, const wire::Connect& connect,
                              const wire::Statement& statement, Packet& packet,
                              ListeningEnd& listener) noexcept {
  const wire::Open& open = connect.open;
  const uint32_t attempt = open.attempt.unchecked();
  if (listener.waiting >= listener.backlog) {
    APERTURE_INFO("%s has %zu connection requests waiting, as many as its backlog: %s tries again",
                  listener.end.address.print().c_str(), listener.waiting,
                  open.source.print().c_str());
    return peer.reject(attempt, wire::Why::no_resources);
  }
  LocalEnd end = listener.end;
  end.address = open.destination;
  auto record = peer.hold(end, open, statement, packet);
  if (!record) {
    const bool theirs = record.error() == Errc::protocol;
    return peer.reject(attempt, theirs ? wire::Why::bad_lane : wire::Why::no_resources);
  }
  const RequestId id = next_++;
  const Status kept = no_throw([&] {
    held_.emplace(id, Held{*record, end.listener, open.destination, attempt});
  });
  if (!kept) {
    peer.let_go(**record);
    return peer.reject(attempt, wire::Why::no_resources);
  }
  ++listener.waiting;
  listener.events().on_request({id, open.destination, open.source, connect.data});
}

void ConnectionRequests::stop_counting(const Held& held) noexcept {
  ListeningEnd* const listener = listeners_.find(held.listener);
  if (listener == nullptr) return;
  assert(listener->waiting != 0);
  --listener->waiting;
}

bool ConnectionRequests::take(RequestId id, Held& held) noexcept {
  const auto it = held_.find(id);
  if (it == held_.end()) return false;
  held = std::move(it->second);
  held_.erase(it);
  assert(held.record->peer != nullptr);
  stop_counting(held);
  return true;
}

// --- the application answers ---------------------------------------------------------------------

void ConnectionRequests::keep(RequestId id) noexcept {
  const auto it = held_.find(id);
  if (it == held_.end()) return;
  stop_counting(it->second);
  it->second.listener = 0;
}

Result<ListenerId> ConnectionRequests::accept(RequestId id, const ListenSpec& spec,
                                              const wire::PrivateData& data) noexcept {
  Held held;
  if (!take(id, held)) return Errc::no_entry;
  const std::shared_ptr<Peer> peer = held.record->peer->shared_from_this();
  auto end = listeners_.add_connected(spec, held.local);
  Errc why = end.error();
  if (end.ok()) {
    auto lane = peer->admit(listeners_.find(*end)->end, *held.record, &data);
    if (lane.ok()) {
      const Status up = lanes_.up(held.record, *std::move(lane), &data);
      if (up.ok()) return end;
      listeners_.remove(*end);
      return up.error();
    }
    why = lane.error();
    listeners_.remove(*end);
  }
  peer->let_go(*held.record);
  const bool key = why == Errc::access_denied;
  peer->reject(held.attempt, key ? wire::Why::wrong_key : wire::Why::no_resources);
  return why;
}

void ConnectionRequests::refuse(RequestId id, const wire::PrivateData& data) noexcept {
  Held held;
  if (!take(id, held)) return;
  const std::shared_ptr<Peer> peer = held.record->peer->shared_from_this();
  peer->let_go(*held.record);
  peer->refuse(held.attempt, data);
}

void ConnectionRequests::refuse_all(const ListeningEnd& listener) noexcept {
  while (listener.waiting != 0) {
    const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& h) {
      return h.second.listener == listener.end.listener;
    });
    assert(held != held_.end());
    refuse(held->first, {});
  }
}

// --- the connector goes --------------------------------------------------------------------------

void ConnectionRequests::tell_gone(RequestId id, ListenerId listener) noexcept {
  const ListeningEnd* const end = listeners_.find(listener);
  if (end != nullptr) end->events().on_request_gone(id);
}

void ConnectionRequests::withdrawn(const Peer& peer, uint32_t attempt) noexcept {
  for (const auto& [id, held] : held_) {
    if (held.record->peer != &peer || held.attempt != attempt) continue;
    const RequestId gone = id;
    tell_gone(gone, held.listener);
    return refuse(gone, {});
  }
}

void ConnectionRequests::peer_down(const Peer& peer) noexcept {
  for (auto it = held_.begin(); it != held_.end();) {
    const RequestId id = it->first;
    const bool its = it->second.record->peer == &peer;
    ++it;  // it goes
    if (!its) continue;
    Held held;
    take(id, held);
    tell_gone(id, held.listener);
  }
}

}  // namespace aperture::nic
