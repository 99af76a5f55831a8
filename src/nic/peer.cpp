// Lanes between two processes, and the packets that make and end them: see peer.hpp.
#include "nic/peer.hpp"

#include <cassert>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

Peer::Peer(const PeerContext& context, ParentOnlyFd socket, const Credentials& credentials)
    : context_(context),
      channel_(context.control, context.self, *this, std::move(socket), credentials),
      memory_(channel_, context.keys, context.keys_read_only, context.shares) {}

Peer::LaneKey Peer::key_of(const PeerMemory::Place& place) noexcept {
  return uint64_t{place.created_here} << 63 | uint64_t{place.segment} << 16 | place.index;
}

Status Peer::begin(const wire::Id128& nonce, const wire::Id128& expected,
                   const wire::Id128& incarnation) noexcept {
  return channel_.begin(nonce, expected, incarnation);
}

Status Peer::answer(const wire::Join& join, const wire::Id128& nonce) noexcept {
  return channel_.answer(join, nonce);
}

// --- what the channel tells ----------------------------------------------------------------------

void Peer::on_joined() noexcept {
  context_.answers.on_peer_joined(*this);
}

bool Peer::on_packet(wire::PeerMessage kind, Packet& packet) noexcept {
  PeerAsks& asks = context_.asks;
  PeerAnswers& answers = context_.answers;
  // carries out what was decoded; false if it could not be
  const auto take = [](const auto& decoded, const auto& carry_out) {
    if (decoded) carry_out(decoded.value());
    return decoded.ok();
  };
  switch (kind) {
    case wire::PeerMessage::open:
      return take(wire::decode_open(packet.view()), [&](const wire::Open& open) {
        note_opened();
        asks.on_open(*this, open, packet);
      });
    case wire::PeerMessage::accept:
      return take(wire::decode_accept(packet.view()), [&](const wire::Accept& accept) {
        answers.on_accept(*this, accept, nullptr, packet);
      });
    case wire::PeerMessage::reject:
      return take(wire::decode_reject(packet.view()), [&](const wire::Reject& reject) {
        answers.on_reject(*this, reject.attempt.unchecked(), reject.why);
      });
    case wire::PeerMessage::connect:
      return take(wire::decode_connect(packet.view()), [&](const wire::Connect& connect) {
        note_opened();
        asks.on_connect(*this, connect, packet);
      });
    case wire::PeerMessage::connected:
      return take(wire::decode_connected(packet.view()), [&](const wire::Connected& connected) {
        answers.on_accept(*this, connected.accept, &connected.data, packet);
      });
    case wire::PeerMessage::refuse:
      return take(wire::decode_refuse(packet.view()),
                  [&](const wire::Refuse& refuse) { answers.on_refuse(*this, refuse); });
    case wire::PeerMessage::withdraw:
      return take(wire::decode_withdraw(packet.view()), [&](const wire::Withdraw& withdraw) {
        asks.on_withdraw(*this, withdraw.attempt.unchecked());
      });
    case wire::PeerMessage::lane_close: {
      const auto close = wire::decode_lane_close(packet.view());
      return close.ok() && handle_lane_close(close.value());
    }
    case wire::PeerMessage::ring: return !channel_.same_user();  // on_drained() sees to it
    case wire::PeerMessage::join:
    case wire::PeerMessage::joined: break;
  }
  return false;
}

void Peer::on_drained() noexcept {
  // whatever it said: a Ring that found the socket full was not said
  if (!channel_.same_user()) context_.host.on_rung(*this);
}

// --- opening -------------------------------------------------------------------------------------

Status Peer::open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
                  const wire::Answer& offer, uint32_t attempt,
                  const wire::PrivateData* request) noexcept {
  assert(!opening_.contains(attempt));
  const auto reserved = no_throw([&] { return memory_.reserve(); });
  if (!reserved) return reserved.error();
  const PeerMemory::Place& place = reserved.value();
  const LaneKey key = key_of(place);

  wire::Open open;
  open.nonce = offer.nonce;
  open.ticket = Wild<uint64_t>(offer.ticket);
  open.source = end.address;
  open.destination = remote;
  open.domain = Wild<uint32_t>(end.domain);
  open.engine = Wild<uint64_t>(end.engine);
  open.attempt = Wild<uint32_t>(attempt);
  const wire::Statement statement{{nonce, context_.self.incarnation, end.address},
                                  {offer.nonce, offer.incarnation, remote},
                                  offer.ticket};
  open.proof = prove(end.auth_key.get(), statement, wire::Who::connector);

  // nothing is sent before there is a place for the answer
  const Status sent = no_throw([&]() -> Status {
    auto record = std::make_shared<PeerLane>();
    record->peer = this;
    record->place = place;
    record->listener = end.listener;
    record->remote = remote;
    lanes_.emplace(key, std::move(record));
    opening_.emplace(attempt, Opening{key, statement, end.auth_key});
    const auto beside = memory_.tell(place, end.doorbell_fd, open);
    if (!beside) return beside.error();
    const wire::PeerPacket packet =
        request != nullptr ? wire::encode(wire::Connect{open, *request}) : wire::encode(open);
    return channel_.send(packet, beside.value().fds());
  });
  if (!sent) {
    opening_.erase(attempt);
    lanes_.erase(key);
    memory_.release(place);
    return sent;
  }
  note_opened();
  return {};
}

Result<std::unique_ptr<link::Lane>> Peer::opened(const wire::Accept& accept, Packet& packet,
                                                 std::shared_ptr<PeerLane>& record) noexcept {
  const auto it = opening_.find(accept.attempt.unchecked());
  if (it == opening_.end()) return Errc::protocol;
  const Opening opening = std::move(it->second);
  opening_.erase(it);
  record = lanes_.at(opening.key);
  assert(record->lane == nullptr && !record->closed_here);
  if (!proves(accept.proof, opening.auth_key.get(), opening.statement, wire::Who::acceptor)) {
    APERTURE_WARN(
        "%s accepted a connection without proof that it holds the authorization key of %s: the "
        "connection is closed; give both endpoints the same auth_key",
        record->remote.print().c_str(), opening.statement.connector.address.print().c_str());
    return Errc::access_denied;
  }
  return no_throw([&]() -> Result<std::unique_ptr<link::Lane>> {
    auto theirs = memory_.learn(accept, packet);
    if (!theirs) return theirs.error();
    auto lane = memory_.make_lane(record->place, record->remote, *std::move(theirs));
    if (lane) record->lane = lane->get();
    return lane;
  });
}

void Peer::open_rejected(uint32_t attempt) noexcept {
  const auto it = opening_.find(attempt);
  if (it == opening_.end()) return;
  const std::shared_ptr<PeerLane> record = lanes_.at(it->second.key);
  opening_.erase(it);
  finish(*record);
}

// --- accepting -----------------------------------------------------------------------------------

Result<std::unique_ptr<link::Lane>> Peer::accept(const LocalEnd& end, const wire::Open& open,
                                                 const wire::Statement& statement, Packet& packet,
                                                 std::shared_ptr<PeerLane>& record) noexcept {
  auto held = hold(end, open, statement, packet);
  if (!held) return held.error();
  record = *std::move(held);
  auto lane = admit(end, *record, nullptr);
  if (!lane) let_go(*record);
  return lane;
}

Result<std::shared_ptr<PeerLane>> Peer::hold(const LocalEnd& end, const wire::Open& open,
                                             const wire::Statement& statement,
                                             Packet& packet) noexcept {
  const auto place = PeerMemory::place_of(open);
  if (!place) return place.error();
  const LaneKey key = key_of(place.value());
  if (lanes_.contains(key)) return Errc::protocol;  // it is in use: not both have closed it
  auto held = no_throw([&]() -> Result<std::shared_ptr<PeerLane>> {
    auto theirs = memory_.learn(place.value(), open, packet);
    if (!theirs) return theirs.error();
    auto record = std::make_shared<PeerLane>();
    record->peer = this;
    record->place = place.value();
    record->listener = end.listener;
    record->remote = open.source;
    held_.emplace(key, Held{*std::move(theirs), open.attempt.unchecked(), statement, open.proof});
    lanes_.emplace(key, record);
    return record;
  });
  if (!held) held_.erase(key);
  return held;
}

Result<std::unique_ptr<link::Lane>> Peer::admit(const LocalEnd& end, PeerLane& record,
                                                const wire::PrivateData* data) noexcept {
  auto node = held_.extract(key_of(record.place));
  assert(!node.empty() && record.lane == nullptr);
  Held& held = node.mapped();
  if (!proves(held.proof, end.auth_key.get(), held.statement, wire::Who::connector)) {
    return Errc::access_denied;
  }
  auto lane = no_throw(
      [&] { return memory_.make_lane(record.place, record.remote, std::move(held.theirs)); });
  if (!lane) return lane.error();

  wire::Accept accept;
  accept.attempt = Wild<uint32_t>(held.attempt);
  accept.domain = Wild<uint32_t>(end.domain);
  accept.engine = Wild<uint64_t>(end.engine);
  accept.proof = prove(end.auth_key.get(), held.statement, wire::Who::acceptor);
  const auto beside = memory_.tell(record.place, end.doorbell_fd, accept);
  if (!beside) return beside.error();
  const wire::PeerPacket answer =
      data != nullptr ? wire::encode(wire::Connected{accept, *data}) : wire::encode(accept);
  if (Status s = channel_.send(answer, beside.value().fds()); !s) return s.error();
  record.lane = lane->get();
  record.listener = end.listener;
  return lane;
}

void Peer::let_go(PeerLane& record) noexcept {
  const LaneKey key = key_of(record.place);
  assert(!record.place.created_here && record.lane == nullptr);
  held_.erase(key);
  lanes_.erase(key);
}

// --- short messages ------------------------------------------------------------------------------

// Whoever cannot be told any more does not stay.
void Peer::say(const wire::PeerPacket& packet) noexcept {
  if (!channel_.send(packet, {})) go_down(Errc::peer_lost);
}

void Peer::reject(uint32_t attempt, wire::Why why) noexcept {
  wire::Reject reject;
  reject.attempt = Wild<uint32_t>(attempt);
  reject.why = why;
  say(wire::encode(reject));
}

void Peer::refuse(uint32_t attempt, const wire::PrivateData& data) noexcept {
  wire::Refuse refuse;
  refuse.attempt = Wild<uint32_t>(attempt);
  refuse.data = data;
  say(wire::encode(refuse));
}

void Peer::withdraw(uint32_t attempt) noexcept {
  wire::Withdraw withdraw;
  withdraw.attempt = Wild<uint32_t>(attempt);
  say(wire::encode(withdraw));
}

// --- closing -------------------------------------------------------------------------------------

void Peer::close_here(PeerLane& lane) noexcept {
  assert(!lane.closed_here && lane.peer == this);
  lane.lane = nullptr;
  lane.closed_here = true;
  wire::LaneClose close;
  PeerMemory::name(lane.place, close);
  if (!channel_.send(wire::encode(close), {})) return go_down(Errc::peer_lost);
  if (lane.closed_there) finish(lane);
}

bool Peer::handle_lane_close(const wire::LaneClose& close) noexcept {
  const auto place = PeerMemory::place_of(close);
  if (!place) return false;
  const auto it = lanes_.find(key_of(place.value()));
  if (it == lanes_.end()) return false;
  const std::shared_ptr<PeerLane> lane = it->second;
  const bool unanswered = lane->lane == nullptr && !lane->closed_here;
  if (lane->closed_there || unanswered) return false;
  lane->closed_there = true;
  if (lane->closed_here) {
    finish(*lane);
  } else {
    context_.host.on_lane_closed(*lane);
  }
  return true;
}

void Peer::finish(PeerLane& lane) noexcept {
  memory_.release(lane.place);
  lanes_.erase(key_of(lane.place));
}

// --- life ----------------------------------------------------------------------------------------

Peer::Pending Peer::look_after_pending() noexcept {
  Pending pending;
  for (auto& [key, lane] : lanes_) {
    if (lane->lane == nullptr || lane->down) continue;
    // relaxed: hints, all of them
    if (lane->lane->pending.load(std::memory_order_relaxed) == 0) {
      lane->last_progress = PeerLane::kNone;
      continue;
    }
    pending.any = true;
    const ring::ChannelWords& requests = lane->lane->request_tx.words();
    const ring::ChannelWords& responses = lane->lane->response_tx.words();
    const uint64_t progress = requests.consumed.load(std::memory_order_relaxed) +
                              requests.polls.load(std::memory_order_relaxed) +
                              responses.consumed.load(std::memory_order_relaxed);
    pending.stirs = pending.stirs || progress != lane->last_progress;
    lane->last_progress = progress;
  }
  // whoever moves lives: the file is only read when nothing has come for a tick
  if (pending.any && !pending.stirs && !channel_.is_self() && !channel_.alive()) {
    go_down(Errc::peer_lost);
  }
  return pending;
}

void Peer::open_within(uint64_t ns) noexcept {
  newcomer_timer_ = context_.control.add_timer(now_ns() + ns, [this] {
    newcomer_timer_ = 0;
    go_down(Errc::timed_out);
  });
}

void Peer::note_opened() noexcept {
  context_.control.cancel_timer(newcomer_timer_);
  newcomer_timer_ = 0;
}

void Peer::go_down(Errc why) noexcept {
  if (channel_.is_down()) return;
  note_opened();
  const std::shared_ptr<Peer> keep = shared_from_this();
  if (why == Errc::protocol) {
    APERTURE_WARN("peer %d broke the wire protocol at first contact: its connection is closed",
                  channel_.pid());
  }
  channel_.close();
  context_.host.on_peer_down(*this, why);
  for (auto& [key, lane] : lanes_) lane->peer = nullptr;
  lanes_.clear();
  opening_.clear();
  held_.clear();
}

}  // namespace aperture::nic
