// What messages hold, and the checks of it: sequence numbers, and words of memory.
//
// The patterns that depend on a seed are in stopwatch/pages.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "stopwatch/failure.hpp"
#include "stopwatch/pages.hpp"

namespace aperture::bench {

inline constexpr size_t kSmall = 64;  // messages up to here have a buffer of their own in a stream

inline uint64_t load_word(const std::byte* at) noexcept {
  uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

inline void store_word(std::byte* at, uint64_t word) noexcept {
  std::memcpy(at, &word, sizeof word);
}

// A message carries its sequence number in its first and in its last eight bytes. Both are checked
// at every arrival, so that a stale or early completion fails the measure.
inline void stamp_ends(std::byte* at, size_t len_bytes, uint64_t sequence) noexcept {
  store_word(at, sequence);
  store_word(at + len_bytes - sizeof sequence, sequence);
}

inline void expect_stamped_ends(const std::byte* at, size_t len_bytes, uint64_t sequence) {
  const uint64_t first = load_word(at);
  if (first != sequence || load_word(at + len_bytes - sizeof sequence) != sequence) {
    throw Failure("message %lu arrived with the contents of %lu", sequence, first);
  }
}

inline void expect_length(size_t len_bytes, size_t expected) {
  if (len_bytes != expected) {
    throw Failure("%zu bytes arrived instead of %zu", len_bytes, expected);
  }
}

}  // namespace aperture::bench
