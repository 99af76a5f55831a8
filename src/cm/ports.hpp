// The ports of connection management, and the sockets that have their names (port_name.hpp).
//
// Every id binds the name of its port. Who listens does so under it, and who connects does so from
// it, so that either side learns from the kernel which port the other one has. A wildcard is every
// address of the device. Ports below net.ipv4.ip_unprivileged_port_start want the privilege that a
// TCP port of that number wants; who connects to one sees to it that its owner can have had it.
//
// All sockets are non-blocking, CLOEXEC, moved high and closed in forked children. The control
// thread's own.
#pragma once

#include <cstddef>
#include <vector>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "base/fork_guard.hpp"
#include "cm/port_name.hpp"

namespace aperture::cm {

struct PortOptions {
  bool reuse = false;     // rdma_set_option(3): a port that others hold may be shared
  bool six_only = false;  // rdma_set_option(3): of an IPv6 port, that IPv4 is not heard too
};

// A socket under the name of that address.
struct NamedSocket {
  Address at;
  ParentOnlyFd socket;
};

class Port {
 public:
  // So many may share an address.
  static constexpr uint8_t kShares = 4;

  // Port 0: any that is free. Errors: addr_in_use, access_denied, no_fds, no_memory.
  static Result<Port> take(PortSpace space, const Address& at, const PortOptions& options) noexcept;

  const Address& bound() const noexcept { return bound_; }
  // What hears whoever connects, at each of its addresses; that of a wildcard itself is held and
  // hears nobody. Of those who share a port one may listen. Errors: addr_in_use, no_fds, no_memory.
  Result<std::vector<NamedSocket>> listen() noexcept;
  // From that address of it, within this host. Errors: refused (nobody listens there), again (too
  // many wait there), unreachable (no address of this host), addr_in_use, no_fds, no_memory.
  Result<ParentOnlyFd> connect(const Address& from, const Address& to) noexcept;

 private:
  Port(PortSpace space, const Address& bound, bool shared) noexcept
      : space_(space), bound_(bound), shared_(shared) {}
  Status hold(bool six_only) noexcept;
  Status hold_at(const Address& at) noexcept;
  // A socket under its name again, where a connection or a listener has the one before it.
  Status renew(NamedSocket& held) noexcept;

  PortSpace space_;
  Address bound_;
  bool shared_;
  std::vector<NamedSocket> held_;  // index of `at`: as in the name
};

// Who connected to such a socket, by what it has accepted. Errors: no_entry (he has no name),
// addr_not_avail (no port of that space, or not of this host).
Result<Address> connected_from(int fd, PortSpace space) noexcept;

// To that name from none, as a porter does (porter.hpp). Errors: refused (nobody listens there, or
// who does may not have that port), again, no_fds, no_memory.
Result<ParentOnlyFd> connect_to_name(const PortName& name) noexcept;

// Whether who connected, or listens, runs as root or as the same user.
bool is_root_or_us(int fd) noexcept;

bool is_of_this_host(const Address& a) noexcept;

// The address from which the kernel would reach `dest`, port 0; sends nothing. Errors: unreachable.
Result<Address> source_for(const Address& dest) noexcept;

// Whether queue pairs can be addressed by it.
bool is_gid(const Address& a) noexcept;

}  // namespace aperture::cm
