// Lanes of a process of this host: how they are opened, decided about and closed. See
// host_lanes.hpp.
#include "nic/host_lanes.hpp"

#include <cassert>
#include <utility>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

Peer::LaneKey HostLanes::key_of(const PeerMemory::Place& place) noexcept {
  return uint64_t{place.created_here} << 63 | uint64_t{place.segment} << 16 | place.index;
}

std::shared_ptr<PeerLane> HostLanes::make_record(const PeerMemory::Place& place,
                                                 ListenerId listener, const Address& remote) {
  auto record = std::make_shared<SharedLane>();
  record->peer = &peer_;
  record->place = place;
  record->listener = listener;
  record->remote = remote;
  return record;
}

// --- opening -------------------------------------------------------------------------------------

Status HostLanes::open(const LocalEnd& end, const Peer::Question& asks,
                       const wire::PrivateData* request) noexcept {
  wire::Open open = asks.open;
  const wire::Statement& statement = asks.statement;
  const uint32_t attempt = open.attempt.unchecked();  // ours
  assert(!opening_.contains(attempt));
  const auto reserved = no_throw([&] { return memory_.reserve(); });
  if (!reserved) return reserved.error();
  const PeerMemory::Place& place = reserved.value();
  const Peer::LaneKey key = key_of(place);
  open.engine = Wild<uint64_t>(end.engine);
  open.proof = prove(end.auth_key.get(), statement, wire::Who::connector);

  // nothing is sent before there is a place for the answer
  const Status sent = no_throw([&]() -> Status {
    lanes_.emplace(key, make_record(place, end.listener, open.destination));
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
  }
  return sent;
}

Result<std::unique_ptr<link::Lane>> HostLanes::opened(const wire::Accept& accept, Packet& packet,
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
    auto lane = memory_.make_lane(place_of(*record), record->remote, *std::move(theirs));
    if (lane) record->lane = lane->get();
    return lane;
  });
}

void HostLanes::open_rejected(uint32_t attempt) noexcept {
  const auto it = opening_.find(attempt);
  if (it == opening_.end()) return;
  const std::shared_ptr<PeerLane> record = lanes_.at(it->second.key);
  opening_.erase(it);
  finish(*record);
}

// --- accepting -----------------------------------------------------------------------------------

Result<std::shared_ptr<PeerLane>> HostLanes::hold(const LocalEnd& end, const wire::Open& open,
                                                  const wire::Statement& statement,
                                                  Packet& packet) noexcept {
  const auto place = PeerMemory::place_of(open);
  if (!place) return place.error();
  const Peer::LaneKey key = key_of(place.value());
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
  return held;
}

Result<std::unique_ptr<link::Lane>> HostLanes::admit(const LocalEnd& end, PeerLane& record,
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
  return lane;
}

void HostLanes::let_go(PeerLane& record) noexcept {
  const Peer::LaneKey key = key_of(place_of(record));
  assert(!place_of(record).created_here && record.lane == nullptr);
  held_.erase(key);
  lanes_.erase(key);
}

// --- closing -------------------------------------------------------------------------------------

bool HostLanes::close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept {
  assert(!record.closed_here && record.peer == &peer_);
  lane.reset();
  record.lane = nullptr;
  record.closed_here = true;
  wire::LaneClose close;
  PeerMemory::name(place_of(record), close);
  if (!channel_.send(wire::encode(close), {})) return false;
  if (record.closed_there) finish(record);
  return true;
}

bool HostLanes::close_there(const wire::LaneClose& close, PeerHost& host) noexcept {
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
    host.on_lane_closed(*lane);
  }
  return true;
}

void HostLanes::finish(PeerLane& record) noexcept {
  const PeerMemory::Place place = place_of(record);
  memory_.release(place);
  lanes_.erase(key_of(place));
}

// --- life ----------------------------------------------------------------------------------------

Peer::Pending HostLanes::pending() noexcept {
  Peer::Pending found;
  for (auto& [key, lane] : lanes_) {
    if (lane->lane == nullptr || lane->down) continue;
    // relaxed: hints, all of them
    if (lane->lane->pending.load(std::memory_order_relaxed) == 0) {
      lane->last_progress = PeerLane::kNone;
      continue;
    }
    found.any = true;
    const ring::ChannelWords& requests = lane->lane->request_tx.words();
    const ring::ChannelWords& responses = lane->lane->response_tx.words();
    const uint64_t progress = requests.consumed.load(std::memory_order_relaxed) +
                              requests.polls.load(std::memory_order_relaxed) +
                              responses.consumed.load(std::memory_order_relaxed);
    found.stirs = found.stirs || progress != lane->last_progress;
    lane->last_progress = progress;
  }
  return found;
}

void HostLanes::forget_undecided() noexcept {
  assert(lanes_.empty());
  opening_.clear();
  held_.clear();
}

}  // namespace aperture::nic
