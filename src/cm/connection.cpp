// Messages over a stream: see connection.hpp.
#include "cm/connection.hpp"

#include <cassert>

#include <sys/epoll.h>

#include "nic/sockets.hpp"

namespace aperture::cm {

Status Connection::start() noexcept {
  assert(watch_ == 0 && got_ == 0);
  // the watch does not keep the connection: its destructor ends the watch
  auto watch = control_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { on_readable(); });
  if (!watch) return watch.error();
  watch_ = *watch;
  return {};
}

Status Connection::send(const wire::CmPacket& packet) noexcept {
  if (!socket_) return Errc::peer_lost;
  // a peer that does not read a few hundred bytes is as good as gone
  return nic::send_bytes(socket_.get(), packet.view()).ok() ? Status{} : Status{Errc::peer_lost};
}

void Connection::close() noexcept {
  control_.unwatch(watch_);
  watch_ = 0;
  socket_.reset();
}

void Connection::on_readable() noexcept {
  const auto keep = shared_from_this();  // a callback may let go of us
  while (socket_) {
    const std::span<std::byte> all(bytes_);
    if (got_ < wire::kCmHeadBytes) {
      const Status s = nic::receive_bytes(socket_.get(), all.first(wire::kCmHeadBytes), got_);
      if (!s) return s.error() == Errc::again ? void() : lose(s.error());
    }
    const auto kind = wire::decode_cm_head(all.first(wire::kCmHeadBytes));
    if (!kind.ok()) return lose(Errc::protocol);
    const size_t whole = wire::cm_bytes(Result<wire::CmKind>(kind).value());
    assert(whole <= bytes_.size() && got_ <= whole);
    const Status s = nic::receive_bytes(socket_.get(), all.first(whole), got_);
    if (!s) return s.error() == Errc::again ? void() : lose(s.error());
    got_ = 0;
    const auto tell = on_message;  // it may set another one
    tell(Result<wire::CmKind>(kind).value(), all.first(whole));
  }
}

void Connection::lose(Errc why) noexcept {
  close();
  const auto tell = on_lost;
  if (tell) tell(why);
}

}  // namespace aperture::cm
