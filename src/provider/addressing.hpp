// From node, service, FI_SOURCE and the hints' addresses to source and destination of an endpoint.
// man 3 fi_getinfo ("node", "service", "FLAGS", "ADDRESSING FORMATS"). Any thread; no state.
//
// The source is a concrete local address, never the wildcard: 127.0.0.1 unless the caller or
// FI_APERTURE_IFACE (an interface or an address) says otherwise.
#pragma once

#include <rdma/fabric.h>

#include <optional>
#include <string>

#include "base/address.hpp"
#include "provider/info.hpp"

namespace aperture::provider {

struct Endpoints {
  uint32_t format = FI_SOCKADDR_IN;
  Address source;
  std::optional<Address> dest;
};

// True with `out`, or false with the reason in `why` (one sentence).
bool find_addresses(const InfoQuestion& question, Endpoints& out, std::string& why);

// One address as a host name or number and a service name or port; FI_ADDR_STR texts
// ("fi_sockaddr://10.0.0.1:5000") as node with no service. format narrows the family.
bool resolve(const char* node, const char* service, uint64_t flags, uint32_t format, Address& out,
             std::string& why);

// Bytes of one address in that format, given the family of the first; 0 if it does not fit.
size_t address_bytes(uint32_t format, const void* first) noexcept;
bool format_fits(uint32_t format, const Address& address) noexcept;

// What fi_setname, fi_getname and fi_getpeer share, fi_cm(3); each is 0 or a refusal, logged.
// An address given by the application becomes `local`; a wildcard gives its port only, since we
// never listen on one.
int take_own_address(const void* addr, size_t len, uint32_t format, Address& local) noexcept;
int check_address_room(const char* call, const void* addr, const size_t* len) noexcept;
int write_address(const Address& address, void* addr, size_t* len) noexcept;

// The source address of an endpoint that is opened with that info, or the default one. 0 or a
// refusal, logged.
int take_source(const char* call, const fi_info& info, uint32_t format, Address& local);

// Our own address when nothing is said: FI_APERTURE_IFACE or loopback.
bool default_source(uint32_t format, const std::optional<Address>& dest, Address& out,
                    std::string& why);

}  // namespace aperture::provider
