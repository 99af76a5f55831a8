// Lanes between two processes, and the packets that make and end them: see host_peer.hpp.
#include "nic/host_peer.hpp"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

HostPeer::HostPeer(const PeerContext& context, ParentOnlyFd socket, const Credentials& credentials)
    : context_(context),
      channel_(context.control, context.self, *this, std::move(socket), credentials),
      memory_(channel_, context.keys, context.keys_read_only, context.shares) {}

Peer::LaneKey HostPeer::key_of(const PeerMemory::Place& place) noexcept {
  return uint64_t{place.created_here} << 63 | uint64_t{place.segment} << 16 | place.index;
}

Status HostPeer::begin(const wire::Id128& nonce, const wire::Id128& expected,
                       const wire::Id128& incarnation) noexcept {
  return channel_.begin(nonce, expected, incarnation);
}

Status HostPeer::answer(const wire::Join& join, const wire::Id128& nonce) noexcept {
  return channel_.answer(join, nonce);
}

// --- who it is -----------------------------------------------------------------------------------

Peer::Name HostPeer::name() const noexcept {
  Name name;
  if (channel_.pid() == 0) {
    std::snprintf(name.text, sizeof name.text, "a process of user %u in another pid namespace",
                  channel_.uid());
  } else {
    std::snprintf(name.text, sizeof name.text, "process %d of user %u", channel_.pid(),
                  channel_.uid());
  }
  return name;
}

// A process of another user is believed to be the endpoint that it says only if that port is its
// user's; what we had for the real one would go to it.
bool HostPeer::speaks_for(const Address& source, PortOwners& owners) noexcept {
  if (channel_.same_user()) return true;
  const auto owner = owners.of_port(source);
  if (owner.ok() && owner.value() == channel_.uid()) return true;
  APERTURE_WARN(
      "%s says that it is %s, which %s: refused", name().c_str(), source.print().c_str(),
      owner.ok() ? "belongs to another user" : "nobody of this host is known to listen at");
  return false;
}

void HostPeer::note_port(const Address& remote) noexcept {
  if (!may_ask_at_once() || has_port(remote)) return;
  ports_[ports_noted_++ % ports_.size()] = remote.of_port().without_key();
}

bool HostPeer::has_port(const Address& at) const noexcept {
  assert(at.port != 0);
  const Address port = at.of_port().without_key();
  return std::find(ports_.begin(), ports_.end(), port) != ports_.end();
}

std::shared_ptr<PeerLane> HostPeer::make_record(const PeerMemory::Place& place, ListenerId listener,
                                                const Address& remote) {
  auto record = std::make_shared<SharedLane>();
  record->peer = this;
  record->place = place;
  record->listener = listener;
  record->remote = remote;
  return record;
}

// --- what the channel tells ----------------------------------------------------------------------

void HostPeer::on_joined() noexcept {
  context_.answers.on_peer_joined(*this);
}

bool HostPeer::on_packet(wire::PeerMessage kind, Packet& packet) noexcept {
  switch (kind) {
    case wire::PeerMessage::lane_close: {
      const auto close = wire::decode_lane_close(packet.view());
      return close.ok() && handle_lane_close(close.value());
    }
    case wire::PeerMessage::ring: return !channel_.same_user();  // on_drained() sees to it
    default: break;
  }
  return dispatch(context_, kind, packet);
}

void HostPeer::on_drained() noexcept {
  // whatever it said: a Ring that found the socket full was not said
  if (!channel_.same_user()) context_.host.on_rung(*this);
}

// --- opening -------------------------------------------------------------------------------------

Status HostPeer::open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
                      const wire::Answer& offer, uint32_t attempt,
                      const wire::PrivateData* request) noexcept {
  assert(!opening_.contains(attempt));
  const auto reserved = no_throw([&] { return memory_.reserve(); });
  if (!reserved) return reserved.error();
  const PeerMemory::Place& place = reserved.value();
  const LaneKey key = key_of(place);

  Question asks = question(context_.self, end, remote, nonce, offer, attempt);
  wire::Open& open = asks.open;
  const wire::Statement& statement = asks.statement;
  open.engine = Wild<uint64_t>(end.engine);
  open.proof = prove(end.auth_key.get(), statement, wire::Who::connector);

  // nothing is sent before there is a place for the answer
  const Status sent = no_throw([&]() -> Status {
    lanes_.emplace(key, make_record(place, end.listener, remote));
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
  time_newcomer();
  return {};
}

Result<std::unique_ptr<link::Lane>> HostPeer::opened(const wire::Accept& accept, Packet& packet,
                                                     std::shared_ptr<PeerLane>& record) noexcept {
  const auto it = opening_.find(accept.attempt.unchecked());
  if (it == opening_.end()) return Errc::protocol;
  const Opening opening = std::move(it->second);
  opening_.erase(it);
  time_newcomer();
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
    auto lane = memory_.make_lane(place_of(*record), record->remote, *std::move(theirs));
    if (!lane) return lane;
    record->lane = lane->get();
    note_lane();
    return lane;
  });
}

void HostPeer::open_rejected(uint32_t attempt) noexcept {
  const auto it = opening_.find(attempt);
  if (it == opening_.end()) return;
  const std::shared_ptr<PeerLane> record = lanes_.at(it->second.key);
  opening_.erase(it);
  finish(*record);
  time_newcomer();
}

// --- accepting -----------------------------------------------------------------------------------

Result<std::shared_ptr<PeerLane>> HostPeer::hold(const LocalEnd& end, const wire::Open& open,
                                                 const wire::Statement& statement,
                                                 Packet& packet) noexcept {
  const auto place = PeerMemory::place_of(open);
  if (!place) return place.error();
  const LaneKey key = key_of(place.value());
  if (lanes_.contains(key)) return Errc::protocol;  // it is in use: not both have closed it
  auto held = no_throw([&]() -> Result<std::shared_ptr<PeerLane>> {
    auto theirs = memory_.learn(place.value(), open, packet);
    if (!theirs) return theirs.error();
    auto record = make_record(place.value(), end.listener, open.source);
    held_.emplace(key, Held{*std::move(theirs), open.attempt.unchecked(), statement, open.proof});
    lanes_.emplace(key, record);
    return record;
  });
  if (!held) held_.erase(key);
  time_newcomer();
  return held;
}

Result<std::unique_ptr<link::Lane>> HostPeer::admit(const LocalEnd& end, PeerLane& record,
                                                    const wire::PrivateData* data) noexcept {
  auto node = held_.extract(key_of(place_of(record)));
  assert(!node.empty() && record.lane == nullptr);
  Held& held = node.mapped();
  if (!proves(held.proof, end.auth_key.get(), held.statement, wire::Who::connector)) {
    return Errc::access_denied;
  }
  auto lane = no_throw(
      [&] { return memory_.make_lane(place_of(record), record.remote, std::move(held.theirs)); });
  if (!lane) return lane.error();

  wire::Accept accept;
  accept.attempt = Wild<uint32_t>(held.attempt);
  accept.domain = Wild<uint32_t>(end.domain);
  accept.engine = Wild<uint64_t>(end.engine);
  accept.proof = prove(end.auth_key.get(), held.statement, wire::Who::acceptor);
  const auto beside = memory_.tell(place_of(record), end.doorbell_fd, accept);
  if (!beside) return beside.error();
  const wire::PeerPacket answer =
      data != nullptr ? wire::encode(wire::Connected{accept, *data}) : wire::encode(accept);
  if (Status s = channel_.send(answer, beside.value().fds()); !s) return s.error();
  record.lane = lane->get();
  record.listener = end.listener;
  note_lane();
  return lane;
}

void HostPeer::let_go(PeerLane& record) noexcept {
  const LaneKey key = key_of(place_of(record));
  assert(!place_of(record).created_here && record.lane == nullptr);
  held_.erase(key);
  lanes_.erase(key);
  time_newcomer();
}

// --- short messages ------------------------------------------------------------------------------

void HostPeer::say(const wire::PeerPacket& packet) noexcept {
  if (!channel_.send(packet, {})) go_down(Errc::peer_lost);
}

void HostPeer::withdraw(uint32_t attempt) noexcept {
  wire::Withdraw withdraw;
  withdraw.attempt = Wild<uint32_t>(attempt);
  say(wire::encode(withdraw));
}

// --- closing -------------------------------------------------------------------------------------

void HostPeer::close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept {
  assert(!record.closed_here && record.peer == this);
  lane.reset();
  record.lane = nullptr;
  record.closed_here = true;
  wire::LaneClose close;
  PeerMemory::name(place_of(record), close);
  if (!channel_.send(wire::encode(close), {})) return go_down(Errc::peer_lost);
  if (record.closed_there) finish(record);
}

bool HostPeer::handle_lane_close(const wire::LaneClose& close) noexcept {
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

void HostPeer::finish(PeerLane& record) noexcept {
  const PeerMemory::Place place = place_of(record);
  memory_.release(place);
  lanes_.erase(key_of(place));
}

// --- life ----------------------------------------------------------------------------------------

Peer::Pending HostPeer::look_after_pending() noexcept {
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

void HostPeer::open_within(uint64_t ns) noexcept {
  assert(newcomer_ns_ == 0 && ns != 0);
  newcomer_ns_ = ns;
  time_newcomer();
}

// The time of a newcomer runs while it has no lane, and nobody has to decide whether it gets one:
// the other side, which we have asked, or an application here. That it asks for one is nothing yet.
void HostPeer::time_newcomer() noexcept {
  const bool runs = newcomer_ns_ != 0 && opening_.empty() && held_.empty() && !is_down();
  if (runs == (newcomer_timer_ != 0)) return;
  if (!runs) return context_.control.cancel_timer(std::exchange(newcomer_timer_, 0));
  newcomer_timer_ = context_.control.add_timer(now_ns() + newcomer_ns_, [this] {
    newcomer_timer_ = 0;
    go_down(Errc::timed_out);
  });
}

void HostPeer::note_lane() noexcept {
  newcomer_ns_ = 0;
  time_newcomer();
}

void HostPeer::go_down(Errc why) noexcept {
  if (channel_.is_down()) return;
  const std::shared_ptr<Peer> keep = shared_from_this();
  if (why == Errc::protocol) {
    APERTURE_WARN("%s broke the wire protocol at first contact: its connection is closed",
                  name().c_str());
  }
  channel_.close();
  time_newcomer();
  tell_down(context_, why);
  opening_.clear();
  held_.clear();
}

}  // namespace aperture::nic
