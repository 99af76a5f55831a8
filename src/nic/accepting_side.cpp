// Who may come, and gets a lane: see accepting_side.hpp.
#include "nic/accepting_side.hpp"

#include <cassert>
#include <tuple>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

// --- at a doorway --------------------------------------------------------------------------------

Holder AcceptingSide::holder_of(const Address& there, const Address& here) noexcept {
  const auto owner = parts_.owners.of_connection(there, here);
  if (owner) return owner.value();
  return is_within_host(here, there) ? kNobody : holder_of_host(there);
}

wire::Verdict AcceptingSide::validate(ListeningEnd& listener, const wire::Hello& hello,
                                      Holder holder) noexcept {
  if (listener.what() == ListenFor::nobody) return wire::Verdict::wrong_destination;
  // whose user, or host, holds its share is told so before it costs more than that
  if (!parts_.peers.has(hello.incarnation) && !parts_.peers.has_place_for(holder)) {
    return wire::Verdict::busy;
  }
  Connector* const ours = parts_.connecting.find({listener.end.listener, hello.source});
  if (ours == nullptr || ours->stage() == Connector::Stage::waiting) return wire::Verdict::offered;
  // a lane of ours is about to be there: the other side's turn is over
  if (ours->stage() == Connector::Stage::opening) return wire::Verdict::crossing;
  const bool theirs_first = is_first(hello.source, hello.incarnation, hello.destination);
  if (!theirs_first || !ours->may_yield()) return wire::Verdict::crossing;
  ours->yield();
  assert(ours->stage() == Connector::Stage::waiting);
  return wire::Verdict::offered;
}

// Whose turn it is when both connect to each other: both sides compare the same two, whoever of
// them is asked.
bool AcceptingSide::is_first(const Address& source, const wire::Id128& incarnation,
                             const Address& destination) const noexcept {
  return std::tie(source, incarnation) < std::tie(destination, parts_.self.incarnation);
}

void AcceptingSide::on_ticket_lost(ListenerId listener, const wire::Hello& hello) noexcept {
  parts_.connecting.stop_waiting({listener, hello.source});
}

std::shared_ptr<Peer> AcceptingSide::on_stays(const wire::Hello& hello, uint64_t ticket,
                                              ParentOnlyFd tcp, Holder holder) noexcept {
  std::shared_ptr<Peer> guest;
  // without memory its connection closes, and it tries again
  static_cast<void>(no_throw([&] {
    std::shared_ptr<StreamPeer> peer =
        parts_.peers.make(std::move(tcp), hello.incarnation, holder, ticket);
    if (peer == nullptr || !peer->begin()) return;
    parts_.peers.adopt(peer);
    guest = std::move(peer);
  }));
  return guest;
}

// One that goes before it has asked gives its ticket back: whoever waits for it need not.
void AcceptingSide::peer_down(const Peer& peer) noexcept {
  if (peer.ticket() == 0) return;
  const std::shared_ptr<Doorway> doorway = parts_.listeners.doorway_of(peer.ticket());
  if (doorway != nullptr) doorway->drop(peer.ticket());
}

void AcceptingSide::on_joined(const wire::Hello& hello, const wire::Join& join, ParentOnlyFd socket,
                              const Credentials& credentials) noexcept {
  // without memory its socket closes, and it tries again
  static_cast<void>(no_throw([&] {
    std::shared_ptr<HostPeer> peer = parts_.peers.make(std::move(socket), credentials);
    if (peer == nullptr || !peer->answer(join, hello.nonce)) return;
    if (hello.net_ns != parts_.self.net_ns) {
      APERTURE_INFO("%s shares memory with us: %s has come by the directory in APERTURE_SHARE",
                    hello.source.print().c_str(), peer->name().c_str());
    }
    parts_.peers.adopt(std::move(peer));
  }));
}

// --- a peer asks ---------------------------------------------------------------------------------

// Open does not prove that its endpoint holds the key of ours.
void AcceptingSide::refuse_key(Peer& peer, const wire::Open& open,
                               ListeningEnd& listener) noexcept {
  const bool theirs = open.proof != wire::Proof{};
  const bool ours = listener.end.auth_key != nullptr;
  APERTURE_WARN("%s (%s) may not connect to %s: %s; give both endpoints the same auth_key",
                open.source.print().c_str(), peer.name().c_str(),
                listener.end.address.print().c_str(),
                !ours     ? "it has an authorization key, and the endpoint here has none"
                : !theirs ? "it has no authorization key, and the endpoint here has one"
                          : "its authorization key is another than that of the endpoint here");
  peer.reject(open.attempt.unchecked(), wire::Why::wrong_key);
  // our own connect to there waited for this one: it asks now, and is told as much
  parts_.connecting.stop_waiting({listener.end.listener, open.source});
}

AcceptingSide::Asked AcceptingSide::asked_by_ticket(const Peer& peer,
                                                    const wire::Open& open) const noexcept {
  const std::shared_ptr<Doorway> doorway = parts_.listeners.doorway_of(open.ticket.unchecked());
  if (doorway == nullptr) return {.why = wire::Why::no_endpoint};
  const Doorway::UsedTicket used = doorway->take_ticket(open, peer.incarnation());
  ListeningEnd* const listener = parts_.listeners.find(used.end);
  assert(listener == nullptr || listener->doorway == doorway);
  return {listener, wire::Why::bad_ticket, used.is_from_its_source, used.statement};
}

// A process of our user that we have met may ask for any end of ours, as it may by TCP.
AcceptingSide::Asked AcceptingSide::asked_at_once(const Peer& peer,
                                                  const wire::Open& open) const noexcept {
  if (!peer.may_ask_at_once()) return {.why = wire::Why::bad_ticket};
  if (open.nonce != wire::Id128{}) return {.why = wire::Why::bad_ticket};
  const bool same_kind = open.source.is_queue_pair() == open.destination.is_queue_pair();
  if (!same_kind) return {.why = wire::Why::no_endpoint};
  return {parts_.listeners.find_at(open.destination),
          wire::Why::no_endpoint,
          false,
          {{{}, peer.incarnation(), open.source}, {{}, parts_.self.incarnation, open.destination}}};
}

// The listener that Open or Connect is for; nullptr: it may not come in, and has been told.
ListeningEnd* AcceptingSide::opened_listener(Peer& peer, const wire::Open& open,
                                             const Packet& packet, ListenFor what,
                                             wire::Statement& statement) noexcept {
  const auto refuse = [&](wire::Why why) -> ListeningEnd* {
    peer.reject(open.attempt.unchecked(), why);
    return nullptr;
  };
  const bool has_ticket = open.ticket.unchecked() != wire::kNoTicket;
  const Asked asked = has_ticket ? asked_by_ticket(peer, open) : asked_at_once(peer, open);
  statement = asked.statement;
  ListeningEnd* const listener = asked.listener;
  if (listener == nullptr) {
    APERTURE_DEBUG(
        "%s came to %s, and %s", peer.name().c_str(), open.destination.print().c_str(),
        asked.why == wire::Why::bad_ticket ? "its ticket is not valid" : "no endpoint is there");
    return refuse(asked.why);
  }
  // the hello has shown it already where the ports are in another network namespace
  if (!asked.is_from_its_source && !peer.speaks_for(open.source, parts_.owners)) {
    return refuse(wire::Why::bad_ticket);
  }
  if (listener->what() != what) return refuse(wire::Why::wrong_kind);
  if (!proves(open.proof, listener->end.auth_key.get(), statement, wire::Who::connector,
              peer.proved_beside(packet))) {
    refuse_key(peer, open, *listener);
    return nullptr;
  }
  if (packet.fds_lost) return refuse(wire::Why::no_resources);
  return listener;
}

void AcceptingSide::on_open(Peer& peer, const wire::Open& open, Packet& packet) noexcept {
  const uint32_t attempt = open.attempt.unchecked();
  wire::Statement statement;
  ListeningEnd* const listener = opened_listener(peer, open, packet, ListenFor::lanes, statement);
  if (listener == nullptr) return;
  const EndPair pair{listener->end.listener, open.source};
  // one that has not come so far is told that it crosses, by who sent this
  const Connector* const ours = parts_.connecting.find(pair);
  // likewise one that crossed ours, which was answered over another socket before this one was read
  // (two may join two processes, and one that is joined to itself has two ends); whoever had a
  // lane, and opens one anew, tries again when the end of the old one has been heard of
  const bool crosses = ours != nullptr
                           ? ours->stage() == Connector::Stage::opening
                           : peer.is_process() && parts_.lanes.is_up_with(pair, peer.incarnation());
  if (crosses && !is_first(open.source, peer.incarnation(), open.destination)) {
    return peer.reject(attempt, wire::Why::crossing);
  }
  LocalEnd end = listener->end;
  end.address = open.destination;
  std::shared_ptr<PeerLane> record;
  auto lane = peer.accept(end, open, statement, packet, record);
  if (!lane) {
    const bool theirs = lane.error() == Errc::protocol;
    return peer.reject(attempt, theirs ? wire::Why::bad_lane : wire::Why::no_resources);
  }
  const auto waited = parts_.connecting.take(pair);  // this lane is what it waited for
  const Status up = parts_.lanes.up(record, *std::move(lane));
  if (!up && waited != nullptr) listener->events().on_connect_failed(open.source, up.error());
}

void AcceptingSide::on_connect(Peer& peer, const wire::Connect& connect, Packet& packet) noexcept {
  wire::Statement statement;
  ListeningEnd* const listener =
      opened_listener(peer, connect.open, packet, ListenFor::requests, statement);
  if (listener != nullptr) parts_.requests.hold(peer, connect, statement, packet, *listener);
}

void AcceptingSide::on_withdraw(Peer& peer, uint32_t attempt) noexcept {
  parts_.requests.withdrawn(peer, attempt);
}

}  // namespace aperture::nic
