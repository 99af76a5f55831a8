// Taking ports and connecting between them: see ports.hpp.
#include "cm/ports.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/random.hpp"
#include "link/udp/udp.hpp"
#include "nic/host_identity.hpp"
#include "nic/identity.hpp"
#include "nic/sockets.hpp"

namespace aperture::cm {

namespace {

constexpr int kBacklog = 1024;
// Where a port is drawn from that nobody asked for by number: as the kernel draws its own.
constexpr uint16_t kFirstDrawn = 32768;
constexpr uint16_t kLastDrawn = 60999;

UniqueFd open_socket() noexcept {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

Status bind_to(int fd, const PortName& name) noexcept {
  sockaddr_un sa;
  const socklen_t len = name.to_sockaddr(sa);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&sa), len) == 0) return {};
  return errc_from_errno(errno);
}

Result<ParentOnlyFd> open_named(const PortName& name) noexcept {
  ParentOnlyFd fd(move_high(open_socket()));
  if (!fd) return errc_from_errno(errno);
  if (const Status s = bind_to(fd.get(), name); !s) return s.error();
  return fd;
}

// Only binding it tells whether somebody has a name who does not listen.
Status require_free(const PortName& name) noexcept {
  const ParentOnlyFd probe(open_socket());
  if (!probe) return errc_from_errno(errno);
  return bind_to(probe.get(), name);
}

unsigned first_unprivileged() noexcept {
  unsigned first = IPPORT_RESERVED;
  FILE* file = std::fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "re");
  if (file == nullptr) return first;
  if (std::fscanf(file, "%u", &first) != 1) first = IPPORT_RESERVED;
  std::fclose(file);
  return first;
}

bool is_privileged(uint16_t port) noexcept {
  return port != 0 && port < first_unprivileged();
}

// The kernel decides whether this process may have a port of that number: it looks at the privilege
// before it looks whether the port is free.
Status require_privilege(uint16_t port) noexcept {
  if (!is_privileged(port)) return {};
  const UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int one = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);  // advisory
  sockaddr_storage sa;
  const socklen_t len = Address::v4(INADDR_LOOPBACK, port).to_sockaddr(sa);
  if (::bind(probe.get(), reinterpret_cast<sockaddr*>(&sa), len) == 0 || errno != EACCES) return {};
  return refuse(Errc::access_denied,
                "rdma_cm: port %u needs CAP_NET_BIND_SERVICE, as a TCP port of that number does",
                unsigned{port});
}

// Abstract names are for everybody: who has that of a privileged port need not have the privilege.
Status require_rightful(int fd, const Address& to) noexcept {
  if (!is_privileged(to.port)) return {};
  if (is_root_or_us(fd)) return {};
  const auto owner = nic::peer_credentials(fd);
  return refuse(Errc::refused,
                "rdma_cm: %s is held by user %u, who is neither root nor us, and the port is a "
                "privileged one: not connecting",
                to.print().c_str(), owner.ok() ? unsigned{owner.value().uid} : 0U);
}

Status connect_to(int fd, const PortName& name) noexcept {
  sockaddr_un sa;
  const socklen_t len = name.to_sockaddr(sa);
  while (::connect(fd, reinterpret_cast<sockaddr*>(&sa), len) != 0) {
    if (errno != EINTR) return errc_from_errno(errno);
  }
  return {};
}

// What a port covers: its address; of a wildcard, those of the device, and (so that two wildcards
// always meet) the wildcard itself.
std::vector<Address> covered(const Address& at, bool six_only) {
  std::vector<Address> all{at};
  if (!at.is_any_ip()) return all;
  const bool four = at.is_v4() || !six_only;
  if (!at.is_v4() && four) all.push_back(Address::v4(INADDR_ANY, at.port));
  for (Address a : nic::host_addresses()) {
    if (a.is_v4() ? !four : at.is_v4()) continue;
    a.port = at.port;
    all.push_back(a);
  }
  return all;
}

}  // namespace

Status Port::hold_at(const Address& at) noexcept {
  Address part = at;
  Result<ParentOnlyFd> socket = Errc::addr_in_use;
  part.index = shared_ ? 1 : 0;
  do {
    socket = open_named({space_, part});
  } while (socket.error() == Errc::addr_in_use && shared_ && part.index++ < kShares);
  if (!socket) return socket.error();
  // Both hold before they look, so that of two who come at once one sees the other at least.
  Address others = at;
  for (others.index = shared_ ? 0 : 1; others.index <= (shared_ ? 0 : kShares); ++others.index) {
    if (const Status s = require_free({space_, others}); !s) return s;
  }
  return no_throw([&] { held_.push_back({part, *std::move(socket)}); });
}

Status Port::hold(bool six_only) noexcept {
  held_.clear();
  Status status;
  const Status listed = no_throw([&] {
    for (const Address& a : covered(bound_, six_only)) {
      if (status = hold_at(a); !status) break;
    }
  });
  if (!listed) status = listed;
  if (!status) held_.clear();
  return status;
}

Result<Port> Port::take(PortSpace space, const Address& at, const PortOptions& options) noexcept {
  if (const Status s = require_privilege(at.port); !s) return s.error();
  Port port(space, at.of_port(), options.reuse);
  if (at.port != 0) {
    if (const Status s = port.hold(options.six_only); !s) return s.error();
    return port;
  }
  constexpr uint32_t kDrawn = kLastDrawn - kFirstDrawn + 1u;
  const auto start = static_cast<uint32_t>(random_u64() % kDrawn);
  for (uint32_t i = 0; i < kDrawn; ++i) {
    port.bound_.port = static_cast<uint16_t>(kFirstDrawn + (start + i) % kDrawn);
    const Status s = port.hold(options.six_only);
    if (s.ok()) return port;
    if (s.error() != Errc::addr_in_use) return s.error();
  }
  return Errc::addr_in_use;
}

Status Port::renew(NamedSocket& held) noexcept {
  assert(held.at.port != 0 && held.at.port == bound_.port);
  if (held.socket) return {};
  auto socket = open_named({space_, held.at});
  if (!socket) return socket.error();
  held.socket = *std::move(socket);
  return {};
}

Result<std::vector<NamedSocket>> Port::listen() noexcept {
  assert(!held_.empty());
  std::vector<NamedSocket> all;
  if (const Status s = no_throw([&] { all.reserve(held_.size()); }); !s) return s.error();
  for (NamedSocket& held : held_) {
    NamedSocket own{held.at.of_port(), {}};  // of those who share, beside the part of each
    NamedSocket& named = shared_ ? own : held;
    if (const Status s = renew(named); !s) return s.error();
    if (!named.at.is_any_ip() && ::listen(named.socket.get(), kBacklog) != 0) {
      return errc_from_errno(errno);
    }
    all.push_back({named.at, std::move(named.socket)});
  }
  return all;
}

Result<ParentOnlyFd> Port::connect(const Address& from, const Address& to) noexcept {
  if (!is_of_this_host(to)) return Errc::unreachable;
  const auto held = std::find_if(held_.begin(), held_.end(),
                                 [&](const NamedSocket& h) { return h.at.ip == from.ip; });
  if (held == held_.end()) return Errc::unreachable;
  if (const Status s = renew(*held); !s) return s.error();
  if (const Status s = connect_to(held->socket.get(), {space_, to.of_port()}); !s) {
    return s.error();
  }
  ParentOnlyFd connected = std::move(held->socket);
  if (const Status s = require_rightful(connected.get(), to); !s) return s.error();
  return connected;
}

Result<ParentOnlyFd> connect_to_name(const PortName& name) noexcept {
  ParentOnlyFd fd(move_high(open_socket()));
  if (!fd) return errc_from_errno(errno);
  if (const Status s = connect_to(fd.get(), name); !s) return s.error();
  if (const Status s = require_rightful(fd.get(), name.address); !s) return s.error();
  return fd;
}

bool is_root_or_us(int fd) noexcept {
  const auto owner = nic::peer_credentials(fd);
  if (!owner.ok()) return false;
  const nic::Credentials& who = owner.value();
  return who.uid == 0 || nic::Identity::read_user().same_user(who.pid, who.uid);
}

bool is_of_this_host(const Address& a) noexcept {
  return is_gid(a) || link::udp::is_of_this_host(a);
}

Result<Address> connected_from(int fd, PortSpace space) noexcept {
  sockaddr_un sa{};
  socklen_t len = sizeof sa;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&sa), &len) != 0) return Errc::addr_not_avail;
  if (len <= offsetof(sockaddr_un, sun_path)) return Errc::no_entry;
  const auto name = PortName::parse(sa, len);
  if (!name || name->space != space) return Errc::addr_not_avail;
  const Address from = name->address.of_port();
  if (from.port == 0 || from.is_any_ip() || !is_of_this_host(from)) return Errc::addr_not_avail;
  return from;
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

}  // namespace aperture::cm
