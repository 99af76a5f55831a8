// The unix socket of a process pair: see peer_channel.hpp.
#include "nic/peer_channel.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <array>
#include <cassert>

#include "base/clock.hpp"
#include "base/no_throw.hpp"
#include "nic/closer.hpp"

namespace aperture::nic {

namespace {

// Messages; a peer that reads nothing for that long is cut off. One of our own user may have us
// hold as many as ask for, answer and close all the lanes that there can be: 40 MB.
constexpr size_t kMaxOutbox = 4096, kMaxOwnOutbox = 65536;
constexpr int kPacketsAtOnce = 16;  // then the other sockets have their turn
constexpr uint64_t kFlushAfterNs = 2'000'000;

}  // namespace

PeerChannel::PeerChannel(ControlThread& control, const Identity& self, PeerChannelHost& host,
                         ParentOnlyFd socket, const Credentials& credentials)
    : control_(control),
      self_(self),
      host_(host),
      socket_(std::move(socket)),
      credentials_(credentials),
      same_user_(self.same_user(credentials.pid, credentials.uid)) {
  assert(socket_);
}

PeerChannel::~PeerChannel() {
  close();
}

wire::Join PeerChannel::introduction(const wire::Id128& nonce) const noexcept {
  wire::Join join;
  join.nonce = nonce;
  join.incarnation = self_.incarnation;
  join.pid_ns = self_.pid_ns;
  join.time_ns = self_.time_ns;
  join.start_time = Wild<uint64_t>(self_.start_time);
  join.heavy_barriers = self_.heavy_barriers;
  join.direct_denied = self_.direct == DirectWish::deny;
  return join;
}

Status PeerChannel::watch() noexcept {
  assert(watch_ == 0 && !down_);
  auto watch = control_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { on_events(); });
  if (watch) watch_ = *watch;
  return watch.error();
}

Status PeerChannel::begin(const wire::Id128& nonce, const wire::Id128& expected,
                          const wire::Id128& incarnation) noexcept {
  incarnation_ = incarnation;
  expected_nonce_ = expected;
  if (Status s = watch(); !s) return s;
  return send(wire::encode_join(introduction(nonce)), {});
}

Status PeerChannel::answer(const wire::Join& join, const wire::Id128& nonce) noexcept {
  incarnation_ = join.incarnation;
  if (Status s = watch(); !s) return s;
  // before it hears that it may ask
  if (Status s = allow_descriptors(socket_.get()); !s) return s;
  learn(join);
  return send(wire::encode_joined(introduction(nonce)), {});
}

void PeerChannel::learn(const wire::Join& join) noexcept {
  assert(!joined_);
  joined_ = true;
  fence_sends_ = !(self_.heavy_barriers && join.heavy_barriers);
  // A pin names its thread by number and start time (protect/accessor_slot.hpp), and a process that
  // reads another start time than the one that was written takes a living thread for a dead one.
  const bool same_numbers = join.pid_ns == self_.pid_ns && join.time_ns == self_.time_ns;
  direct_possible_ = same_user() && credentials_.pid > 0 && same_numbers && !join.direct_denied &&
                     self_.direct != DirectWish::deny;
  // elsewhere the start time means nothing, and the number must do
  liveness_ = Liveness(credentials_.pid, same_numbers ? join.start_time.unchecked() : 0);
}

void PeerChannel::on_events() noexcept {
  const std::shared_ptr<void> keep = host_.keep();
  for (int i = 0; i < kPacketsAtOnce && !down_; ++i) {
    if (!same_user_ && is_behind_with(uid()) && next_packet_brings_descriptors(socket_.get())) {
      return host_.on_channel_lost(Errc::no_fds);
    }
    Packet packet;
    const Status s = receive_packet(socket_.get(), packet);
    if (s.error() == Errc::again) break;
    if (!s) return host_.on_channel_lost(s.error());
    if (!handle(packet)) return host_.on_channel_lost(Errc::protocol);
  }
  if (!down_) host_.on_drained();
}

bool PeerChannel::handle(Packet& packet) noexcept {
  const auto kind = wire::peer_message(packet.view());
  if (!kind) return false;
  if (joined_ == (kind.value() == wire::PeerMessage::joined)) return false;
  return joined_ ? host_.on_packet(kind.value(), packet) : handle_joined(packet);
}

bool PeerChannel::handle_joined(const Packet& packet) noexcept {
  auto joined = wire::decode_joined(packet.view());
  // a squatter on the name does not know the nonce that went to the owner of the TCP port
  if (!joined || !wire::equal_in_constant_time(joined->nonce, expected_nonce_) ||
      joined->incarnation != incarnation_) {
    return false;
  }
  learn(*joined);
  host_.on_joined();
  return true;
}

Status PeerChannel::send(const wire::PeerPacket& packet, std::span<const int> fds) noexcept {
  if (down_) return Errc::peer_lost;
  if (outbox_.empty()) {
    const Status s = send_packet(socket_.get(), packet.view(), fds);
    if (s.error() != Errc::again) return s;
  }
  if (outbox_.size() == (same_user_ ? kMaxOwnOutbox : kMaxOutbox)) return Errc::no_space;
  return no_throw([&] { return send_later(packet, fds); });
}

Status PeerChannel::send_later(const wire::PeerPacket& packet, std::span<const int> fds) {
  Outgoing later{packet, {}};
  later.fds.reserve(fds.size());
  for (const int fd : fds) {
    later.fds.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!later.fds.back()) return Errc::no_fds;
  }
  outbox_.push_back(std::move(later));
  if (flush_timer_ == 0) flush_soon();
  return {};
}

void PeerChannel::flush_soon() noexcept {
  assert(flush_timer_ == 0 && !down_);
  flush_timer_ = control_.add_timer(now_ns() + kFlushAfterNs, [this] { flush(); });
}

void PeerChannel::flush() noexcept {
  flush_timer_ = 0;
  while (!outbox_.empty() && !down_) {
    const Outgoing& next = outbox_.front();
    std::array<int, wire::kMaxDescriptors> fds{};
    assert(next.fds.size() <= fds.size());
    for (size_t i = 0; i < next.fds.size(); ++i) fds[i] = next.fds[i].get();
    const Status s = send_packet(socket_.get(), next.packet.view(), {fds.data(), next.fds.size()});
    if (s.error() == Errc::again) return flush_soon();
    if (!s) return;  // the socket says so itself, to on_events()
    outbox_.pop_front();
  }
}

ParentOnlyFd PeerChannel::copy_of_socket() const noexcept {
  return ParentOnlyFd(move_high(UniqueFd(::fcntl(socket_.get(), F_DUPFD_CLOEXEC, 0))));
}

void PeerChannel::close() noexcept {
  down_ = true;
  control_.unwatch(watch_);
  control_.cancel_timer(flush_timer_);
  watch_ = flush_timer_ = 0;
  outbox_.clear();
  if (same_user_) return socket_.reset();
  close_aside(std::move(socket_), uid());
}

}  // namespace aperture::nic
