// Datagrams over UDP: a socket on each address of the host, all with the same port number, and a
// socket for each group and interface.
//
// Group sockets are bound to the group's own address and port 4791 with SO_REUSEADDR, so that every
// queue pair of every process of this host that has joined gets a copy. An MGID that is no IPv4
// address has two places: a hashed IPv4 group (wire/datagram.hpp), where those send who come from
// an IPv4 address or from ::1 (Linux has no IPv6 multicast on loopback), and itself, where those
// send who come from another IPv6 address. Joining the group joins both places.
//
// Other hosts are served at those addresses that whoever opens it says, and in groups at their
// interfaces. Everywhere else only this host is: what comes from an address that is none of its own
// is dropped before it is read, and counted. Where others are served a source address is a claim:
// whoever can put packets on the way may send under any.
//
// A datagram that is longer than the way carries goes as fragments of IP, and is lost if one of
// them is. Groups have a TTL of 1: they reach the hosts of one link.
//
// All sockets hang in one epoll, so that a look at them is one system call however many they are.
// A second epoll over it, armed while the engine sleeps, is what the engine's own epoll holds:
// nobody is woken for what a polling engine finds anyway. Guarded by the engine's lock. ip(7),
// udp(7), ipv6(7).
#pragma once

#include <memory>
#include <span>

#include "base/fd.hpp"
#include "link/datagram.hpp"

namespace aperture::link::udp {

// Told of each descriptor, so that forked children need not keep them. Both may be null.
struct FdWatcher {
  uint32_t (*opened)(int fd) = nullptr;                 // what it returns is for the other one
  bool (*may_close)(int fd, uint32_t round) = nullptr;  // false: the number is not ours any more
};

class WatchedFd {
 public:
  WatchedFd() noexcept = default;
  WatchedFd(UniqueFd fd, const FdWatcher& watcher) noexcept;
  WatchedFd(WatchedFd&&) noexcept = default;
  WatchedFd& operator=(WatchedFd&&) = delete;
  ~WatchedFd();
  int get() const noexcept { return fd_.get(); }

 private:
  UniqueFd fd_;
  FdWatcher watcher_;
  uint32_t round_ = 0;
};

struct Interface {
  unsigned index = 0;
  bool is_loopback = false;
};

// A socket on one of our addresses, or of a group at one interface.
struct Socket {
  WatchedFd fd;
  Address at;  // for a group the MGID, wherever on the network that is
  Interface interface;
  bool is_group = false;
  bool is_v4 = false;
  bool serves_others = false;  // hosts
};

// Takes the port of the first of these addresses on all of them, or, where that is 0, one that is
// free on all; addresses that are not there are left out. offered: those at which other hosts are
// served. Errors: addr_in_use (that port, or none is free in many tries), addr_not_avail (no
// address is there), access_denied (a port for the privileged), no_fds, no_memory.
Result<std::unique_ptr<Datagrams>> open(std::span<const Address> ips,
                                        std::span<const Address> offered,
                                        const FdWatcher& watcher) noexcept;

// sockets.cpp
// Of IPv6, what comes from outside this host comes empty unless others are served.
// at.port 0: the kernel chooses, `port` is what it is. Errors: addr_in_use, addr_not_avail,
// no_fds, no_memory.
Result<UniqueFd> open_at(const Address& at, const Interface& interface, bool serves_others,
                         uint16_t& port) noexcept;
// at: the group's place on the network. Errors: as above.
Result<UniqueFd> open_group(const Address& at, const Interface& interface,
                            bool serves_others) noexcept;
Interface interface_of(const Address& ip) noexcept;
// Whether that is an address of this host now: of IPv4, the kernel takes no packet from elsewhere
// under one; of IPv6 it does, which is what open_at() and open_group() see to.
bool is_of_this_host(const Address& ip) noexcept;

}  // namespace aperture::link::udp
