// A short tag of a text under a key (SipHash-2-4): who lacks the key can neither make nor predict
// it, and has one chance in 2^64 with each guess. Texts are not hidden by it.
//
// Values; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace aperture {

using TagKey = std::array<std::byte, 16>;
using KeyedTag = std::array<std::byte, 8>;

KeyedTag keyed_tag(const TagKey& key, std::span<const std::byte> text) noexcept;

bool equal_in_constant_time(const KeyedTag& a, const KeyedTag& b) noexcept;

}  // namespace aperture
