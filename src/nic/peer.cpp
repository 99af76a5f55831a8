// What every kind of peer does with packets and lanes: see peer.hpp.
#include "nic/peer.hpp"

#include <cassert>

namespace aperture::nic {

bool Peer::dispatch(const PeerContext& context, wire::PeerMessage kind, Packet& packet) noexcept {
  assert(!is_down());
  PeerAsks& asks = context.asks;
  PeerAnswers& answers = context.answers;
  // carries out what was decoded; false if it could not be
  const auto take = [](const auto& decoded, const auto& carry_out) {
    if (decoded) carry_out(decoded.value());
    return decoded.ok();
  };
  switch (kind) {
    case wire::PeerMessage::open:
      return take(wire::decode_open(packet.view()),
                  [&](const wire::Open& open) { asks.on_open(*this, open, packet); });
    case wire::PeerMessage::accept:
      return take(wire::decode_accept(packet.view()), [&](const wire::Accept& accept) {
        answers.on_accept(*this, accept, nullptr, packet);
      });
    case wire::PeerMessage::reject:
      return take(wire::decode_reject(packet.view()), [&](const wire::Reject& reject) {
        answers.on_reject(*this, reject.attempt.unchecked(), reject.why);
      });
    case wire::PeerMessage::connect:
      return take(wire::decode_connect(packet.view()),
                  [&](const wire::Connect& connect) { asks.on_connect(*this, connect, packet); });
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
    case wire::PeerMessage::lane_close:
    case wire::PeerMessage::ring:
    case wire::PeerMessage::join:
    case wire::PeerMessage::joined: break;
  }
  return false;
}

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

Peer::Question Peer::question(const Identity& self, const LocalEnd& end, const Address& remote,
                              const wire::Id128& nonce, const wire::Answer& offer,
                              uint32_t attempt) noexcept {
  Question question;
  wire::Open& open = question.open;
  open.nonce = offer.nonce;
  open.ticket = Wild<uint64_t>(offer.ticket);
  open.source = end.address;
  open.destination = remote;
  open.domain = Wild<uint32_t>(end.domain);
  open.attempt = Wild<uint32_t>(attempt);
  question.statement = {{nonce, self.incarnation, end.address},
                        {offer.nonce, offer.incarnation, remote},
                        offer.ticket};
  return question;
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

void Peer::tell_down(const PeerContext& context, Errc why) noexcept {
  assert(is_down());
  context.host.on_peer_down(*this, why);
  for (auto& [key, lane] : lanes_) lane->peer = nullptr;
  lanes_.clear();
}

}  // namespace aperture::nic
