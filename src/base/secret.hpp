// Bytes that must not leak: an application's authorization key, and the keyed hash that shows who
// holds it.
//
// They lie in pages of their own (libsodium): not in core dumps, not swapped where the limits allow
// it, between guard pages, and wiped when the object ends. They are compared in constant time;
// nothing here prints them. Immutable once made: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/errc.hpp"

namespace aperture {

using KeyedHash = std::array<std::byte, 32>;

bool equal_in_constant_time(const KeyedHash& a, const KeyedHash& b) noexcept;

class Secret {
 public:
  // A copy of the bytes. Errors: invalid (none are given), no_memory.
  static Result<Secret> copy_of(std::span<const uint8_t> bytes) noexcept;
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();

  size_t size_bytes() const noexcept { return size_; }
  // For the application whose key it is, and for nobody else.
  std::span<const uint8_t> bytes() const noexcept;
  // How long a key is is no secret; where two of one length differ is.
  bool equals(std::span<const uint8_t> other) const noexcept;
  // Of the text, under this secret: who lacks it can neither make nor predict it.
  KeyedHash hash(std::span<const std::byte> text) const noexcept;

 private:
  Secret(uint8_t* memory, size_t size) noexcept : memory_(memory), size_(size) {}

  uint8_t* memory_;  // the hashing key that is derived from the bytes, then the bytes
  size_t size_;      // of the bytes
};

}  // namespace aperture
