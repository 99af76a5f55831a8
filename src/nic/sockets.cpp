// Thin, checked wrappers of socket calls: see sockets.hpp.
#include "nic/sockets.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/no_throw.hpp"
#include "link/udp/udp.hpp"
#include "nic/closer.hpp"

namespace aperture::nic {

namespace {

// What waits here has to be taken before what comes after it, whoever it is from: not more than is
// taken in a moment. Whoever finds it full dials anew (nic/connector.hpp).
constexpr int kBacklog = 128;
constexpr int kPortTries = 16;
constexpr int kSharedPortTries = 64;

ParentOnlyFd open_socket(int family, int type) noexcept {
  return ParentOnlyFd(
      move_high(UniqueFd(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))));
}

void set_flag(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof value);  // advisory: the socket works without
}

sa_family_t family_of(const Address& a) noexcept {
  return a.is_v4() ? AF_INET : AF_INET6;
}

Status bind_and_listen(int fd, const Address& at) noexcept {
  sockaddr_storage addr;
  const socklen_t len = at.to_sockaddr(addr);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&addr), len) != 0) return errc_from_errno(errno);
  if (::listen(fd, kBacklog) != 0) return errc_from_errno(errno);
  return {};
}

socklen_t abstract_address(const wire::Id128& id, sockaddr_un& out) noexcept {
  std::memset(&out, 0, sizeof out);
  out.sun_family = AF_UNIX;
  const auto name = wire::socket_name(id);
  assert(name.size() < sizeof out.sun_path);
  std::memcpy(out.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

// What lies in a directory that was opened, or, without a name, what was itself opened: whatever
// path leads there, its length does not count.
socklen_t address_in(int fd, const char* name, sockaddr_un& out) noexcept {
  std::memset(&out, 0, sizeof out);
  out.sun_family = AF_UNIX;
  const int length = std::snprintf(out.sun_path, sizeof out.sun_path, "/proc/self/fd/%d%s%s", fd,
                                   *name == '\0' ? "" : "/", name);
  assert(length > 0 && static_cast<size_t>(length) < sizeof out.sun_path);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + static_cast<size_t>(length) + 1);
}

Address address_by(decltype(::getsockname)& ask, int fd) noexcept {
  sockaddr_storage addr;
  socklen_t len = sizeof addr;
  if (ask(fd, reinterpret_cast<sockaddr*>(&addr), &len) != 0) return {};
  const auto a = Address::from_sockaddr(&addr, len);
  return a ? a.value() : Address{};
}

// Of Linux 6.16: whether descriptors may come by a unix socket.
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

// The kernel's own limit (SCM_MAX_FD): what of a packet finds no place here the kernel would close,
// and have us wait for it.
constexpr size_t kMostAtOnce = 253;

uid_t user_at(int socket) noexcept {
  const auto who = peer_credentials(socket);
  return who.ok() ? who.value().uid : ~uid_t{0};  // a number of nobody's
}

bool may_bring_descriptors(int fd) noexcept {
  int may = 1;
  socklen_t len = sizeof may;
  return ::getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &may, &len) != 0 || may != 0;
}

// False: there was one that no honest side sends. All of those are closed aside.
bool take_descriptors(int socket, const msghdr& message, Packet& packet, Expect what) noexcept {
  bool sound = true;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int raw;
      std::memcpy(&raw, CMSG_DATA(c) + i * sizeof raw, sizeof raw);
      UniqueFd fd(raw);
      const bool is_harmless = closes_at_once(raw);
      if ((is_harmless || what == Expect::anything) && packet.fd_count < packet.fds.size()) {
        packet.fds[packet.fd_count++] = move_high(std::move(fd));
        continue;
      }
      sound = false;
      if (!is_harmless) close_aside(std::move(fd), user_at(socket));
    }
  }
  return sound;
}

}  // namespace

Result<ParentOnlyFd> listen_tcp(const Address& at, Address& bound) noexcept {
  Status status;
  for (int i = 0; i < kPortTries; ++i) {
    ParentOnlyFd fd = open_socket(family_of(at), SOCK_STREAM);
    if (!fd) return errc_from_errno(errno);
    // a connection of the port's last owner that lingers in TIME_WAIT is no reason to refuse
    if (at.port != 0) set_flag(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (family_of(at) == AF_INET6) set_flag(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
    status = bind_and_listen(fd.get(), at);
    if (status.ok()) {
      bound = local_address(fd.get());
      if (bound.port == 0) return Errc::no_memory;  // nobody could be told where it listens
      return fd;
    }
    if (at.port != 0 || status.error() != Errc::addr_in_use) break;
  }
  return status.error();
}

Result<std::vector<ParentOnlyFd>> listen_tcp_on_all(std::span<const Address> ips,
                                                    uint16_t& port) noexcept {
  Status status = Errc::invalid;
  for (int i = 0; i < kSharedPortTries; ++i) {
    std::vector<ParentOnlyFd> sockets;
    uint16_t number = 0;  // the kernel's choice on the first decides for the others
    for (Address at : ips) {
      at.port = number;
      Address bound;
      auto socket = listen_tcp(at, bound);
      status = socket.error();
      if (!socket) break;
      number = bound.port;
      status = no_throw([&] { sockets.push_back(*std::move(socket)); });
      if (!status) break;
    }
    if (status.ok()) {
      port = number;
      return sockets;
    }
    if (status.error() != Errc::addr_in_use) break;
  }
  return status.error();
}

Result<ParentOnlyFd> connect_tcp(const Address& to, Address from) noexcept {
  ParentOnlyFd fd = open_socket(family_of(to), SOCK_STREAM);
  if (!fd) return errc_from_errno(errno);
  set_flag(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  sockaddr_storage addr;
  if (!from.is_any_ip()) {
    from.port = 0;
    set_flag(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT,
             1);  // the port is drawn when it connects
    const socklen_t len = from.to_sockaddr(addr);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&addr), len) != 0) return Errc::unreachable;
  }
  const socklen_t len = to.to_sockaddr(addr);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&addr), len) == 0) return fd;
  if (errno == EINPROGRESS || errno == EINTR) return fd;
  // EINVAL, EADDRNOTAVAIL, EACCES...: an address that cannot be reached from here
  const Errc e = errc_from_errno(errno);
  return e == Errc::refused || e == Errc::no_fds || e == Errc::no_memory ? e : Errc::unreachable;
}

Status connect_outcome(int fd) noexcept {
  int error = 0;
  socklen_t len = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0) return Errc::io;
  if (error == 0) {
    sockaddr_storage there;
    socklen_t there_len = sizeof there;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_len) != 0) {
      return errno == ENOTCONN ? Errc::peer_lost : Errc::io;
    }
    // a connect to a free port of this host may be given that very port and meet itself
    const auto peer = Address::from_sockaddr(&there, there_len);
    if (peer.ok() && peer.value() == local_address(fd)) return Errc::refused;
    return {};
  }
  const Errc e = errc_from_errno(error);
  return e == Errc::io || e == Errc::access_denied ? Errc::unreachable : e;
}

void close_without_waiting(int fd) noexcept {
  const linger none{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

Result<ParentOnlyFd> accept_one(int fd) noexcept {
  for (;;) {
    UniqueFd got(::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (got) {
      set_flag(got.get(), IPPROTO_TCP, TCP_NODELAY, 1);  // fails on a unix socket, harmlessly
      return ParentOnlyFd(move_high(std::move(got)));
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED: continue;
      case EAGAIN: return Errc::again;
      case ENOBUFS: return Errc::no_memory;
      default: return errc_from_errno(errno);
    }
  }
}

Address local_address(int fd) noexcept {
  return address_by(::getsockname, fd);
}

Address remote_address(int fd) noexcept {
  return address_by(::getpeername, fd);
}

bool is_within_host(const Address& here, const Address& there) noexcept {
  return there.ip == here.ip || link::udp::is_of_this_host(there);
}

Status receive_bytes(int fd, std::span<std::byte> into, size_t& got) noexcept {
  assert(got <= into.size());
  while (got < into.size()) {
    // also where a peer holds the same socket, and has made it block
    const ssize_t n = ::recv(fd, into.data() + got, into.size() - got, MSG_DONTWAIT);
    if (n > 0) {
      got += static_cast<size_t>(n);
    } else if (n == 0) {
      return Errc::peer_lost;
    } else if (errno != EINTR) {
      return errno == EAGAIN ? Errc::again : Errc::peer_lost;
    }
  }
  return {};
}

Status send_bytes(int fd, std::span<const std::byte> bytes) noexcept {
  for (;;) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == static_cast<ssize_t>(bytes.size())) return {};
    if (n < 0 && errno == EINTR) continue;
    return n < 0 && errno != EAGAIN ? Errc::peer_lost : Errc::again;
  }
}

Result<ParentOnlyFd> listen_abstract(const wire::Id128& name) noexcept {
  ParentOnlyFd fd = open_socket(AF_UNIX, SOCK_SEQPACKET);
  if (!fd) return errc_from_errno(errno);
  sockaddr_un addr;
  const socklen_t len = abstract_address(name, addr);
  set_flag(fd.get(), SOL_SOCKET, SO_PASSRIGHTS, 0);  // also of who comes by it
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&addr), len) != 0) return errc_from_errno(errno);
  if (::listen(fd.get(), 8) != 0) return errc_from_errno(errno);
  return fd;
}

Result<ParentOnlyFd> connect_abstract(const wire::Id128& name) noexcept {
  ParentOnlyFd fd = open_socket(AF_UNIX, SOCK_SEQPACKET);
  if (!fd) return errc_from_errno(errno);
  sockaddr_un addr;
  const socklen_t len = abstract_address(name, addr);
  for (;;) {
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&addr), len) == 0) return fd;
    if (errno != EINTR) return errc_from_errno(errno);
  }
}

Result<ParentOnlyFd> listen_in(int directory, const char* name) noexcept {
  ParentOnlyFd fd = open_socket(AF_UNIX, SOCK_SEQPACKET);
  // its mode becomes the file's, so that there is no moment in which it is anybody's
  if (!fd || ::fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) return errc_from_errno(errno);
  sockaddr_un addr;
  const socklen_t len = address_in(directory, name, addr);
  set_flag(fd.get(), SOL_SOCKET, SO_PASSRIGHTS, 0);  // also of who comes by it
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&addr), len) != 0) return errc_from_errno(errno);
  struct stat st;
  const bool is_sound = ::fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                        S_ISSOCK(st.st_mode) && (st.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  if (is_sound && ::listen(fd.get(), 8) == 0) return fd;
  const Errc why = is_sound ? errc_from_errno(errno) : Errc::io;
  ::unlinkat(directory, name, 0);
  return why;
}

Result<ParentOnlyFd> connect_in(int directory, const char* name) noexcept {
  // what was looked at is what is connected to, whoever puts something else there meanwhile
  const UniqueFd file(::openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat st;
  if (!file || ::fstat(file.get(), &st) != 0) return errc_from_errno(errno);
  if (!S_ISSOCK(st.st_mode)) return Errc::invalid;
  const uid_t uid = ::geteuid();
  if (uid != 0 && st.st_uid != uid) return Errc::access_denied;
  ParentOnlyFd fd = open_socket(AF_UNIX, SOCK_SEQPACKET);
  if (!fd) return errc_from_errno(errno);
  sockaddr_un addr;
  const socklen_t len = address_in(file.get(), "", addr);
  for (;;) {
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&addr), len) == 0) return fd;
    if (errno != EINTR) return errc_from_errno(errno);
  }
}

bool is_socket_dead(int file) noexcept {
  // of another type, so that one that lives is told apart and not disturbed
  const ParentOnlyFd fd = open_socket(AF_UNIX, SOCK_DGRAM);
  if (!fd) return false;
  sockaddr_un addr;
  const socklen_t len = address_in(file, "", addr);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&addr), len) != 0 && errno == ECONNREFUSED;
}

Result<Credentials> peer_credentials(int fd) noexcept {
  ucred c{};
  socklen_t len = sizeof c;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) != 0) return Errc::io;
  return Credentials{c.pid, c.uid};
}

Status send_packet(int fd, std::span<const std::byte> bytes, std::span<const int> fds) noexcept {
  assert(fds.size() <= wire::kMaxDescriptors);
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(wire::kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    // ETOOMANYREFS and ENOBUFS pass when the other side has read
    const bool later = errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS;
    return later ? Errc::again : Errc::peer_lost;
  }
}

Status receive_packet(int fd, Packet& packet, Expect what) noexcept {
  assert(packet.fd_count <= packet.fds.size());
  iovec iov{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostAtOnce * sizeof(int))];
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno == EAGAIN ? Errc::again : Errc::peer_lost;
  const bool sound = take_descriptors(fd, message, packet, what);
  if (n == 0) return Errc::peer_lost;
  packet.size = static_cast<size_t>(n);
  assert(packet.size <= packet.bytes.size());
  packet.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  if (!sound || (message.msg_flags & MSG_TRUNC) != 0) return Errc::protocol;
  return {};
}

bool next_packet_brings_descriptors(int fd) noexcept {
  msghdr message{};
  // without a place for them they stay where they are, and the kernel says so
  if (::recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT) < 0) return false;
  return (message.msg_flags & MSG_CTRUNC) != 0;
}

Status allow_descriptors(int fd) noexcept {
  const int may = 1;
  if (::setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &may, sizeof may) == 0) return {};
  return errno == ENOPROTOOPT ? Status() : Status(Errc::no_memory);
}

void close_listening(ParentOnlyFd socket) noexcept {
  if (!socket || !may_bring_descriptors(socket.get())) return;
  ::shutdown(socket.get(), SHUT_RDWR);  // nobody comes any more, and who has come goes first
  while (auto one = accept_one(socket.get())) close_stranger(*std::move(one));
}

void close_stranger(ParentOnlyFd socket) noexcept {
  if (!socket || !may_bring_descriptors(socket.get())) return;
  const uid_t whose = user_at(socket.get());
  close_aside(std::move(socket), whose);
}

}  // namespace aperture::nic
