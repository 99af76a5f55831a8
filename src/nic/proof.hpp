// Making and validating the proofs of first contact (wire/proof.hpp). No state; any thread.
#pragma once

#include <span>

#include "base/secret.hpp"
#include "wire/proof.hpp"

namespace aperture::nic {

// What an endpoint with that authorization key says; zeros for one without (null).
// beside: what else it is about, a packet at most; nothing where nobody stands between both sides.
wire::Proof prove(const Secret* key, const wire::Statement& statement, wire::Who who,
                  std::span<const std::byte> beside = {}) noexcept;
// Which key it is that a hello with that nonce speaks for; zeros without one.
wire::KeyTag tag_of(const Secret* key, const wire::Id128& nonce) noexcept;
// Whoever said that holds the same key as we, or none as we; takes the same time wherever it is
// wrong.
bool proves(const wire::Proof& said, const Secret* key, const wire::Statement& statement,
            wire::Who who, std::span<const std::byte> beside = {}) noexcept;

}  // namespace aperture::nic
