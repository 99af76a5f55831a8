// Sizes, seeded contents and canaries: see payload.hpp. No state but the seed of the run.
#include "doors/payload.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace aperture::doors {
namespace {

constexpr uint64_t kCanarySeed = 0xCA4A121E5ULL;

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

uint64_t word_at(uint64_t seed, size_t index) {
  return mix(seed + index * 0xD1B54A32D192ED03ULL);
}

}  // namespace

const std::vector<size_t>& all_sizes() {
  static const std::vector<size_t> sizes = [] {
    std::vector<size_t> s = {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33};
    for (size_t n = 38; n <= 66; ++n) s.push_back(n);
    for (size_t n = 96; n <= 130; n += 2) s.push_back(n);
    for (size_t n = 191; n <= 260; ++n) s.push_back(n);
    for (size_t edge : {512ul, 1024ul, 2048ul, 4096ul, 8192ul, 16384ul, 32768ul, 65536ul, 131072ul,
                        262144ul, 524288ul, kMiB, 4 * kMiB, 8 * kMiB})
      for (size_t n : {edge - 1, edge, edge + 1}) s.push_back(n);
    for (size_t n : {5000ul, 12345ul, 100000ul, 3 * kMiB + 17}) s.push_back(n);
    std::sort(s.begin(), s.end());
    s.erase(std::unique(s.begin(), s.end()), s.end());
    return s;
  }();
  return sizes;
}

const std::vector<size_t>& few_sizes() {
  static const std::vector<size_t> sizes = {
      0,    1,    8,     40,    41,    64,    192,   256,      257,         4095,
      4096, 4097, 16384, 16385, 65535, 65536, 65537, kMiB + 1, 4 * kMiB - 1};
  return sizes;
}

void fill(std::span<uint8_t> bytes, uint64_t seed) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const uint64_t w = word_at(seed, i / 8);
    std::memcpy(bytes.data() + i, &w, 8);
  }
  if (i < bytes.size()) {
    const uint64_t w = word_at(seed, i / 8);
    std::memcpy(bytes.data() + i, &w, bytes.size() - i);
  }
}

std::optional<size_t> first_difference(std::span<const uint8_t> bytes, uint64_t seed, size_t skip) {
  uint64_t w = 0;
  bool loaded = false;
  for (size_t i = 0; i < bytes.size();) {
    const size_t at = i + skip;
    if (at % 8 == 0 && i + 8 <= bytes.size()) {
      w = word_at(seed, at / 8);
      loaded = true;
      if (std::memcmp(bytes.data() + i, &w, 8) == 0) {
        i += 8;
        continue;
      }
    } else if (at % 8 == 0 || !loaded) {
      w = word_at(seed, at / 8);
      loaded = true;
    }
    uint8_t expected[8];
    std::memcpy(expected, &w, 8);
    if (bytes[i] != expected[at % 8]) return i;
    ++i;
  }
  return std::nullopt;
}

uint64_t run_seed() {
  static const uint64_t seed = [] {
    if (const char* text = std::getenv("APERTURE_SEED")) return std::strtoull(text, nullptr, 0);
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t drawn =
        mix(static_cast<uint64_t>(now.tv_nsec) ^ (static_cast<uint64_t>(now.tv_sec) << 30)) >> 32;
    // children inherit it, so that both processes of a test agree
    setenv("APERTURE_SEED", std::to_string(drawn).c_str(), 1);
    return static_cast<unsigned long long>(drawn);
  }();
  return seed;
}

uint64_t seed_of(uint64_t n) {
  return mix(run_seed() ^ mix(n));
}

Guarded::Guarded(size_t len_bytes, uint64_t seed)
    : size_(len_bytes), bytes_(len_bytes + 2 * kGuard) {
  fill({bytes_.data(), kGuard}, kCanarySeed);
  fill({bytes_.data() + kGuard + size_, kGuard}, kCanarySeed + 1);
  if (seed != 0) fill(span(), seed);
}

bool Guarded::intact() const {
  return !first_difference({bytes_.data(), kGuard}, kCanarySeed) &&
         !first_difference({bytes_.data() + kGuard + size_, kGuard}, kCanarySeed + 1);
}

}  // namespace aperture::doors
