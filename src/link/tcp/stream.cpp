// A stream over a TCP socket: see stream.hpp. RFC 9293; tcp(7).
#include "link/tcp/stream.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/uninterrupted.hpp"

namespace aperture::link::tcp {

namespace {

constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS, which older headers do not have
constexpr int kTcpInq = 36;       // TCP_INQ and TCP_CM_INQ, Linux 4.18
constexpr int kLongestPauseMs = 1'000;

bool set(int fd, int level, int name, int value) noexcept {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

// Before a peer counts as silent, what is lost is sent several times more: the pauses in between
// double, but no further than that where the kernel lets us say so (Linux 6.15).
void bound_pauses(int fd) noexcept {
  (void)set(fd, IPPROTO_TCP, kTcpRtoMaxMs, kLongestPauseMs);
}

// Each receive into several places says how much is left then; where the kernel does not, nothing
// is known.
void ask_how_much_is_left(int fd) noexcept {
  (void)set(fd, IPPROTO_TCP, kTcpInq, 1);
}

// A peer that is silent while nothing is under way is asked after half of the time, and then often
// enough that the other half is not much exceeded.
bool set_up(int fd, unsigned silence_ms) noexcept {
  const auto half_s = static_cast<int>(std::max(silence_ms / 2000, 1u));
  const int flags = ::fcntl(fd, F_GETFL);
  bound_pauses(fd);
  ask_how_much_is_left(fd);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 &&
         set(fd, IPPROTO_TCP, TCP_NODELAY, 1) && set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) &&
         set(fd, IPPROTO_TCP, TCP_KEEPIDLE, half_s) &&
         set(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(half_s / 3, 1)) &&
         set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

class TcpStream final : public Stream {
 public:
  explicit TcpStream(ParentOnlyFd socket) noexcept : socket_(std::move(socket)) { assert(socket_); }

  // The calls for one buffer take the kernel some 200 ns less than those for several.
  Result<size_t> send(std::span<const iovec> pieces) noexcept override {
    constexpr int kFlags = MSG_NOSIGNAL | MSG_DONTWAIT;
    if (pieces.size() == 1) return outcome(transfer_one(SYS_sendto, pieces[0], kFlags));
    const msghdr message = message_of(pieces);
    return outcome(transfer(SYS_sendmsg, &message, kFlags));
  }
  Result<size_t> receive(std::span<const iovec> places) noexcept override {
    if (places.size() == 1) {
      waiting_ = kUnknown;
      const long n = transfer_one(SYS_recvfrom, places[0], MSG_DONTWAIT);
      if (n == 0) return Errc::shut_down;
      return outcome(n);
    }
    msghdr message = message_of(places);
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const long n = transfer(SYS_recvmsg, &message, MSG_DONTWAIT);
    waiting_ = n > 0 ? left_of(message) : 0;
    if (n == 0) return Errc::shut_down;
    return outcome(n);
  }
  size_t waiting() const noexcept override {
    if (waiting_ != kUnknown) return waiting_;
    int waiting = 0;
    if (!socket_.is_here() || ::ioctl(socket_.get(), SIOCINQ, &waiting) != 0) return 0;
    return waiting > 0 ? static_cast<size_t>(waiting) : 0;
  }
  void finish() noexcept override {
    if (socket_.is_here()) ::shutdown(socket_.get(), SHUT_WR);
  }
  int fd() const noexcept override { return socket_.get(); }

 private:
  static msghdr message_of(std::span<const iovec> pieces) noexcept {
    assert(!pieces.empty());
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    return message;
  }
  static size_t left_of(msghdr& message) noexcept {
    const cmsghdr* const first = CMSG_FIRSTHDR(&message);
    if (first == nullptr || first->cmsg_level != IPPROTO_TCP || first->cmsg_type != kTcpInq)
      return 0;
    int left = 0;
    std::memcpy(&left, CMSG_DATA(first), sizeof left);
    return left > 0 ? static_cast<size_t>(left) : 0;
  }
  // No cancellation point: the application calls this in the midst of its posts and polls.
  template <typename... Arguments>
  long transfer(long number, Arguments... arguments) const noexcept {
    if (!socket_.is_here()) {
      errno = ENOTCONN;  // a forked child: the connection is its parent's
      return -1;
    }
    return uninterrupted(number, socket_.get(), arguments...);
  }
  long transfer_one(long number, const iovec& one, int flags) const noexcept {
    return transfer(number, one.iov_base, one.iov_len, flags, nullptr, nullptr);
  }
  static Result<size_t> outcome(long n) noexcept {
    if (n > 0) return static_cast<size_t>(n);
    if (n < 0 && errno == EFAULT) return Errc::bad_buffer;
    const bool later =
        n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ENOMEM);
    return later ? Errc::again : Errc::peer_lost;
  }

  ParentOnlyFd socket_;
  static constexpr size_t kUnknown = SIZE_MAX;
  size_t waiting_ = kUnknown;
};

}  // namespace

Result<std::unique_ptr<Stream>> make_stream(ParentOnlyFd socket, unsigned silence_ms) noexcept {
  if (!set_up(socket.get(), silence_ms)) return Errc::io;
  std::unique_ptr<Stream> stream(new (std::nothrow) TcpStream(std::move(socket)));
  if (stream == nullptr) return Errc::no_memory;
  return stream;
}

}  // namespace aperture::link::tcp
