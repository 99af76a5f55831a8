// Printing and reading names of ports: see port_name.hpp.
#include "cm/port_name.hpp"

#include <arpa/inet.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace aperture::cm {

namespace {

constexpr std::string_view kPrefix = "aperture/rdma_cm/";
constexpr std::array<const char*, 4> kSpaces = {"tcp", "udp", "ipoib", "ib"};
constexpr size_t kNameAt = offsetof(sockaddr_un, sun_path) + 1;  // after the zero of abstract names

// Takes `what` off the front.
bool take(std::string_view& text, std::string_view what) noexcept {
  if (!text.starts_with(what)) return false;
  text.remove_prefix(what.size());
  return true;
}

template <typename Number>
bool take_number(std::string_view& text, Number& out) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take_space(std::string_view& text, PortSpace& out) noexcept {
  for (size_t i = 0; i < kSpaces.size(); ++i) {
    std::string_view rest = text;
    if (!take(rest, kSpaces[i]) || !take(rest, "/")) continue;
    text = rest;
    out = static_cast<PortSpace>(i);
    return true;
  }
  return false;
}

bool take_ip(std::string_view& text, Address& out) noexcept {
  const bool six = take(text, "[");
  const size_t length = text.find(six ? ']' : ':');
  char ip[INET6_ADDRSTRLEN] = "";
  if (length >= sizeof ip) return false;  // nor is it npos then
  std::memcpy(ip, text.data(), length);
  text.remove_prefix(length + (six ? 1 : 0));
  if (six) return ::inet_pton(AF_INET6, ip, out.ip.data()) == 1;
  in_addr four;
  if (::inet_pton(AF_INET, ip, &four) != 1) return false;
  out = Address::v4(ntohl(four.s_addr), 0);
  return true;
}

}  // namespace

socklen_t PortName::to_sockaddr(sockaddr_un& out) const noexcept {
  std::memset(&out, 0, sizeof out);
  out.sun_family = AF_UNIX;
  const int n = std::snprintf(out.sun_path + 1, sizeof out.sun_path - 1, "%s%s/%s", kPrefix.data(),
                              kSpaces[static_cast<size_t>(space)], address.print().c_str());
  return static_cast<socklen_t>(kNameAt + static_cast<size_t>(n));
}

std::optional<PortName> PortName::parse(const sockaddr_un& name, socklen_t len) noexcept {
  if (len <= kNameAt || len > sizeof name || name.sun_family != AF_UNIX || name.sun_path[0] != 0) {
    return std::nullopt;
  }
  std::string_view text(name.sun_path + 1, len - kNameAt);
  PortName found;
  if (!take(text, kPrefix) || !take_space(text, found.space) || !take_ip(text, found.address) ||
      !take(text, ":") || !take_number(text, found.address.port)) {
    return std::nullopt;
  }
  if (take(text, "/")) {
    uint8_t index = 0;
    if (!take_number(text, index)) return std::nullopt;
    found.address.index = index;
  }
  // one way to write each: what it would be called is what it is called
  sockaddr_un again;
  if (found.to_sockaddr(again) != len || std::memcmp(&again, &name, len) != 0) return std::nullopt;
  return found;
}

}  // namespace aperture::cm
