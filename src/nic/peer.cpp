// The unix socket of a process pair, its messages, and the watch over its other end: see peer.hpp.
#include "nic/peer.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include "base/clock.hpp"
#include "base/log.hpp"

namespace aperture::nic {

namespace {

constexpr size_t kMaxOutbox = 4096;  // messages; a peer that reads nothing for that long is cut off
constexpr int kPacketsAtOnce = 16;   // then the other sockets have their turn
constexpr uint64_t kFlushAfterNs = 2'000'000;

}  // namespace

Peer::Peer(const PeerContext& context, ParentOnlyFd socket, const Credentials& credentials) noexcept
    : context_(context), socket_(std::move(socket)), credentials_(credentials) {}

Peer::~Peer() {
  context_.control.unwatch(watch_);
  context_.control.cancel_timer(flush_timer_);
}

wire::Join Peer::introduction(const wire::Id128& nonce) const noexcept {
  wire::Join join;
  join.nonce = nonce;
  join.incarnation = context_.self.incarnation;
  join.pid_ns = context_.self.pid_ns;
  join.start_time = Wild<uint64_t>(context_.self.start_time);
  join.heavy_barriers = context_.self.heavy_barriers;
  join.direct_denied = context_.self.direct == DirectWish::deny;
  return join;
}

Status Peer::begin(const wire::Id128& nonce, const wire::Id128& expected,
                   const wire::Id128& incarnation) noexcept {
  incarnation_ = incarnation;
  expected_nonce_ = expected;
  auto watch = context_.control.watch(socket_.get(), EPOLLIN, [this](uint32_t) { on_events(); });
  if (!watch) return watch.error();
  watch_ = watch.value();
  return send(wire::encode_join(introduction(nonce)), {});
}

Status Peer::answer(const wire::Join& join, const wire::Id128& nonce) noexcept {
  incarnation_ = join.incarnation;
  auto watch = context_.control.watch(socket_.get(), EPOLLIN, [this](uint32_t) { on_events(); });
  if (!watch) return watch.error();
  watch_ = watch.value();
  learn(join);
  return send(wire::encode_joined(introduction(nonce)), {});
}

void Peer::learn(const wire::Join& join) noexcept {
  const Identity& self = context_.self;
  joined_ = true;
  joined_at_ns_ = now_ns();
  fence_sends_ = !(self.heavy_barriers && join.heavy_barriers);
  direct_possible_ = same_user() && credentials_.pid > 0 && join.pid_ns == self.pid_ns &&
                     !join.direct_denied && self.direct != DirectWish::deny;
  // the start time is only worth something in the same pid namespace; without it the number must do
  const bool same_numbers = join.pid_ns == self.pid_ns;
  liveness_ = Liveness(credentials_.pid, same_numbers ? join.start_time.unchecked() : 0);
}

void Peer::on_events() noexcept {
  const std::shared_ptr<Peer> keep = shared_from_this();
  for (int i = 0; i < kPacketsAtOnce && !down_; ++i) {
    Packet packet;
    const Status s = receive_packet(socket_.get(), packet);
    if (s.error() == Errc::again) break;
    if (!s) return go_down(s.error());
    handle(packet);
  }
  // whatever it said: a Ring that found the socket full was not said
  if (!same_user() && !down_) context_.host.on_rung(*this);
}

void Peer::handle(Packet& packet) noexcept {
  const auto kind = wire::peer_message(packet.view());
  if (!kind) return go_down(Errc::protocol);
  if (joined_ == (kind.value() == wire::PeerMessage::joined)) return go_down(Errc::protocol);
  switch (kind.value()) {
    case wire::PeerMessage::joined: return handle_joined(packet);
    case wire::PeerMessage::open:
      if (auto open = wire::decode_open(packet.view())) {
        ever_opened_ = true;
        return context_.host.on_open(*this, open.value(), packet);
      }
      break;
    case wire::PeerMessage::accept:
      if (auto accept = wire::decode_accept(packet.view())) {
        return context_.host.on_accept(*this, accept.value(), packet);
      }
      break;
    case wire::PeerMessage::reject:
      if (auto reject = wire::decode_reject(packet.view())) {
        return context_.host.on_reject(*this, reject->attempt.unchecked(), reject->why);
      }
      break;
    case wire::PeerMessage::lane_close:
      if (auto close = wire::decode_lane_close(packet.view())) {
        return handle_lane_close(close.value());
      }
      break;
    case wire::PeerMessage::ring:
      if (!same_user()) return;  // on_events() sees to it
      break;
    case wire::PeerMessage::connect:
    case wire::PeerMessage::connected:
    case wire::PeerMessage::refuse:
    case wire::PeerMessage::withdraw: return handle_request(kind.value(), packet);
    case wire::PeerMessage::join: break;
  }
  go_down(Errc::protocol);
}

void Peer::handle_joined(const Packet& packet) noexcept {
  auto joined = wire::decode_joined(packet.view());
  // a squatter on the name does not know the nonce that went to the owner of the TCP port
  if (!joined || !wire::equal_in_constant_time(joined->nonce, expected_nonce_) ||
      joined->incarnation != incarnation_) {
    return go_down(Errc::protocol);
  }
  learn(joined.value());
  context_.host.on_peer_joined(*this);
}

Status Peer::send(const wire::PeerPacket& packet, std::initializer_list<int> fds) noexcept {
  if (down_) return Errc::peer_lost;
  if (outbox_.empty()) {
    const Status s = send_packet(socket_.get(), packet.view(), {fds.begin(), fds.size()});
    if (s.error() != Errc::again) return s;
  }
  if (outbox_.size() == kMaxOutbox) return Errc::no_space;
  Outgoing later{packet, {}};
  for (const int fd : fds) {
    later.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!later.fds.back()) return Errc::no_fds;
  }
  outbox_.push_back(std::move(later));
  if (flush_timer_ == 0) {
    flush_timer_ = context_.control.add_timer(now_ns() + kFlushAfterNs, [this] { flush(); });
  }
  return {};
}

void Peer::flush() noexcept {
  flush_timer_ = 0;
  while (!outbox_.empty() && !down_) {
    const Outgoing& next = outbox_.front();
    std::array<int, wire::kMaxDescriptors> fds{};
    for (size_t i = 0; i < next.fds.size(); ++i) fds[i] = next.fds[i].get();
    const Status s = send_packet(socket_.get(), next.packet.view(), {fds.data(), next.fds.size()});
    if (s.error() == Errc::again) {
      flush_timer_ = context_.control.add_timer(now_ns() + kFlushAfterNs, [this] { flush(); });
      return;
    }
    if (!s) return;  // the socket says so itself, to on_events()
    outbox_.pop_front();
  }
}

bool Peer::look_after_pending() noexcept {
  bool pending = false;
  bool moved = false;
  for (auto& [key, lane] : lanes_) {
    if (lane->lane == nullptr || lane->down) continue;
    // relaxed: hints, all of them
    if (lane->lane->pending.load(std::memory_order_relaxed) == 0) continue;
    pending = true;
    const ring::ChannelWords& requests = lane->lane->request_tx.words();
    const ring::ChannelWords& responses = lane->lane->response_tx.words();
    const uint64_t progress = requests.consumed.load(std::memory_order_relaxed) +
                              requests.polls.load(std::memory_order_relaxed) +
                              responses.consumed.load(std::memory_order_relaxed);
    moved = moved || progress != lane->last_progress;
    lane->last_progress = progress;
  }
  // who moves lives: the file is only read when nothing has come for a tick
  if (pending && !moved && credentials_.pid != context_.self.pid && !liveness_.alive()) {
    go_down(Errc::peer_lost);
  }
  return pending;
}

void Peer::go_down(Errc why) noexcept {
  if (down_) return;
  const std::shared_ptr<Peer> keep = shared_from_this();
  down_ = true;
  if (why == Errc::protocol) {
    APERTURE_WARN("peer %d broke the wire protocol at first contact: its connection is closed",
                  credentials_.pid);
  }
  context_.control.unwatch(watch_);
  context_.control.cancel_timer(flush_timer_);
  watch_ = flush_timer_ = 0;
  outbox_.clear();
  socket_.reset();
  context_.host.on_peer_down(*this, why);
  for (auto& [key, lane] : lanes_) lane->peer = nullptr;
  lanes_.clear();
  opening_.clear();
  held_.clear();
}

}  // namespace aperture::nic
