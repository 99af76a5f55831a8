// Raw keys: see raw_keys.hpp.
#include "provider/raw_keys.hpp"

#include <cassert>
#include <cinttypes>
#include <cstring>

#include "provider/errors.hpp"
#include "provider/mr.hpp"
#include "provider/offer.hpp"
#include "wire/request.hpp"

namespace aperture::provider {

namespace {

struct RawKey {
  uint64_t key;
  uint64_t secret;
};
static_assert(sizeof(RawKey) == kRawKeyBytes);

}  // namespace

size_t MappedKeys::count() const noexcept {
  size_t n = raw.count();
  for (const auto& [key, times] : counts) n += times;
  return n;
}

int raw_attr_of(const Region& region, const struct fi_mr_raw_attr* attr) {
  if (attr == nullptr || attr->key_size == nullptr)
    return refuse(-FI_EINVAL,
                  "fi_mr_raw_attr: key_size is NULL; pass the size of the buffer for the key");
  if (attr->flags != 0)
    return refuse(-FI_EBADFLAGS, "fi_mr_raw_attr: flags must be 0; 0x%" PRIx64 " was given",
                  attr->flags);
  const RawKey raw{region.handle.key, region.secret};
  const size_t needed = region.secret != 0 ? kRawKeyBytes : kKeyBytes;
  const size_t room = *attr->key_size;
  *attr->key_size = needed;  // also when the buffer is too small, as the page says
  if (room < needed || attr->raw_key == nullptr)
    return refuse(-FI_ETOOSMALL,
                  "fi_mr_raw_attr: the key needs %zu bytes and the buffer has %zu; see mr_key_size",
                  needed, attr->raw_key != nullptr ? room : 0);
  std::memcpy(attr->raw_key, &raw, needed);
  if (attr->base_addr != nullptr) *attr->base_addr = region.base;
  return 0;
}

int map_raw_key(Domain& domain, const struct fi_mr_map_raw* map) {
  if (map == nullptr || map->raw_key == nullptr || map->key == nullptr)
    return refuse(-FI_EINVAL, "fi_mr_map_raw: raw_key or key is NULL");
  if (map->flags != 0)
    return refuse(-FI_EBADFLAGS, "fi_mr_map_raw: flags must be 0; 0x%" PRIx64 " was given",
                  map->flags);
  const bool is_raw = domain.region_rules.raw_keys;
  if (map->key_size != kKeyBytes && !(is_raw && map->key_size == kRawKeyBytes))
    return refuse(
        -FI_EINVAL,
        "fi_mr_map_raw: a key of %zu bytes; keys have %zu, and %zu where both domains were opened "
        "with FI_MR_RAW",
        map->key_size, kKeyBytes, kRawKeyBytes);
  RawKey raw{};
  std::memcpy(&raw, map->raw_key, map->key_size);
  const nic::EngineGuard guard(*domain.engine);
  if (!is_raw) {
    ++domain.mapped_keys.counts[raw.key];
    *map->key = raw.key;
    return 0;
  }
  const uint8_t flags = map->key_size == kRawKeyBytes ? wire::kRaw : 0;
  const auto handle = domain.mapped_keys.raw.map({raw.key, raw.secret, flags});
  if (!handle) return fi_code(handle.error());
  assert(domain.mapped_keys.counts.empty());
  *map->key = handle.value();
  return 0;
}

int unmap_key(Domain& domain, const uint64_t* key) {
  if (key == nullptr) return -FI_EINVAL;
  const nic::EngineGuard guard(*domain.engine);
  MappedKeys& mapped = domain.mapped_keys;
  const auto it = mapped.counts.find(*key);
  if (it != mapped.counts.end()) {
    assert(it->second != 0 && !domain.region_rules.raw_keys);
    if (--it->second == 0) mapped.counts.erase(it);
    return 0;
  }
  if (mapped.raw.unmap(*key)) return 0;
  return refuse(-FI_EINVAL,
                "fi_mr_unmap_key: 0x%" PRIx64
                " is not mapped in this domain; pass what fi_mr_map_raw returned, once",
                *key);
}

}  // namespace aperture::provider
