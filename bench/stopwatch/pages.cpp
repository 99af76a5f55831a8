// Page-aligned memory and the patterns that prove a transfer.
#include "stopwatch/pages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

// SplitMix64's finaliser: neighbouring words share nothing.
uint64_t word_at(uint64_t index, uint64_t seed) noexcept {
  uint64_t z = seed * 0x9e3779b97f4a7c15u + index + 1;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

Pages::Pages(size_t size_bytes, Kind kind) : size_(size_bytes) {
  const int flags = MAP_ANONYMOUS | (kind == Kind::shared ? MAP_SHARED : MAP_PRIVATE);
  void* at = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (at == MAP_FAILED) throw Failure("no memory for a buffer of %zu bytes", size_bytes);
  data_ = static_cast<std::byte*>(at);
  std::memset(data_, 0, size_bytes);
}

Pages::~Pages() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void fill_pattern(std::byte* at, size_t len_bytes, unsigned long seed) noexcept {
  for (size_t i = 0; i < len_bytes; i += sizeof(uint64_t)) {
    const uint64_t word = word_at(i, seed);
    std::memcpy(at + i, &word, std::min(sizeof word, len_bytes - i));
  }
}

size_t first_mismatch(const std::byte* at, size_t len_bytes, unsigned long seed) noexcept {
  for (size_t i = 0; i < len_bytes; i += sizeof(uint64_t)) {
    const uint64_t word = word_at(i, seed);
    if (std::memcmp(at + i, &word, std::min(sizeof word, len_bytes - i)) != 0) return i;
  }
  return len_bytes;
}

void expect_pattern(const std::byte* at, size_t len_bytes, unsigned long seed) {
  const size_t wrong = first_mismatch(at, len_bytes, seed);
  if (wrong != len_bytes) throw Failure("wrong data at byte %zu of %zu", wrong, len_bytes);
}

}  // namespace aperture::bench
