// The names that this provider answers under: its own, and with APERTURE_AS another one beside it,
// for programs that accept the names of other providers only. man 7 fi_provider. Any thread.
//
// libfabric knows a provider by the name that it registers, and of two with one name asks the one
// with the higher version. "core;ofi_util" names a utility provider over a core one: ofi_util is
// what is registered, and libfabric itself puts "core;" before it in what it hands out.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace aperture::provider {

struct Name {
  std::string whole;       // "aperture", "tcp", "verbs;ofi_rxm"
  std::string registered;  // with libfabric: "aperture", "tcp", "ofi_rxm"
  std::string core;        // "verbs" where the name is layered, else empty
  uint32_t version = 0;    // of the provider under this name

  // What hints->fabric_attr->prov_name asks for is this: the whole name, or one of its layers.
  bool is_meant_by(const char* prov_name) const noexcept;
};

// Both end the process where there is no memory for so few letters.
const Name& own_name() noexcept;

// What APERTURE_AS has; nullptr where it is not set, or no name of a provider.
const Name* other_name() noexcept;

}  // namespace aperture::provider
