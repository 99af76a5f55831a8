// Raw keys: what fi_mr_raw_attr, fi_mr_map_raw and fi_mr_unmap_key do. man 3 fi_mr, "FI_MR_RAW".
//
// In a domain with FI_MR_RAW the key of a region is 16 bytes: what the key table finds it by, and a
// secret that its owner asks for besides. A peer maps them to a handle, which is all that
// operations take there. Without the bit a raw key is the 8 bytes of the key, which can be used as
// they are; mapping one is counted, since "all mapped keys must be freed before the corresponding
// domain is closed". Guarded by the engine's lock.
#pragma once

#include <rdma/fi_domain.h>

#include <unordered_map>

#include "qp/raw_keys.hpp"

namespace aperture::provider {

struct Domain;
struct Region;

struct MappedKeys {
  qp::RawKeys raw;                              // of a domain with FI_MR_RAW
  std::unordered_map<uint64_t, size_t> counts;  // of one without: how often each is mapped
  size_t count() const noexcept;
};

// 0 or a negative fi_errno, with its sentence in the log.
int raw_attr_of(const Region& region, const struct fi_mr_raw_attr* attr);
int map_raw_key(Domain& domain, const struct fi_mr_map_raw* map);
int unmap_key(Domain& domain, const uint64_t* key);

}  // namespace aperture::provider
