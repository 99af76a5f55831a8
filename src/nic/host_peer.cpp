// Lanes between two processes, and the packets that make and end them: see host_peer.hpp.
#include "nic/host_peer.hpp"

#include <cassert>
#include <cstdio>
#include <utility>

#include "base/log.hpp"

namespace aperture::nic {

HostPeer::HostPeer(const PeerContext& context, SegmentsHost& segments, ParentOnlyFd socket,
                   const Credentials& credentials)
    : context_(context),
      segments_(segments),
      channel_(context.control, context.self, *this, std::move(socket), credentials),
      memory_(channel_, context.keys, context.keys_read_only, context.shares),
      newcomer_(context.control) {}

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
  if (may_ask_at_once()) ports.note(remote);
}

// --- what the channel tells ----------------------------------------------------------------------

void HostPeer::on_joined() noexcept {
  context_.answers.on_peer_joined(*this);
}

bool HostPeer::on_packet(wire::PeerMessage kind, Packet& packet) noexcept {
  switch (kind) {
    case wire::PeerMessage::lane_close: {
      const auto close = wire::decode_lane_close(packet.view());
      return close.ok() && shared_lanes_.close_there(close.value(), context_.host);
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

// --- lanes ---------------------------------------------------------------------------------------

Status HostPeer::open(const LocalEnd& end, const Address& remote, const wire::Id128& nonce,
                      const wire::Answer& offer, uint32_t attempt,
                      const wire::PrivateData* request) noexcept {
  const Status s =
      shared_lanes_.open(end, question(context_.self, end, remote, nonce, offer, attempt), request);
  time_newcomer();
  return s;
}

Result<std::unique_ptr<link::Lane>> HostPeer::opened(const wire::Accept& accept, Packet& packet,
                                                     std::shared_ptr<PeerLane>& record) noexcept {
  auto lane = shared_lanes_.opened(accept, packet, record);
  if (lane) newcomer_ns_ = 0;
  time_newcomer();
  return lane;
}

void HostPeer::open_rejected(uint32_t attempt) noexcept {
  shared_lanes_.open_rejected(attempt);
  time_newcomer();
}

Result<std::shared_ptr<PeerLane>> HostPeer::hold(const LocalEnd& end, const wire::Open& open,
                                                 const wire::Statement& statement,
                                                 Packet& packet) noexcept {
  auto record = shared_lanes_.hold(end, open, statement, packet);
  time_newcomer();
  return record;
}

Result<std::unique_ptr<link::Lane>> HostPeer::admit(const LocalEnd& end, PeerLane& record,
                                                    const wire::PrivateData* data) noexcept {
  auto lane = shared_lanes_.admit(end, record, data);
  if (!lane) return lane;  // and is let go
  newcomer_ns_ = 0;
  time_newcomer();
  return lane;
}

void HostPeer::let_go(PeerLane& record) noexcept {
  shared_lanes_.let_go(record);
  time_newcomer();
}

void HostPeer::close_here(PeerLane& record, std::unique_ptr<link::Lane> lane) noexcept {
  if (!shared_lanes_.close_here(record, std::move(lane))) go_down(Errc::peer_lost);
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

// --- life ----------------------------------------------------------------------------------------

Peer::Pending HostPeer::look_after_pending() noexcept {
  const Pending pending = shared_lanes_.pending();
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
  const bool runs = newcomer_ns_ != 0 && !shared_lanes_.any_is_undecided() && !is_down();
  if (runs == newcomer_.is_set()) return;
  if (!runs) return newcomer_.cancel();
  newcomer_.set(newcomer_ns_, [this] { go_down(Errc::timed_out); });
}

void HostPeer::go_down(Errc why) noexcept {
  if (channel_.is_down()) return;
  const std::shared_ptr<Peer> keep = shared_from_this();
  if (why == Errc::protocol) {
    APERTURE_WARN("%s broke the wire protocol at first contact: its connection is closed",
                  name().c_str());
  }
  channel_.close();
  assert(is_down());
  time_newcomer();
  segments_.take_over(memory_.take_watched());
  tell_down(context_, why);
  shared_lanes_.forget_undecided();
}

}  // namespace aperture::nic
