// Bytes that the tests of the rooms above send and look at, and how much of it under
// ThreadSanitizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace aperture::link::test {

#if defined(__SANITIZE_THREAD__)
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

// Bytes that say where they belong.
inline std::vector<std::byte> pattern(size_t n, unsigned seed) {
  std::vector<std::byte> out(n);
  for (size_t i = 0; i < n; ++i) {
    out[i] = static_cast<std::byte>((i * 131 + (i >> 8) * 29 + seed * 17 + 1) & 0xff);
  }
  return out;
}

// Of whole words.
inline uint64_t digest(const std::byte* data, size_t n) {
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i + 8 <= n; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    h = (h ^ word) * 1099511628211u;
  }
  return h;
}

}  // namespace aperture::link::test
