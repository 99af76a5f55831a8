// How a port is called: an abstract name of unix sockets, "aperture/rdma_cm/tcp/127.0.0.1:7471".
//
// The kernel gives a name to one socket at a time within a network namespace, as it does a TCP
// port, so that whoever has the name has the port, and nobody else can be met there. A name that a
// peer has chosen is hostile: parse() takes what to_sockaddr() writes, and nothing else. Values;
// any thread.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <optional>

#include "base/address.hpp"

namespace aperture::cm {

// Those of rdma_create_id(3). They do not meet, nor does any of them meet a port of TCP or of UDP.
enum class PortSpace : uint8_t { tcp, udp, ipoib, ib };

struct PortName {
  PortSpace space = PortSpace::tcp;
  // index 0: the port; 1 and more: a part of it, held by one of those that share it
  Address address;

  bool operator==(const PortName&) const = default;

  // As bind() and connect() want it; returns its length.
  socklen_t to_sockaddr(sockaddr_un& out) const noexcept;
  // Nothing: it is no name of a port.
  static std::optional<PortName> parse(const sockaddr_un& name, socklen_t len) noexcept;
};

}  // namespace aperture::cm
