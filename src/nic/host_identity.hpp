// What this host is called on the fabric: the node GUID of the device, and the addresses that are
// its GID table.
//
// Read once per process and then the same until it ends, in forked children too: an index into the
// table must not come to mean another address. Any thread; not before constructors have run.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/address.hpp"

namespace aperture::nic {

using NodeGuid = std::array<uint8_t, 8>;  // network order, as __be64 node_guid lies in memory

// The same for all processes of one boot and network namespace, another elsewhere; an EUI-64 that
// is locally administered and unicast, never 0.
const NodeGuid& node_guid() noexcept;

// An IPv6 address that means something on one link alone, and is none of host_addresses().
bool is_link_local(const Address& a) noexcept;

// 127.0.0.0/8 or ::1.
bool is_loopback(const Address& a) noexcept;

// The addresses of the interfaces that are up, ports 0: IPv4 of real interfaces, IPv4 of loopback,
// IPv6 that is not link-local (::1 last). What FI_APERTURE_IFACE names, an interface or an address,
// comes before all others. Never empty: 127.0.0.1 where the kernel tells nothing. By exception
// std::bad_alloc, at first use.
const std::vector<Address>& host_addresses();

constexpr int kMaxHostAddresses = 128;

// Whether the device serves other hosts at that address of ours, whatever its port: what
// FI_APERTURE_IFACE names, unless it is loopback. All others serve this host alone. Cannot
// fail once host_addresses() was asked for.
bool serves_other_hosts(const Address& ip) noexcept;

}  // namespace aperture::nic
