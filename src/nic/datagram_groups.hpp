// The multicast groups that a datagram endpoint has joined: an IP and a port each, to send to, to
// receive from, or both.
//
// Several groups may have one IP, which the socket joins with the first that receives there and
// leaves with the last. join() and leave() are called without the engine's lock; the rest is
// guarded by it.
#pragma once

#include <vector>

#include "base/address.hpp"
#include "link/datagram.hpp"
#include "nic/engine.hpp"

namespace aperture::nic {

class DatagramGroups {
 public:
  struct Membership {
    bool sends = true;
    bool receives = true;
  };

  // All outlive it. local: the interface that groups are joined at.
  DatagramGroups(Engine& engine, link::Datagrams& socket, const Address& local) noexcept
      : engine_(engine), socket_(socket), local_(local) {}
  DatagramGroups(const DatagramGroups&) = delete;
  DatagramGroups& operator=(const DatagramGroups&) = delete;

  // What SendWr::dest is for a group that was joined; never the index of an address.
  static constexpr bool is_group(uint64_t dest) noexcept { return dest >> 62 == 2; }
  // What it returns is the group's `dest` until leave(). Errors: invalid (no multicast IP),
  // addr_not_avail (the endpoint's interface has none of that family), addr_in_use, no_fds,
  // no_memory.
  Result<uint64_t> join(const Address& group, Membership as) noexcept;
  void leave(uint64_t dest) noexcept;

  // Errors: no_entry (also of a group that was left), access_denied (it was joined to receive
  // only).
  Result<Address> destination(uint64_t dest) const noexcept;
  // Whether what comes to that IP and says that port is for us.
  bool receives_at(const Address& ip, uint16_t port) const noexcept;

 private:
  struct Group {
    Address at;
    Membership as;
    bool joined = false;  // false: the place is free
  };
  bool receives_at_ip(const Address& ip) const noexcept;

  Engine& engine_;
  link::Datagrams& socket_;
  const Address& local_;
  std::vector<Group> groups_;
};

}  // namespace aperture::nic
