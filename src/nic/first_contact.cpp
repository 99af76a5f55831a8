// How two endpoints come to one lane: hellos, offers, peers, crossing connects. See
// first_contact.hpp.
#include "nic/first_contact.hpp"

#include <unistd.h>

#include <tuple>

#include "base/clock.hpp"
#include "base/event_fd.hpp"
#include "base/log.hpp"
#include "nic/port_owner.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

// --- as acceptor ---------------------------------------------------------------------------------

wire::Verdict FirstContact::judge(Listener& listener, const wire::Hello& hello) noexcept {
  if (listener.what() == ListenFor::nobody) return wire::Verdict::wrong_destination;
  const auto it = connectors_.find({listener.end.listener, hello.source});
  if (it == connectors_.end()) return wire::Verdict::offered;
  Connector& ours = *it->second;
  if (ours.stage() == Connector::Stage::waiting) return wire::Verdict::offered;
  // a lane of ours is about to be there: the other side's turn is over
  if (ours.stage() == Connector::Stage::opening) return wire::Verdict::crossing;
  // both sides compare the same two, whoever of them is asked
  const bool theirs_first =
      std::tie(hello.source, hello.incarnation) < std::tie(hello.destination, self_.incarnation);
  if (!theirs_first || !ours.may_yield()) return wire::Verdict::crossing;
  ours.yield();
  return wire::Verdict::offered;
}

void FirstContact::on_ticket_lost(ListenerId listener, const wire::Hello& hello) noexcept {
  const auto it = connectors_.find({listener, hello.source});
  if (it != connectors_.end()) it->second->stop_waiting();
}

void FirstContact::on_joined(const wire::Hello& hello, const wire::Join& join, ParentOnlyFd socket,
                             const Credentials& credentials) noexcept {
  auto peer = std::make_shared<Peer>(peer_context_, std::move(socket), credentials);
  if (peer->answer(join, hello.nonce)) adopt(std::move(peer));
}

void FirstContact::adopt(std::shared_ptr<Peer> peer) noexcept {
  // whoever has not joined and opened a lane by then will not: it must not cost us a descriptor
  const std::weak_ptr<Peer> weak = peer;
  control_.add_timer(now_ns() + listener_limits.timeout_ns, [weak] {
    const auto newcomer = weak.lock();
    if (newcomer && !newcomer->ever_opened()) newcomer->go_down(Errc::timed_out);
  });
  peers_.push_back(std::move(peer));
}

// A process of another user is believed to be the endpoint that it says only if that port is its
// user's; what we had for the real one would go to it.
bool FirstContact::speaks_for(const Peer& peer, const Address& source) const noexcept {
  if (peer.same_user()) return true;
  const auto owner = owner_of_port(source);
  if (owner.ok() && owner.value() == peer.uid()) return true;
  APERTURE_WARN(
      "process %d of user %u says that it is %s, which %s: refused", peer.pid(), peer.uid(),
      source.text().c_str(),
      owner.ok() ? "belongs to another user" : "nobody of this host is known to listen at");
  return false;
}

// Open does not prove that its endpoint holds the key of ours.
void FirstContact::refuse_key(Peer& peer, const wire::Open& open, Listener& listener) noexcept {
  const bool theirs = open.proof != wire::Proof{};
  const bool ours = listener.end.auth_key != nullptr;
  APERTURE_WARN("%s (process %d) may not connect to %s: %s; give both endpoints the same auth_key",
                open.source.text().c_str(), peer.pid(), listener.end.address.text().c_str(),
                !ours     ? "it has an authorization key, and the endpoint here has none"
                : !theirs ? "it has no authorization key, and the endpoint here has one"
                          : "its authorization key is another than that of the endpoint here");
  peer.reject(open.attempt.unchecked(), wire::Why::wrong_key);
  // our own connect to there waited for this one: it asks now, and is told as much
  const auto waiting = connectors_.find({listener.end.listener, open.source});
  if (waiting != connectors_.end()) waiting->second->stop_waiting();
}

// The listener that Open or Connect is for; nullptr: it may not come in, and has been told.
Listener* FirstContact::opened_listener(Peer& peer, const wire::Open& open, const Packet& packet,
                                        ListenFor what, wire::Statement& statement) noexcept {
  const auto refuse = [&](wire::Why why) -> Listener* {
    peer.reject(open.attempt.unchecked(), why);
    return nullptr;
  };
  const std::shared_ptr<Doorway> doorway = doorway_of(open.ticket.unchecked());
  if (doorway == nullptr) return refuse(wire::Why::no_endpoint);
  const auto it = listeners_.find(doorway->take_ticket(open, peer.incarnation(), statement));
  if (it == listeners_.end()) {
    APERTURE_DEBUG("process %d came to %s with a ticket that is not valid", peer.pid(),
                   open.destination.text().c_str());
    return refuse(wire::Why::bad_ticket);
  }
  Listener& listener = *it->second;
  if (!speaks_for(peer, open.source)) return refuse(wire::Why::bad_ticket);
  if (listener.what() != what) return refuse(wire::Why::wrong_kind);
  if (!proves(open.proof, listener.end.auth_key.get(), statement, wire::Who::connector)) {
    refuse_key(peer, open, listener);
    return nullptr;
  }
  if (packet.fds_lost) return refuse(wire::Why::no_resources);
  return &listener;
}

void FirstContact::on_open(Peer& peer, const wire::Open& open, Packet& packet) noexcept {
  const uint32_t attempt = open.attempt.unchecked();
  wire::Statement statement;
  Listener* const found = opened_listener(peer, open, packet, ListenFor::lanes, statement);
  if (found == nullptr) return;
  Listener& listener = *found;
  const auto ours = connectors_.find({listener.end.listener, open.source});
  if (ours != connectors_.end() && ours->second->stage() == Connector::Stage::opening) {
    return peer.reject(attempt, wire::Why::crossing);
  }
  LocalEnd end = listener.end;
  end.address = open.destination;
  std::shared_ptr<PeerLane> record;
  auto lane = peer.accept(end, open, statement, packet, record);
  if (!lane) {
    const bool theirs = lane.error() == Errc::protocol;
    return peer.reject(attempt, theirs ? wire::Why::bad_lane : wire::Why::no_resources);
  }
  take_connector({listener.end.listener, open.source});  // this lane is what it waited for
  lane_up(record, *std::move(lane));
}

// --- as connector --------------------------------------------------------------------------------

void FirstContact::on_offer(Connector& connector, const wire::Answer& offer) noexcept {
  const std::shared_ptr<Peer> known = peer_of(offer.incarnation);
  if (known == nullptr) return join(connector, offer);
  if (known->joined()) return open(connector, *known);
  connector.enter(Connector::Stage::joining, known.get());
}

std::shared_ptr<Peer> FirstContact::peer_of(const wire::Id128& incarnation) noexcept {
  for (const auto& peer : peers_) {
    if (!peer->is_down() && peer->incarnation() == incarnation) return peer;
  }
  return nullptr;
}

void FirstContact::join(Connector& connector, const wire::Answer& offer) noexcept {
  auto socket = connect_abstract(offer.socket_name);
  if (!socket) {
    // the name is gone, or its queue is full of strangers: another try gets another name
    const bool ours = socket.error() == Errc::no_fds || socket.error() == Errc::no_memory;
    return ours ? on_connector_failed(connector, socket.error()) : connector.try_again();
  }
  auto who = peer_credentials(socket->get());
  if (!who) return connector.try_again();
  auto peer = std::make_shared<Peer>(peer_context_, *std::move(socket), who.value());
  if (!peer->begin(offer.nonce, connector.nonce(), offer.incarnation)) return connector.try_again();
  connector.enter(Connector::Stage::joining, peer.get());
  adopt(std::move(peer));
}

void FirstContact::on_peer_joined(Peer& peer) noexcept {
  std::vector<uint32_t> attempts;  // opening may end a connector
  for (const auto& [pair, connector] : connectors_) {
    if (connector->peer() == &peer && connector->stage() == Connector::Stage::joining) {
      attempts.push_back(connector->attempt());
    }
  }
  for (const uint32_t attempt : attempts) {
    if (Connector* connector = connector_of(attempt)) open(*connector, peer);
  }
}

void FirstContact::open(Connector& connector, Peer& peer) noexcept {
  connector.enter(Connector::Stage::opening, &peer);
  const Status s = peer.open(connector.end(), connector.remote(), connector.nonce(),
                             connector.offer(), connector.attempt(), connector.request());
  if (s.ok()) return;
  if (s.error() == Errc::peer_lost) return connector.try_again();
  on_connector_failed(connector, s.error());
}

void FirstContact::on_accept(Peer& peer, const wire::Accept& accept, Packet& packet) noexcept {
  std::shared_ptr<PeerLane> record;
  auto lane = peer.opened(accept, packet, record);
  if (record == nullptr) return peer.go_down(Errc::protocol);
  Connector* connector = connector_of(accept.attempt.unchecked());
  const bool wanted = connector != nullptr && connector->peer() == &peer &&
                      connector->stage() == Connector::Stage::opening &&
                      connector->request() == nullptr;
  if (!lane || !wanted) {
    peer.close_here(*record);  // the other side has a lane that will not be used
    if (wanted) on_connector_failed(*connector, lane.error());
    return;
  }
  take_connector({connector->end().listener, connector->remote()});
  lane_up(record, *std::move(lane));
}

void FirstContact::on_reject(Peer& peer, uint32_t attempt, wire::Why why) noexcept {
  peer.open_rejected(attempt);
  Connector* connector = connector_of(attempt);
  if (connector == nullptr || connector->peer() != &peer) return;
  switch (why) {
    case wire::Why::crossing: return connector->yield();
    case wire::Why::wrong_kind: return on_connector_failed(*connector, Errc::refused);
    case wire::Why::no_endpoint:
    case wire::Why::bad_ticket:
    case wire::Why::no_resources: return connector->try_again();
    case wire::Why::bad_lane: return on_connector_failed(*connector, Errc::protocol);
    case wire::Why::wrong_key: return on_connector_failed(*connector, Errc::access_denied);
  }
}

void FirstContact::on_rung(Peer& peer) noexcept {
  for (const auto& lane : peer.lanes()) {
    if (lane->lane == nullptr) continue;
    const auto listener = listeners_.find(lane->listener);
    if (listener == listeners_.end()) continue;
    signal_eventfd(listener->second->end.doorbell_fd);
  }
}

// --- the end of a peer ---------------------------------------------------------------------------

void FirstContact::on_peer_down(Peer& peer, Errc why) noexcept {
  const std::shared_ptr<Peer> keep = peer.shared_from_this();
  std::erase(peers_, keep);
  for (const auto& segment : peer.take_watched_segments()) rest(segment);
  for (const auto& lane : peer.lanes()) {
    lane_down(*lane, why == Errc::protocol ? Errc::protocol : Errc::peer_lost);
  }
  drop_requests_of(peer);
  std::vector<Connector*> asking;  // an application may have seen the request: not once more
  for (auto& [pair, connector] : connectors_) {
    if (connector->peer() != &peer) continue;
    const bool asked =
        connector->request() != nullptr && connector->stage() == Connector::Stage::opening;
    if (asked) {
      asking.push_back(connector.get());
    } else {
      connector->try_again();
    }
  }
  for (Connector* connector : asking) {
    on_connector_failed(*connector, why == Errc::protocol ? Errc::protocol : Errc::peer_lost);
  }
}

}  // namespace aperture::nic
