// Memory and hashing of secrets: see secret.hpp.
#include "base/secret.hpp"

#include <sodium.h>

#include <cassert>
#include <cstring>
#include <utility>

namespace aperture {

namespace {

constexpr size_t kHashKeyBytes = 32;
constexpr char kPurpose[] = "aperture: proof of an authorization key";

}  // namespace

bool equal_in_constant_time(const KeyedHash& a, const KeyedHash& b) noexcept {
  return ::sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Result<Secret> Secret::copy_of(std::span<const uint8_t> bytes) noexcept {
  if (bytes.empty()) return Errc::invalid;
  if (::sodium_init() < 0) return Errc::io;
  auto* memory = static_cast<uint8_t*>(::sodium_malloc(kHashKeyBytes + bytes.size()));
  if (memory == nullptr) return Errc::no_memory;
  std::memcpy(memory + kHashKeyBytes, bytes.data(), bytes.size());
  // a key may have any length, that of the hash is fixed; the purpose keeps the two apart from
  // whatever else an application hashes its key for
  ::crypto_generichash(memory, kHashKeyBytes, memory + kHashKeyBytes, bytes.size(),
                       reinterpret_cast<const unsigned char*>(kPurpose), sizeof kPurpose - 1);
  ::sodium_mprotect_readonly(memory);
  return Secret(memory, bytes.size());
}

Secret::Secret(Secret&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Secret& Secret::operator=(Secret&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(size_, other.size_);
  return *this;
}

Secret::~Secret() {
  ::sodium_free(memory_);  // wipes
}

std::span<const uint8_t> Secret::bytes() const noexcept {
  assert(memory_ != nullptr && size_ != 0);
  return {memory_ + kHashKeyBytes, size_};
}

bool Secret::equals(std::span<const uint8_t> other) const noexcept {
  return other.size() == size_ &&
         ::sodium_memcmp(memory_ + kHashKeyBytes, other.data(), size_) == 0;
}

KeyedHash Secret::hash(std::span<const std::byte> text) const noexcept {
  assert(memory_ != nullptr);
  KeyedHash out;
  ::crypto_generichash(reinterpret_cast<unsigned char*>(out.data()), out.size(),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(), memory_,
                       kHashKeyBytes);
  return out;
}

}  // namespace aperture
