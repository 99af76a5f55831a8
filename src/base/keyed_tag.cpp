// Keyed tags by libsodium: see keyed_tag.hpp.
#include "base/keyed_tag.hpp"

#include <sodium.h>

namespace aperture {

static_assert(sizeof(TagKey) == crypto_shorthash_KEYBYTES);
static_assert(sizeof(KeyedTag) == crypto_shorthash_BYTES);

KeyedTag keyed_tag(const TagKey& key, std::span<const std::byte> text) noexcept {
  KeyedTag tag;
  ::crypto_shorthash(reinterpret_cast<unsigned char*>(tag.data()),
                     reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                     reinterpret_cast<const unsigned char*>(key.data()));
  return tag;
}

bool equal_in_constant_time(const KeyedTag& a, const KeyedTag& b) noexcept {
  return ::sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace aperture
