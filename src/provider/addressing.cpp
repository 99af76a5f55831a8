// Source and destination addresses: see addressing.hpp.
#include "provider/addressing.hpp"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/fd.hpp"
#include "base/interfaces.hpp"
#include "base/log.hpp"
#include "base/settings.hpp"
#include "nic/host_identity.hpp"

namespace aperture::provider {

namespace {

constexpr const char* kIfaceVariable = "FI_APERTURE_IFACE";

int family_of(uint32_t format) noexcept {
  if (format == FI_SOCKADDR_IN) return AF_INET;
  if (format == FI_SOCKADDR_IN6) return AF_INET6;
  return AF_UNSPEC;
}

const char* family_name(uint32_t format) noexcept {
  return format == FI_SOCKADDR_IN6 ? "IPv6" : format == FI_SOCKADDR_IN ? "IPv4" : "IP";
}

Address loopback(uint32_t format) noexcept {
  if (format != FI_SOCKADDR_IN6) return Address::v4(INADDR_LOOPBACK, 0);
  Address six;
  six.ip[15] = 1;
  return six;
}

// Whether this host has that address: the kernel says so by letting us bind to it.
bool is_local(const Address& address) noexcept {
  Address any_port = address;
  any_port.port = 0;
  sockaddr_storage sa;
  const socklen_t len = any_port.to_sockaddr(sa);
  UniqueFd probe(::socket(sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return probe && ::bind(probe.get(), reinterpret_cast<sockaddr*>(&sa), len) == 0;
}

// The address from which the kernel would reach `dest`; connecting a UDP socket sends nothing.
bool route_source(const Address& dest, Address& out) noexcept {
  sockaddr_storage sa;
  socklen_t len = dest.to_sockaddr(sa);
  UniqueFd probe(::socket(sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), reinterpret_cast<sockaddr*>(&sa), len) != 0) return false;
  len = sizeof sa;
  if (::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&sa), &len) != 0) return false;
  Result<Address> found = Address::from_sockaddr(&sa, len);
  if (!found) return false;
  out = *found;
  out.port = 0;
  return true;
}

bool parse_number(const char* text, Address& out) noexcept {
  in_addr four;
  if (::inet_pton(AF_INET, text, &four) == 1) {
    out = Address::v4(ntohl(four.s_addr), 0);
    return true;
  }
  in6_addr six;
  if (::inet_pton(AF_INET6, text, &six) != 1) return false;
  out = Address{};
  std::memcpy(out.ip.data(), &six, 16);
  return true;
}

// The first address of that interface which fits the format, IPv4 before IPv6.
bool interface_address(const char* name, uint32_t format, Address& out) {
  bool found = false;
  visit_interfaces([&](const ifaddrs& interface, const Address& a) {
    if (std::strcmp(interface.ifa_name, name) != 0 || !format_fits(format, a)) return false;
    if (found && !a.is_v4()) return false;
    out = a;
    found = true;
    return a.is_v4();
  });
  return found;
}

// "fi_sockaddr_in://host:port" and its relatives; fi_getinfo(3), FI_ADDR_STR.
bool split_address_text(const std::string& text, std::string& host, std::string& port,
                        uint32_t& format) {
  const size_t mark = text.find("://");
  if (text.rfind("fi_sockaddr", 0) != 0 || mark == std::string::npos) return false;
  const std::string scheme = text.substr(0, mark);
  std::string rest = text.substr(mark + 3);
  rest = rest.substr(0, rest.find('?'));
  if (scheme == "fi_sockaddr_in") format = FI_SOCKADDR_IN;
  if (scheme == "fi_sockaddr_in6") format = FI_SOCKADDR_IN6;
  size_t colon = rest.rfind(':');
  if (!rest.empty() && rest[0] == '[') {
    const size_t close = rest.find(']');
    if (close == std::string::npos) return false;
    host = rest.substr(1, close - 1);
    colon = rest.find(':', close);
  } else {
    host = rest.substr(0, colon);
  }
  port = colon == std::string::npos ? std::string() : rest.substr(colon + 1);
  return !host.empty();
}

// An address given in the hints, which must be a sockaddr of the format's family.
bool hinted(const char* what, const void* addr, size_t len, uint32_t format, Address& out,
            std::string& why) {
  Result<Address> a = Address::from_sockaddr(addr, len);
  if (!a || !format_fits(format, *a)) {
    why = std::string("hints->") + what + " is not a sockaddr of the " + family_name(format) +
          " family in " + std::to_string(len) + " bytes; give a sockaddr_in or sockaddr_in6 that" +
          " matches addr_format and its length";
    return false;
  }
  out = *a;
  return true;
}

bool find_dest(const InfoQuestion& q, uint32_t format, std::optional<Address>& dest,
               std::string& why) {
  const bool named = (q.node != nullptr || q.service != nullptr) && (q.flags & FI_SOURCE) == 0;
  Address found;
  if (named) {
    if (!resolve(q.node, q.service, q.flags, format, found, why)) return false;
    dest = found;
  } else if (q.hints != nullptr && q.hints->dest_addr != nullptr) {
    if (!hinted("dest_addr", q.hints->dest_addr, q.hints->dest_addrlen, format, found, why))
      return false;
    dest = found;
  }
  return true;
}

bool find_source(const InfoQuestion& q, uint32_t format, const std::optional<Address>& dest,
                 Address& source, std::string& why) {
  bool given = false;
  if ((q.flags & FI_SOURCE) != 0) {
    given = q.node != nullptr;
    if (given && !resolve(q.node, q.service, q.flags, format, source, why)) return false;
  } else if (q.hints != nullptr && q.hints->src_addr != nullptr) {
    given = true;
    if (!hinted("src_addr", q.hints->src_addr, q.hints->src_addrlen, format, source, why))
      return false;
  }
  if (given && !source.is_any_ip()) {
    if (is_local(source)) return true;
    why = "the source address " + source.text() + " is not one of this host's; give a local one";
    return false;
  }
  uint16_t port = source.port;  // of a wildcard address, or of a service without a node
  if (!given && (q.flags & FI_SOURCE) != 0) {
    Address service_only;
    if (!resolve(nullptr, q.service, q.flags, format, service_only, why)) return false;
    port = service_only.port;
  }
  if (!default_source(format, dest, source, why)) return false;
  source.port = port;
  return true;
}

}  // namespace

bool format_fits(uint32_t format, const Address& address) noexcept {
  if (format == FI_SOCKADDR_IN) return address.is_v4();
  if (format == FI_SOCKADDR_IN6) return !address.is_v4();
  return true;
}

int take_own_address(const void* addr, size_t len, uint32_t format, Address& local) noexcept {
  Result<Address> a = addr != nullptr ? Address::from_sockaddr(addr, len) : Errc::invalid;
  if (!a || !format_fits(format, *a))
    return refuse(-FI_EINVAL, "fi_setname: no sockaddr of the address format in use");
  if (a->is_any_ip()) {
    local.port = a->port;  // the host part keeps its default
  } else {
    local = *a;
  }
  return 0;
}

int check_address_room(const char* call, const void* addr, const size_t* len) noexcept {
  if (len != nullptr && (addr != nullptr || *len == 0)) return 0;
  return refuse(-FI_EINVAL, "%s: addr or addrlen is NULL", call);
}

int write_address(const Address& address, void* addr, size_t* len) noexcept {
  sockaddr_storage sa;
  const socklen_t size = address.to_sockaddr(sa);
  const size_t room = *len;
  if (addr != nullptr) std::memcpy(addr, &sa, std::min<size_t>(size, room));
  *len = size;
  return room < size ? -FI_ETOOSMALL : 0;
}

size_t address_bytes(uint32_t format, const void* first) noexcept {
  if (format == FI_SOCKADDR_IN) return sizeof(sockaddr_in);
  if (format == FI_SOCKADDR_IN6) return sizeof(sockaddr_in6);
  sa_family_t family;
  std::memcpy(&family, first, sizeof family);
  return family == AF_INET ? sizeof(sockaddr_in) : family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

bool resolve(const char* node, const char* service, uint64_t flags, uint32_t format, Address& out,
             std::string& why) {
  std::string host = node != nullptr ? node : "";
  std::string port = service != nullptr ? service : "";
  if (service == nullptr) split_address_text(node != nullptr ? node : "", host, port, format);
  addrinfo ask{};
  ask.ai_family = family_of(format);
  ask.ai_socktype = SOCK_STREAM;
  if ((flags & FI_NUMERICHOST) != 0) ask.ai_flags |= AI_NUMERICHOST;
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(host.empty() ? nullptr : host.c_str(),
                               port.empty() ? nullptr : port.c_str(), &ask, &list);
  if (rc != 0 || list == nullptr) {
    why = "node \"" + host + "\" service \"" + port + "\" does not resolve to an " +
          family_name(format) + " address (" + ::gai_strerror(rc) +
          "); check the name, the port and addr_format";
    return false;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  const addrinfo* best = list;
  for (const addrinfo* i = list; i != nullptr; i = i->ai_next) {
    if (i->ai_family == AF_INET) {
      best = i;
      break;
    }
  }
  Result<Address> found = Address::from_sockaddr(best->ai_addr, best->ai_addrlen);
  if (!found) {
    why = "node \"" + host + "\" resolves to something that is no IP address";
    return false;
  }
  out = *found;
  return true;
}

bool default_source(uint32_t format, const std::optional<Address>& dest, Address& out,
                    std::string& why) {
  const uint32_t wanted =
      dest && format != FI_SOCKADDR_IN && !dest->is_v4() ? uint32_t{FI_SOCKADDR_IN6} : format;
  if (const char* iface = setting_text(kIfaceVariable)) {
    if (parse_number(iface, out) ? format_fits(wanted, out) && is_local(out)
                                 : interface_address(iface, wanted, out)) {
      return true;
    }
    why.assign(kIfaceVariable).append("=").append(iface);
    why.append(" names no interface or address of this host with an ").append(family_name(wanted));
    why.append(" address; correct it or unset it");
    return false;
  }
  if (dest && !nic::is_loopback(*dest) && !dest->is_any_ip() && route_source(*dest, out))
    return true;
  out = loopback(wanted);
  return true;
}

bool find_addresses(const InfoQuestion& q, Endpoints& out, std::string& why) {
  const uint32_t asked = q.hints != nullptr ? q.hints->addr_format : uint32_t{FI_FORMAT_UNSPEC};
  if (asked != FI_FORMAT_UNSPEC && asked != FI_SOCKADDR && asked != FI_SOCKADDR_IN &&
      asked != FI_SOCKADDR_IN6) {
    why = "addr_format " + std::to_string(asked) + " is asked for; offered are FI_SOCKADDR, " +
          "FI_SOCKADDR_IN and FI_SOCKADDR_IN6 (or FI_FORMAT_UNSPEC)";
    return false;
  }
  if ((q.flags & FI_SOURCE) != 0 && q.node == nullptr && q.service == nullptr) {
    why = "FI_SOURCE is set, but neither node nor service is given; give one of them";
    return false;
  }
  if (!find_dest(q, asked, out.dest, why)) return false;
  if (!find_source(q, asked, out.dest, out.source, why)) return false;
  if (out.dest && out.dest->is_v4() != out.source.is_v4()) {
    why = "source " + out.source.text() + " and destination " + out.dest->text() +
          " are of different families; use IPv4 or IPv6 for both";
    return false;
  }
  out.format = asked == FI_SOCKADDR ? uint32_t{FI_SOCKADDR}
               : out.source.is_v4() ? uint32_t{FI_SOCKADDR_IN}
                                    : uint32_t{FI_SOCKADDR_IN6};
  return true;
}

int take_source(const char* call, const fi_info& info, uint32_t format, Address& local) {
  if (info.src_addr != nullptr) {
    const Result<Address> a = Address::from_sockaddr(info.src_addr, info.src_addrlen);
    if (!a) return refuse(-FI_EINVAL, "%s: info->src_addr is no sockaddr_in or sockaddr_in6", call);
    local = a.value();
    if (!local.is_any_ip()) return 0;
  }
  const uint16_t port = local.port;
  std::string why;
  if (!default_source(format, std::nullopt, local, why))
    return refuse(-FI_EADDRNOTAVAIL, "%s: %s", call, why.c_str());
  local.port = port;
  return 0;
}

}  // namespace aperture::provider
