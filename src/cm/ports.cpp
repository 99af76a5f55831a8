// Sockets of connection management: see ports.hpp.
#include "cm/ports.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nic/host_identity.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm {

namespace {

constexpr int kBacklog = 1024;

nic::ParentOnlyFd open_socket(int family, int type) noexcept {
  return nic::ParentOnlyFd(
      move_high(UniqueFd(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))));
}

void set(int fd, int level, int name, int value) noexcept {
  ::setsockopt(fd, level, name, &value, sizeof value);  // advisory: the socket works without
}

int family_of(int fd) noexcept {
  int family = AF_INET;
  socklen_t len = sizeof family;
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &len);
  return family;
}

// As a socket of that family wants it: one for both families takes IPv4 addresses mapped.
socklen_t to_sockaddr(const Address& a, int family, sockaddr_storage& out) noexcept {
  if (family == AF_INET || !a.is_v4()) return a.to_sockaddr(out);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(a.port);
  std::memcpy(&six.sin6_addr, a.ip.data(), a.ip.size());
  std::memset(&out, 0, sizeof out);
  std::memcpy(&out, &six, sizeof six);
  return sizeof six;
}

Status bind_to(int fd, const Address& at) noexcept {
  sockaddr_storage sa;
  const socklen_t len = at.to_sockaddr(sa);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&sa), len) == 0) return {};
  return errc_from_errno(errno);
}

// Which of our addresses a datagram came to.
void take_destination(const msghdr& message, Address& to) noexcept {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&message), c)) {
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
      in_pktinfo info;
      std::memcpy(&info, CMSG_DATA(c), sizeof info);
      to = Address::v4(ntohl(info.ipi_addr.s_addr), to.port);
    } else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
      in6_pktinfo info;
      std::memcpy(&info, CMSG_DATA(c), sizeof info);
      std::memcpy(to.ip.data(), &info.ipi6_addr, to.ip.size());
    }
  }
}

size_t put_source(int family, const Address& from, msghdr& message) noexcept {
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (family == AF_INET) {
    in_pktinfo info{};
    std::memcpy(&info.ipi_spec_dst, from.ip.data() + 12, 4);
    c->cmsg_level = IPPROTO_IP;
    c->cmsg_type = IP_PKTINFO;
    c->cmsg_len = CMSG_LEN(sizeof info);
    std::memcpy(CMSG_DATA(c), &info, sizeof info);
    return CMSG_SPACE(sizeof info);
  }
  in6_pktinfo info{};
  std::memcpy(&info.ipi6_addr, from.ip.data(), from.ip.size());
  c->cmsg_level = IPPROTO_IPV6;
  c->cmsg_type = IPV6_PKTINFO;
  c->cmsg_len = CMSG_LEN(sizeof info);
  std::memcpy(CMSG_DATA(c), &info, sizeof info);
  return CMSG_SPACE(sizeof info);
}

}  // namespace

Result<nic::ParentOnlyFd> open_port(PortSpace space, const Address& at, const PortOptions& options,
                                    Address& bound) noexcept {
  const int family = at.is_v4() ? AF_INET : AF_INET6;
  const bool tcp = space == PortSpace::tcp;
  nic::ParentOnlyFd fd = open_socket(family, tcp ? SOCK_STREAM : SOCK_DGRAM);
  if (!fd) return errc_from_errno(errno);
  if (family == AF_INET6) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, options.six_only ? 1 : 0);
  if (options.reuse) set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (!tcp) {
    if (family == AF_INET) set(fd.get(), IPPROTO_IP, IP_PKTINFO, 1);
    if (family == AF_INET6) set(fd.get(), IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
  }
  Status status = bind_to(fd.get(), at);
  if (status.error() == Errc::addr_in_use && tcp && at.port != 0) {
    // Connections that a listener of this port has accepted are no reason to refuse, and only they
    // allow reuse (listen_on): whoever has bound the port, or listens there, still does not.
    set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    status = bind_to(fd.get(), at);
    if (!options.reuse) set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 0);
  }
  if (!status) return status.error();
  if (tcp) make_hasty(fd.get());
  bound = nic::local_address(fd.get());
  return fd;
}

Status listen_on(int fd) noexcept {
  set(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // accepted sockets inherit it: see open_port()
  if (::listen(fd, kBacklog) == 0) return {};
  return errc_from_errno(errno);
}

Status connect_from(int fd, const Address& to) noexcept {
  sockaddr_storage sa;
  const socklen_t len = to_sockaddr(to, family_of(fd), sa);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&sa), len) == 0) return {};
  if (errno == EINPROGRESS || errno == EINTR) return {};
  const Errc e = errc_from_errno(errno);
  return e == Errc::refused || e == Errc::invalid ? e : Errc::unreachable;
}

void make_hasty(int fd) noexcept {
  nic::close_without_waiting(fd);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}

Address remote_address(int fd) noexcept {
  sockaddr_storage sa;
  socklen_t len = sizeof sa;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&sa), &len) != 0) return {};
  auto a = Address::from_sockaddr(&sa, len);
  return a.ok() ? a.value() : Address{};
}

Result<Address> source_for(const Address& dest) noexcept {
  Address any_port = dest;
  if (any_port.port == 0) any_port.port = 1;  // connecting to port 0 is refused by some kernels
  sockaddr_storage sa;
  const socklen_t len = any_port.to_sockaddr(sa);
  const UniqueFd probe(::socket(sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), reinterpret_cast<sockaddr*>(&sa), len) != 0) {
    return Errc::unreachable;
  }
  Address found = nic::local_address(probe.get());
  found.port = 0;
  if (found.is_any_ip()) return Errc::unreachable;
  return found;
}

bool is_gid(const Address& a) noexcept {
  const auto& table = nic::host_addresses();
  return std::any_of(table.begin(), table.end(), [&](const Address& g) { return g.ip == a.ip; });
}

Status receive_datagram(int fd, const Address& bound, Datagram& got) noexcept {
  sockaddr_storage from;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(in6_pktinfo)) * 2];
  iovec iov{got.bytes.data(), got.bytes.size()};
  msghdr message{};
  message.msg_name = &from;
  message.msg_namelen = sizeof from;
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do {
    n = ::recvmsg(fd, &message, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0) return errno == ECONNREFUSED ? Errc::refused : errc_from_errno(errno);
  const auto sender = Address::from_sockaddr(&from, message.msg_namelen);
  if (!sender.ok()) return Errc::io;
  got.size = static_cast<size_t>(n);
  got.from = Result<Address>(sender).value();
  got.to = bound;
  take_destination(message, got.to);
  return {};
}

Status send_datagram(int fd, std::span<const std::byte> bytes, const Address& from,
                     const Address& to) noexcept {
  const int family = family_of(fd);
  sockaddr_storage sa;
  iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(in6_pktinfo))] = {};
  msghdr message{};
  message.msg_name = &sa;
  message.msg_namelen = to_sockaddr(to, family, sa);
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  message.msg_controllen = put_source(family, from, message);
  for (;;) {
    if (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS) return Errc::again;
    return errno == ECONNREFUSED ? Errc::refused : Errc::unreachable;
  }
}

}  // namespace aperture::cm
