// Connection requests between the endpoints of two processes: Connect, Connected, Refuse, Withdraw,
// and the lane that is held while an application decides. See peer.hpp.
#include "link/shm/segment.hpp"
#include "nic/peer.hpp"
#include "nic/proof.hpp"

namespace aperture::nic {

void Peer::handle_request(wire::PeerMessage kind, Packet& packet) noexcept {
  if (kind == wire::PeerMessage::connect) {
    if (auto connect = wire::decode_connect(packet.view())) {
      ever_opened_ = true;
      return context_.host.on_connect(*this, connect.value(), packet);
    }
  } else if (kind == wire::PeerMessage::connected) {
    if (auto connected = wire::decode_connected(packet.view())) {
      return context_.host.on_connected(*this, connected.value(), packet);
    }
  } else if (kind == wire::PeerMessage::refuse) {
    if (auto refuse = wire::decode_refuse(packet.view())) {
      return context_.host.on_refuse(*this, refuse.value());
    }
  } else if (auto withdraw = wire::decode_withdraw(packet.view())) {
    return context_.host.on_withdraw(*this, withdraw->attempt.unchecked());
  }
  go_down(Errc::protocol);
}

Result<std::shared_ptr<PeerLane>> Peer::hold(const LocalEnd& end, const wire::Open& open,
                                             const wire::Statement& statement,
                                             Packet& packet) noexcept {
  uint32_t index = 0;
  uint32_t number = 0;
  if (!open.lane.bounded(link::shm::kLanes - 1, index)) return Errc::protocol;
  if (!open.segment.bounded(0x7fffffff, number)) return Errc::protocol;
  auto shared = attached_segment(number, std::move(packet.fds[0]));
  if (!shared) return shared.error();
  const LaneKey key = key_of(false, number, index);
  if (lanes_.contains(key)) return Errc::protocol;  // it is in use: not both have closed it
  auto bell = doorbell(open.engine.unchecked(), std::move(packet.fds[1]));
  if (!bell) return bell.error();
  const bool direct = learn_keys(open.key_file_bytes.unchecked(), std::move(packet.fds[2]));

  auto record = std::make_shared<PeerLane>();
  record->peer = this;
  record->segment = number;
  record->index = index;
  record->listener = end.listener;
  record->remote = open.source;
  lanes_[key] = record;
  held_[key] = {*std::move(bell),         direct,    open.domain.unchecked(),
                open.attempt.unchecked(), statement, open.proof};
  return record;
}

Result<std::unique_ptr<link::Lane>> Peer::admit(const LocalEnd& end, PeerLane& record,
                                                const wire::PrivateData* data) noexcept {
  auto held = held_.extract(key_of(record.created_here, record.segment, record.index));
  const wire::Statement& statement = held.mapped().statement;
  if (!proves(held.mapped().proof, end.auth_key.get(), statement, wire::Who::connector)) {
    return Errc::access_denied;
  }
  SharedSegment& shared = attached_.at(record.segment);
  auto lane = make_lane(shared, record, held.mapped().domain, std::move(held.mapped().doorbell),
                        held.mapped().direct);
  if (!lane) return lane.error();
  (*lane)->request_rx.want_notices(end.notices);

  wire::Accept accept;
  accept.attempt = Wild<uint32_t>(held.mapped().attempt);
  accept.domain = Wild<uint32_t>(end.domain);
  accept.engine = Wild<uint64_t>(end.engine);
  const uint64_t key_bytes = key_bytes_for(shared);
  accept.key_file_bytes = Wild<uint64_t>(key_bytes);
  accept.proof = prove(end.auth_key.get(), statement, wire::Who::acceptor);
  const wire::PeerPacket answer =
      data != nullptr ? wire::encode(wire::Connected{accept, *data}) : wire::encode(accept);
  const int keys_fd = context_.keys_read_only.get();
  const Status sent = key_bytes != 0 ? send(answer, {end.doorbell_fd, keys_fd})
                      : same_user()  ? send(answer, {end.doorbell_fd})
                                     : send(answer, {});
  if (!sent) {
    record.lane = nullptr;
    return sent.error();
  }
  record.listener = end.listener;
  return lane;
}

void Peer::let_go(PeerLane& record) noexcept {
  const LaneKey key = key_of(record.created_here, record.segment, record.index);
  held_.erase(key);
  lanes_.erase(key);
}

void Peer::refuse(uint32_t attempt, const wire::PrivateData& data) noexcept {
  wire::Refuse refuse;
  refuse.attempt = Wild<uint32_t>(attempt);
  refuse.data = data;
  if (!send(wire::encode(refuse), {})) go_down(Errc::peer_lost);
}

void Peer::withdraw(uint32_t attempt) noexcept {
  wire::Withdraw withdraw;
  withdraw.attempt = Wild<uint32_t>(attempt);
  if (!send(wire::encode(withdraw), {})) go_down(Errc::peer_lost);
}

}  // namespace aperture::nic
