// Proofs: see proof.hpp.
#include "nic/proof.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <span>
#include <type_traits>

namespace aperture::nic {

static_assert(std::is_same_v<wire::Proof, KeyedHash>);

wire::Proof prove(const Secret* key, const wire::Statement& statement, wire::Who who,
                  std::span<const std::byte> beside) noexcept {
  if (key == nullptr) return {};
  std::array<std::byte, wire::kStatementBytes + wire::kMaxPeerMessageBytes> text{};
  assert(beside.size() <= wire::kMaxPeerMessageBytes);
  const auto said = wire::encode(statement, who);
  const auto end = std::copy(said.begin(), said.end(), text.begin());
  std::copy(beside.begin(), beside.end(), end);
  return key->hash(std::span(text).first(said.size() + beside.size()));
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
            wire::Who who, std::span<const std::byte> beside) noexcept {
  return equal_in_constant_time(said, prove(key, statement, who, beside));
}

}  // namespace aperture::nic
