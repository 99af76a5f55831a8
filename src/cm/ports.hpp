// The sockets of connection management: a port of the TCP port space is a TCP port of that address,
// a port of the UDP port space a UDP port, so that the two spaces do not meet, and nobody but a
// port's owner answers there.
//
// All are non-blocking, CLOEXEC, moved high and closed in forked children. TCP sockets linger for
// nothing: a connection leaves no TIME_WAIT behind that would keep a port busy. No state; called by
// the control thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "nic/fork_guard.hpp"
#include "wire/cm.hpp"

namespace aperture::cm {

enum class PortSpace : uint8_t { tcp, udp };

struct PortOptions {
  bool reuse = false;     // rdma_set_option(3): a port that others hold may be shared
  bool six_only = false;  // rdma_set_option(3): of an IPv6 port, that IPv4 is not heard too
};

// A socket that has this port, port 0: any. Errors: addr_in_use, addr_not_avail, access_denied,
// no_fds, no_memory.
Result<nic::ParentOnlyFd> open_port(PortSpace space, const Address& at, const PortOptions& options,
                                    Address& bound) noexcept;
// Errors: addr_in_use.
Status listen_on(int fd) noexcept;
// Begins to connect; writable when decided. Errors: refused, unreachable, invalid.
Status connect_from(int fd, const Address& to) noexcept;
// Of an accepted or connected socket.
void make_hasty(int fd) noexcept;
Address remote_address(int fd) noexcept;
// The address from which the kernel would reach `dest`, port 0; sends nothing. Errors: unreachable.
Result<Address> source_for(const Address& dest) noexcept;

// Whether queue pairs can be addressed by it.
bool is_gid(const Address& a) noexcept;

struct Datagram {
  std::array<std::byte, wire::kMaxCmBytes + 1> bytes;
  size_t size = 0;
  Address from;
  Address to;  // port: that of the socket
  std::span<const std::byte> view() const noexcept { return {bytes.data(), size}; }
};
// Errors: again; refused (nobody has the port that we sent to); io.
Status receive_datagram(int fd, const Address& bound, Datagram& got) noexcept;
// `from` says which of our addresses it comes from. Errors: again, refused, unreachable.
Status send_datagram(int fd, std::span<const std::byte> bytes, const Address& from,
                     const Address& to) noexcept;

}  // namespace aperture::cm
