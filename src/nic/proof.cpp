// Proofs: see proof.hpp.
#include "nic/proof.hpp"

#include <type_traits>

namespace aperture::nic {

static_assert(std::is_same_v<wire::Proof, KeyedHash>);

wire::Proof prove(const Secret* key, const wire::Statement& statement, wire::Who who) noexcept {
  if (key == nullptr) return {};
  return key->hash(wire::encode(statement, who));
}

bool proves(const wire::Proof& said, const Secret* key, const wire::Statement& statement,
            wire::Who who) noexcept {
  return equal_in_constant_time(said, prove(key, statement, who));
}

}  // namespace aperture::nic
