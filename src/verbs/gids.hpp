// The GID table of port 1: the addresses of this host, as RoCE v2 GIDs. An IPv4 address is mapped.
// The table is read once per process. Any thread. (IBTA annex A17, "RoCEv2"; ibv_query_gid(3).)
#pragma once

#include <cstdint>

#include "base/address.hpp"
#include "verbs/api.hpp"

namespace aperture::verbs {

uint32_t gid_count() noexcept;
// index is below gid_count().
ibv_gid gid_at(uint32_t index) noexcept;
// The address behind a GID, port 0.
Address address_of(const ibv_gid& gid) noexcept;

inline constexpr uint32_t kPort = 1;  // the only one
inline constexpr uint16_t kPkey = 0xffff;

}  // namespace aperture::verbs
