// How a connect comes to its lane: see connecting_side.hpp.
#include "nic/connecting_side.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "nic/meeting_directory.hpp"

namespace aperture::nic {

namespace {

constexpr size_t kMostAskAtOnce = 64;  // of one process; each may take three descriptors with it
constexpr uint64_t kLongestConnectNs = 1'000'000'000'000'000;  // a number that a clock can bear

}  // namespace

void ConnectingSide::begin(ListenerId id, const Address& remote, const wire::PrivateData* request,
                           uint64_t within_ns) noexcept {
  const ListeningEnd* const listener = listeners_.find(id);
  if (listener == nullptr) return;
  const EndPair pair{id, remote};
  if (connectors_.contains(pair) || lanes_.is_up(pair)) return;
  const Address& local = listener->end.address;
  const bool same_kind = remote.is_queue_pair() == local.is_queue_pair();
  if (remote == local || remote.port == 0 || remote.is_any_ip() || !same_kind) {
    const bool nobody_there = request != nullptr && remote.port != 0 && !remote.is_any_ip();
    return listener->events().on_connect_failed(remote,
                                                nobody_there ? Errc::refused : Errc::invalid);
  }
  ConnectorHost& host = *this;
  Connector::Limits limits = limits_;
  if (within_ns != 0) limits.timeout_ns = std::min(within_ns, kLongestConnectNs);
  const uint32_t attempt = next_attempt_++;
  Connector* started = nullptr;
  const Status made = no_throw([&] {
    auto connector = std::make_unique<Connector>(control_, host, self_, listener->end, remote,
                                                 attempt, limits, request);
    started = connector.get();
    attempts_.emplace(attempt, started);
    connectors_.emplace(pair, std::move(connector));
  });
  if (!made) {
    attempts_.erase(attempt);
    return listener->events().on_connect_failed(remote, made.error());
  }
  assert(attempts_.size() == connectors_.size());
  const Doorway* const doorway = listener->doorway.get();
  if (doorway != nullptr && doorway->has_ticket(id, remote)) return started->start(true);
  // who has a key to prove asks for something new to prove it by
  const bool may_ask = listener->end.auth_key == nullptr && !local.is_any_ip();
  if (may_ask && request == nullptr) return take_turn(pair, *started);
  // an application may take its time to answer a request: many would wait for that one
  const std::shared_ptr<HostPeer> met = may_ask ? peers_.find_at(remote) : nullptr;
  if (met != nullptr) return started->start_at(met->incarnation());
  started->start(false);
}

// --- turns ---------------------------------------------------------------------------------------

// Without memory for a queue it begins at once, as if it were alone.
void ConnectingSide::take_turn(const EndPair& pair, Connector& connector) noexcept {
  const Address port = pair.second.of_port();
  const Status queued = no_throw([&] { turns_[port].queue.push_back(pair); });
  if (!queued) return connector.start(false);
  connector.set_turn(Connector::Turn::queued);
  call_next(port);
}

// Later: whoever says so is in the midst of something.
void ConnectingSide::end_turn(Connector& connector) noexcept {
  if (connector.turn() != Connector::Turn::taken) return;
  connector.set_turn(Connector::Turn::none);
  const Address port = connector.remote().of_port();
  assert(turns_.contains(port) && turns_.at(port).taken != 0);
  --turns_.at(port).taken;
  control_.post([this, port] { call_next(port); });
}

// Those who wait for the process that has not answered this one, and are to wait no longer.
std::deque<EndPair> ConnectingSide::queue_of(const Connector& connector) noexcept {
  if (connector.turn() != Connector::Turn::taken) return {};
  return std::exchange(turns_.at(connector.remote().of_port()).queue, {});
}

void ConnectingSide::call_next(const Address& port) noexcept {
  while (true) {
    const auto at = turns_.find(port);
    if (at == turns_.end()) return;
    Turns& turns = at->second;
    if (turns.queue.empty()) {
      if (turns.taken == 0) turns_.erase(at);
      return;
    }
    const std::shared_ptr<HostPeer> met = peers_.find_at(port);
    if (turns.taken >= (met != nullptr ? kMostAskAtOnce : 1)) return;
    const EndPair pair = turns.queue.front();
    turns.queue.pop_front();
    Connector* const next = find(pair);
    if (next == nullptr || next->turn() != Connector::Turn::queued) continue;
    ++turns.taken;
    next->set_turn(Connector::Turn::taken);
    if (met != nullptr) {
      next->start_at(met->incarnation());
    } else {
      next->start(false);
    }
  }
}

void ConnectingSide::on_connector_waits(Connector& connector) noexcept {
  end_turn(connector);
}

void ConnectingSide::withdraw_all(ListenerId id) noexcept {
  while (true) {
    const auto first = connectors_.lower_bound({id, Address{}});
    if (first == connectors_.end() || first->first.first != id) break;
    const std::unique_ptr<Connector> given_up = take(first->first);
    const bool asked = given_up->request() != nullptr && given_up->peer() != nullptr &&
                       given_up->stage() == Connector::Stage::opening;
    if (asked) given_up->peer()->withdraw(given_up->attempt());
  }
}

Connector* ConnectingSide::find(const EndPair& pair) const noexcept {
  const auto it = connectors_.find(pair);
  return it == connectors_.end() ? nullptr : it->second.get();
}

std::unique_ptr<Connector> ConnectingSide::take(const EndPair& pair) noexcept {
  const auto it = connectors_.find(pair);
  if (it == connectors_.end()) return nullptr;
  std::unique_ptr<Connector> taken = std::move(it->second);
  attempts_.erase(taken->attempt());
  connectors_.erase(it);
  end_turn(*taken);
  assert(attempts_.size() == connectors_.size());
  return taken;
}

void ConnectingSide::stop_waiting(const EndPair& pair) noexcept {
  Connector* const waiting = find(pair);
  if (waiting == nullptr || waiting->turn() == Connector::Turn::queued) return;  // for its turn
  waiting->stop_waiting();
}

// The one that this peer may answer; nullptr: none.
Connector* ConnectingSide::of_attempt(uint32_t attempt, const Peer& peer) const noexcept {
  const auto it = attempts_.find(attempt);
  return it == attempts_.end() || it->second->peer() != &peer ? nullptr : it->second;
}

void ConnectingSide::on_connector_failed(Connector& connector, Errc why) noexcept {
  const EndPair first{connector.end().listener, connector.remote()};
  const std::deque<EndPair> queue =
      why == Errc::timed_out ? queue_of(connector) : std::deque<EndPair>{};
  const auto fail = [&](const EndPair& pair) {
    const std::unique_ptr<Connector> gone = take(pair);
    const ListeningEnd* const listener = listeners_.find(pair.first);
    if (listener != nullptr) listener->events().on_connect_failed(pair.second, why);
  };
  fail(first);
  for (const EndPair& pair : queue) {
    const Connector* const waiting = find(pair);
    if (waiting != nullptr && waiting->turn() == Connector::Turn::queued) fail(pair);
  }
}

// --- to the process there ------------------------------------------------------------------------

void ConnectingSide::on_offer(Connector& connector, const wire::Answer& offer) noexcept {
  const bool stays = offer.verdict == wire::Verdict::stays;
  const std::shared_ptr<HostPeer> known = stays ? nullptr : who_offers(connector, offer);
  if (known == nullptr) {
    // who offers that without a ticket is asked, or nobody
    if (!stays && offer.ticket == wire::kNoTicket) return connector.try_again();
    const Status joins =
        no_throw([&] { return stays ? stay(connector, offer) : join(connector, offer); });
    if (joins.ok()) return;
    const bool ours = joins.error() == Errc::no_fds || joins.error() == Errc::no_memory;
    return ours ? on_connector_failed(connector, joins.error()) : connector.try_again();
  }
  if (known->channel().joined()) return open(connector, *known);
  connector.enter(Connector::Stage::joining, known.get());
}

// The process that has made this offer, if it is a peer already; nullptr: it is not known as one.
std::shared_ptr<HostPeer> ConnectingSide::who_offers(const Connector& connector,
                                                     const wire::Answer& offer) noexcept {
  if (connector.connection() < 0) {
    assert(offer.ticket == wire::kNoTicket);
    return peers_.find_at(connector.remote());
  }
  return peers_.find(offer.incarnation, [&](const HostPeer& peer) {
    return is_of_who_answered(peer, connector, offer);
  });
}

// An incarnation is no secret, and anybody may have come by the one that this answer names: what is
// for the port's owner is for the peer of its user alone. A process of our own user may say what it
// likes where the kernel does not tell.
bool ConnectingSide::is_of_who_answered(const HostPeer& peer, const Connector& connector,
                                        const wire::Answer& offer) noexcept {
  const bool is_ours = peer.may_ask_at_once();
  // no port of another network namespace can be asked for its user
  if (offer.verdict == wire::Verdict::meets)
    return is_ours || peer.ports.was_met_at(connector.remote());
  const auto user =
      owners_.of_connection(connector.remote(), local_address(connector.connection()));
  if (!user) return is_ours;
  return user.value() == peer.channel().uid() &&
         (is_ours || !Identity::may_be_anybody(user.value()));
}

// Errors: no_fds, no_memory; and what another try may do better, since the name is gone then, or
// its queue full of strangers.
Status ConnectingSide::join(Connector& connector, const wire::Answer& offer) {
  const bool meets = offer.verdict == wire::Verdict::meets;
  auto socket =
      meets ? self_.meeting->connect(offer.socket_name) : connect_abstract(offer.socket_name);
  if (!socket) return socket.error();
  const auto who = peer_credentials(socket->get());
  if (!who) return who.error();
  if (self_.is_passed_for(offer.incarnation, who.value().pid)) return Errc::protocol;
  std::shared_ptr<HostPeer> peer = peers_.make(*std::move(socket), who.value());
  if (peer == nullptr) return Errc::no_fds;
  if (!peer->begin(offer.nonce, connector.nonce(), offer.incarnation)) return Errc::peer_lost;
  if (meets) {
    peer->ports.note_met_at(connector.remote());
    APERTURE_INFO("%s shares memory with us: %s is met in the directory in APERTURE_SHARE",
                  connector.remote().print().c_str(), peer->name().c_str());
  }
  peers_.adopt(peer);
  connector.enter(Connector::Stage::joining, peer.get());
  return {};
}

// Errors: likewise.
Status ConnectingSide::stay(Connector& connector, const wire::Answer& offer) {
  ParentOnlyFd tcp = connector.take_connection();
  std::shared_ptr<StreamPeer> peer = peers_.make(std::move(tcp), offer.incarnation, kNobody, 0);
  if (peer == nullptr) return Errc::no_fds;
  if (Status s = peer->begin(); !s) return s;
  peers_.adopt(peer);
  open(connector, *peer);
  return {};
}

void ConnectingSide::on_peer_joined(Peer& peer) noexcept {
  for (auto it = connectors_.begin(); it != connectors_.end();) {
    Connector& connector = *it->second;
    ++it;  // opening may end the connector
    if (connector.peer() == &peer && connector.stage() == Connector::Stage::joining) {
      open(connector, peer);
    }
  }
}

void ConnectingSide::open(Connector& connector, Peer& peer) noexcept {
  connector.enter(Connector::Stage::opening, &peer);
  const Status s = peer.open(connector.end(), connector.remote(), connector.nonce(),
                             connector.offer(), connector.attempt(), connector.request());
  if (s.ok()) return;
  if (s.error() == Errc::peer_lost) return connector.try_again();
  on_connector_failed(connector, s.error());
}

// --- its answers ---------------------------------------------------------------------------------

void ConnectingSide::on_accept(Peer& peer, const wire::Accept& accept,
                               const wire::PrivateData* data, Packet& packet) noexcept {
  std::shared_ptr<PeerLane> record;
  auto lane = peer.opened(accept, packet, record);
  if (record == nullptr) return peer.go_down(Errc::protocol);
  Connector* connector = of_attempt(accept.attempt.unchecked(), peer);
  const bool wanted = connector != nullptr && connector->stage() == Connector::Stage::opening &&
                      (connector->request() != nullptr) == (data != nullptr);
  if (!lane || !wanted) {
    // the other side has a lane that will not be used
    const Errc why = lane.error();
    peer.close_here(*record, lane ? *std::move(lane) : nullptr);
    if (wanted) on_connector_failed(*connector, why);
    return;
  }
  // in another network namespace that port may be somebody else's, here
  if (connector->offer().verdict == wire::Verdict::offered) peer.note_port(connector->remote());
  const std::unique_ptr<Connector> done = take({connector->end().listener, connector->remote()});
  const Status up = lanes_.up(record, *std::move(lane), data);
  const ListeningEnd* const listener = listeners_.find(done->end().listener);
  if (up || listener == nullptr) return;
  listener->events().on_connect_failed(done->remote(), up.error());
}

void ConnectingSide::on_reject(Peer& peer, uint32_t attempt, wire::Why why) noexcept {
  peer.open_rejected(attempt);
  Connector* connector = of_attempt(attempt, peer);
  if (connector == nullptr) return;
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

void ConnectingSide::on_refuse(Peer& peer, const wire::Refuse& refuse) noexcept {
  const uint32_t attempt = refuse.attempt.unchecked();
  peer.open_rejected(attempt);
  const Connector* connector = of_attempt(attempt, peer);
  if (connector == nullptr || connector->request() == nullptr) return;
  const ListenerId id = connector->end().listener;
  take({id, connector->remote()});
  const ListeningEnd* const listener = listeners_.find(id);
  if (listener != nullptr) listener->events().on_refused(refuse.data);
}

void ConnectingSide::peer_down(const Peer& peer, Errc told) noexcept {
  for (auto it = connectors_.begin(); it != connectors_.end();) {
    Connector& connector = *it->second;
    ++it;  // failing ends the connector
    if (connector.peer() != &peer) continue;
    // an application may have seen the request: not once more
    if (connector.request() != nullptr && connector.stage() == Connector::Stage::opening) {
      on_connector_failed(connector, told);
    } else {
      connector.try_again();
    }
  }
}

}  // namespace aperture::nic
