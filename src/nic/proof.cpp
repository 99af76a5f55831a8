// Proofs: see proof.hpp.
#include "nic/proof.hpp"

#include <algorithm>
#include <span>
#include <type_traits>

namespace aperture::nic {

static_assert(std::is_same_v<wire::Proof, KeyedHash>);

wire::Proof prove(const Secret* key, const wire::Statement& statement, wire::Who who) noexcept {
  if (key == nullptr) return {};
  return key->hash(wire::encode(statement, who));
}

wire::KeyTag tag_of(const Secret* key, const wire::Id128& nonce) noexcept {
  wire::KeyTag tag{};
  if (key == nullptr) return tag;
  // shorter than any statement, so that neither can be taken for the other
  const KeyedHash hash = key->hash(std::as_bytes(std::span(nonce)));
  std::copy_n(hash.begin(), tag.size(), tag.begin());
  return tag;
}

bool proves(const wire::Proof& said, const Secret* key, const wire::Statement& statement,
            wire::Who who) noexcept {
  return equal_in_constant_time(said, prove(key, statement, who));
}

}  // namespace aperture::nic
