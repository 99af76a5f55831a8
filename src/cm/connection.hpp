// The connection of two sockets that a connection of two ids is: whole messages out and in.
//
// The control thread's own. Whoever holds it sets what is called; after close() nothing is called
// any more, and a callback may close it. A callback holds two pointers at most: then it lies within
// the std::function, and neither setting nor copying one allocates.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include "base/errc.hpp"
#include "nic/control_thread.hpp"
#include "wire/cm.hpp"

namespace aperture::cm {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Bytes = std::span<const std::byte>;

  Connection(nic::ControlThread& control, ParentOnlyFd socket) noexcept
      : control_(control), socket_(std::move(socket)) {}
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Errors: no_memory, no_fds.
  Status start() noexcept;
  // All at once: messages are few and small. Errors: peer_lost.
  Status send(const wire::CmPacket& packet) noexcept;
  void close() noexcept;
  int fd() const noexcept { return socket_.get(); }

  std::function<void(wire::CmKind, Bytes)> on_message;  // its bytes, head and all, not decoded
  // The other side has closed or died (peer_lost), or said what cannot be (protocol).
  std::function<void(Errc)> on_lost;

 private:
  void on_readable() noexcept;
  void lose(Errc why) noexcept;

  nic::ControlThread& control_;
  ParentOnlyFd socket_;
  nic::ControlThread::WatchId watch_ = 0;
  std::array<std::byte, wire::kMaxCmBytes> bytes_;
  size_t got_ = 0;
};

}  // namespace aperture::cm
