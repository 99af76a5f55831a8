// Address conversions: see address.hpp.
#include "base/address.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace aperture {

namespace {
constexpr std::array<uint8_t, 12> kV4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
}

bool Address::is_v4() const noexcept {
  return std::equal(kV4Prefix.begin(), kV4Prefix.end(), ip.begin());
}

bool Address::is_any_ip() const noexcept {
  const auto* from = is_v4() ? ip.begin() + 12 : ip.begin();
  return std::all_of(from, ip.end(), [](uint8_t b) { return b == 0; });
}

Address Address::v4(uint32_t host_order_ip, uint16_t port) noexcept {
  Address a;
  std::copy(kV4Prefix.begin(), kV4Prefix.end(), a.ip.begin());
  const uint32_t net = htonl(host_order_ip);
  std::memcpy(a.ip.data() + 12, &net, 4);
  a.port = port;
  return a;
}

Result<Address> Address::from_sockaddr(const void* addr, size_t len_bytes) noexcept {
  sa_family_t family;
  if (addr == nullptr || len_bytes < sizeof family) return Errc::invalid;
  std::memcpy(&family, addr, sizeof family);
  if (family == AF_INET && len_bytes >= sizeof(sockaddr_in)) {
    sockaddr_in in;
    std::memcpy(&in, addr, sizeof in);
    return v4(ntohl(in.sin_addr.s_addr), ntohs(in.sin_port));
  }
  if (family == AF_INET6 && len_bytes >= sizeof(sockaddr_in6)) {
    sockaddr_in6 in6;
    std::memcpy(&in6, addr, sizeof in6);
    Address a;
    std::memcpy(a.ip.data(), &in6.sin6_addr, 16);
    a.port = ntohs(in6.sin6_port);
    return a;
  }
  return Errc::invalid;
}

socklen_t Address::to_sockaddr(sockaddr_storage& out) const noexcept {
  std::memset(&out, 0, sizeof out);
  if (is_v4()) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, ip.data() + 12, 4);
    std::memcpy(&out, &in, sizeof in);
    return sizeof in;
  }
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(port);
  std::memcpy(&in6.sin6_addr, ip.data(), 16);
  std::memcpy(&out, &in6, sizeof in6);
  return sizeof in6;
}

AddressText Address::print() const noexcept {
  char host[INET6_ADDRSTRLEN] = "?";
  char shared[8] = "";
  if (index != 0) std::snprintf(shared, sizeof shared, "/%u", unsigned{index});
  AddressText text;
  const void* bytes = is_v4() ? ip.data() + 12 : ip.data();
  ::inet_ntop(is_v4() ? AF_INET : AF_INET6, bytes, host, sizeof host);
  std::snprintf(text.chars, sizeof text.chars, is_v4() ? "%s:%u%s" : "[%s]:%u%s", host,
                unsigned{port}, shared);
  return text;
}

size_t AddressHash::operator()(const Address& a) const noexcept {
  uint64_t lo, hi;
  std::memcpy(&lo, a.ip.data(), 8);
  std::memcpy(&hi, a.ip.data() + 8, 8);
  const uint64_t place = uint64_t{a.index} << 16 | a.port;
  uint64_t h = (lo ^ (hi * 0x9e3779b97f4a7c15u)) + place * 0xff51afd7ed558ccdu;
  h ^= h >> 32;
  h *= 0xc4ceb9fe1a85ec53u;
  return h ^ h >> 32;  // the low bits are what tables use: every byte of the host reaches them
}

}  // namespace aperture
