// Opening UDP sockets: see udp.hpp.
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/interfaces.hpp"
#include "link/udp/udp.hpp"

namespace aperture::link::udp {

namespace {

// A burst shall wait for us rather than be lost; the kernel takes memory only for what is there.
constexpr int kReceiveBufferBytes = 16 << 20;
// IPV6_MULTICAST_ALL and SO_BINDTOIFINDEX, which older C libraries do not name
constexpr int kIpv6MulticastAll = 29;
constexpr int kBindToIfindex = 62;

template <typename T>
bool set(int fd, int level, int name, const T& value) noexcept {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

Result<UniqueFd> open_socket(bool v4) noexcept {
  UniqueFd fd = move_high(
      UniqueFd(::socket(v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!fd) {
    // no IPv6 in this kernel: then none of its addresses is to be had
    return errno == EAFNOSUPPORT ? Errc::addr_not_avail : errc_from_errno(errno);
  }
  if (!v4) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (!set(fd.get(), SOL_SOCKET, SO_RCVBUFFORCE, kReceiveBufferBytes)) {  // needs a privilege
    set(fd.get(), SOL_SOCKET, SO_RCVBUF, kReceiveBufferBytes);            // up to rmem_max
  }
  return fd;
}

Status bind_to(int fd, const Address& at, unsigned scope) noexcept {
  sockaddr_storage addr;
  const socklen_t len = at.to_sockaddr(addr);
  if (addr.ss_family == AF_INET6) {
    std::memcpy(reinterpret_cast<char*>(&addr) + offsetof(sockaddr_in6, sin6_scope_id), &scope,
                sizeof scope);
  }
  if (::bind(fd, reinterpret_cast<sockaddr*>(&addr), len) != 0) return errc_from_errno(errno);
  return {};
}

bool join(int fd, const Address& at, unsigned interface) noexcept {
  if (at.is_v4()) {
    ip_mreqn wish{};
    std::memcpy(&wish.imr_multiaddr, at.ip.data() + 12, 4);
    wish.imr_ifindex = static_cast<int>(interface);
    return set(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0) && set(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, wish);
  }
  ipv6_mreq wish{};
  std::memcpy(&wish.ipv6mr_multiaddr, at.ip.data(), 16);
  wish.ipv6mr_interface = interface;
  set(fd, IPPROTO_IPV6, kIpv6MulticastAll, 0);  // Linux 4.20; the group's tag tells in any case
  return set(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, wish);
}

// What comes from outside this host comes empty, whatever its source is said to be: of IPv6, the
// kernel takes packets that are forged under an address of this host. A filter of the socket says
// how much of a packet is kept: of strangers' the UDP header, so that they are counted and dropped
// where those of IPv4 are. What goes to an address of this host comes by loopback; what goes to a
// group comes back marked as a copy. False: the kernel has no such filters. socket(7), bpf(4).
bool empty_strangers(int fd, bool is_group) noexcept {
  constexpr uint32_t kUdpHeaderBytes = 8;
  constexpr auto kAncillary = static_cast<uint32_t>(SKF_AD_OFF);
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kAncillary + SKF_AD_IFINDEX),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ::if_nametoindex("lo"), 2, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kAncillary + SKF_AD_PKTTYPE),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, is_group ? PACKET_LOOPBACK : ~0U, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, ~0U),
      BPF_STMT(BPF_RET | BPF_K, kUdpHeaderBytes),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  return set(fd, SOL_SOCKET, SO_ATTACH_FILTER, filter);
}

}  // namespace

Result<UniqueFd> open_at(const Address& at, const Interface& interface, bool serves_others,
                         uint16_t& port) noexcept {
  const bool v4 = at.is_v4();
  auto fd = open_socket(v4);
  if (!fd) return fd.error();
  if (!v4 && !serves_others && !empty_strangers(fd->get(), false)) return Errc::addr_not_avail;
  if (Status s = bind_to(fd->get(), at, 0); !s) return s.error();
  if (v4) {
    ip_mreqn out{};
    std::memcpy(&out.imr_address, at.ip.data() + 12, 4);
    out.imr_ifindex = static_cast<int>(interface.index);
    set(fd->get(), IPPROTO_IP, IP_MULTICAST_IF, out);
    set(fd->get(), IPPROTO_IP, IP_MULTICAST_LOOP, 1);
  } else {
    set(fd->get(), IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(interface.index));
    set(fd->get(), IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1);
  }
  sockaddr_storage addr;
  socklen_t len = sizeof addr;
  if (::getsockname(fd->get(), reinterpret_cast<sockaddr*>(&addr), &len) != 0) return Errc::io;
  const auto bound = Address::from_sockaddr(&addr, len);
  if (!bound) return Errc::io;
  port = bound.value().port;
  return fd;
}

Result<UniqueFd> open_group(const Address& at, const Interface& interface,
                            bool serves_others) noexcept {
  auto fd = open_socket(at.is_v4());
  if (!fd) return fd.error();
  if (!at.is_v4() && !serves_others && !empty_strangers(fd->get(), true)) {
    return Errc::addr_not_avail;
  }
  set(fd->get(), SOL_SOCKET, SO_REUSEADDR, 1);
  // an IPv6 socket hears a group at whatever interface anybody of this host has joined it
  if (!at.is_v4()) {
    set(fd->get(), SOL_SOCKET, kBindToIfindex, static_cast<int>(interface.index));
  }
  if (Status s = bind_to(fd->get(), at, interface.index); !s) return s.error();
  if (!join(fd->get(), at, interface.index)) return errc_from_errno(errno);
  return fd;
}

Interface interface_of(const Address& ip) noexcept {
  Interface found{};
  // any of 127.0.0.0/8 is an address of loopback, whether it is in the list or not
  if (ip.is_v4() && ip.ip[12] == 127) found = {::if_nametoindex("lo"), true};
  visit_interfaces([&](const ifaddrs& interface, const Address& a) {
    if (a.ip != ip.ip) return false;
    found = {::if_nametoindex(interface.ifa_name), (interface.ifa_flags & IFF_LOOPBACK) != 0};
    return true;
  });
  return found;
}

bool is_of_this_host(const Address& ip) noexcept {
  if (ip.is_v4() && ip.ip[12] == 127) return true;  // for nothing: each connect asks
  return !ip.is_any_ip() && interface_of(ip).index != 0;
}

}  // namespace aperture::link::udp
