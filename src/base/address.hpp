// The address of an endpoint: an IP (v4 or v6), a TCP port and an index, as a small value.
//
// IPv4 is kept v4-mapped, so comparison and hashing know one form. An endpoint that has its port
// for itself has index 0; the queue pairs that share a port have 1 to 255. So do the contexts of a
// scalable endpoint, with indices above those: its receive context 0 has index 0, so that whoever
// knows the port alone reaches that. A sockaddr has no place for the index.
//
// An endpoint with several authorization keys is reached once by each: within this process alone,
// an address has the number of the key that both ends have in common. Any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "base/errc.hpp"

namespace aperture {

// An address in words, where nothing may be allocated: beside logs, mostly.
struct AddressText {
  char chars[72];
  const char* c_str() const noexcept { return chars; }
};

struct Address {
  std::array<uint8_t, 16> ip{};  // network order; ::ffff:a.b.c.d for IPv4
  uint16_t port = 0;             // host order
  uint16_t index = 0;            // which of those that share the port
  uint8_t key = 0;               // which of our keys, from 1 on; 0: the one we have, or none

  auto operator<=>(const Address&) const = default;  // NOLINT(modernize-use-nullptr): no pointer
  static constexpr size_t kContexts = 128;           // of each kind, at a port
  static constexpr uint16_t kRxContexts = 256;  // the index of receive context 0, if it had one
  static constexpr uint16_t kTxContexts = 384;  // of transmit context 0
  static constexpr uint16_t kMostIndex = 511;
  bool is_queue_pair() const noexcept { return index != 0 && index < kRxContexts; }
  // As others know it.
  Address without_key() const noexcept {
    Address a = *this;
    a.key = 0;
    return a;
  }
  // Whatever is there, without its index.
  Address of_port() const noexcept {
    Address a = *this;
    a.index = 0;
    return a;
  }
  // The receive context of that number there, less than kContexts.
  Address of_rx_context(size_t number) const noexcept {
    Address a = of_port();
    if (number != 0) a.index = static_cast<uint16_t>(kRxContexts + number);
    return a;
  }
  Address of_tx_context(size_t number) const noexcept {
    Address a = of_port();
    a.index = static_cast<uint16_t>(kTxContexts + number);
    return a;
  }
  bool is_v4() const noexcept;
  bool is_any_ip() const noexcept;

  // From a sockaddr_in or sockaddr_in6; index 0. Errors: invalid (family or length).
  static Result<Address> from_sockaddr(const void* addr, size_t len_bytes) noexcept;
  static Address v4(uint32_t host_order_ip, uint16_t port) noexcept;
  // Writes sockaddr_in for IPv4 and sockaddr_in6 otherwise; returns its length.
  socklen_t to_sockaddr(sockaddr_storage& out) const noexcept;
  // "127.0.0.1:4000" or "[::1]:4000"; "127.0.0.1:4711/3" with index 3.
  std::string text() const { return print().c_str(); }
  AddressText print() const noexcept;
};

struct AddressHash {
  size_t operator()(const Address& a) const noexcept;
};

}  // namespace aperture
