// The IP addresses of this host's interfaces, as getifaddrs(3) tells them. No state; any thread.
#pragma once

#include <ifaddrs.h>

#include <memory>

#include "base/address.hpp"

namespace aperture {

// Calls visit(const ifaddrs&, const Address&), with port 0, for each IPv4 and IPv6 address until it
// returns true. Nothing is visited where the kernel does not tell them.
template <typename Visit>
void visit_interfaces(Visit visit) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    const bool four = i->ifa_addr->sa_family == AF_INET;
    auto a = Address::from_sockaddr(i->ifa_addr, four ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!a) continue;
    a->port = 0;
    if (visit(*i, *a)) return;
  }
}

}  // namespace aperture
