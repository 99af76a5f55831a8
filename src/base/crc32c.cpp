// CRC32C by instruction and by table: see crc32c.hpp.
#include "base/crc32c.hpp"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

namespace aperture {

namespace {

constexpr std::array<uint32_t, 256> make_table() noexcept {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr auto kTable = make_table();

using Crc = uint32_t (*)(std::span<const std::byte>, uint32_t) noexcept;

#if defined(__x86_64__)

[[gnu::target("sse4.2")]] uint32_t by_instruction(std::span<const std::byte> bytes,
                                                  uint32_t so_far) noexcept {
  uint64_t crc = ~so_far;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<uint32_t>(crc);
  for (; left != 0; ++at, --left) rest = _mm_crc32_u8(rest, std::to_integer<uint8_t>(*at));
  return ~rest;
}

Crc fastest() noexcept {
  return __builtin_cpu_supports("sse4.2") != 0 ? &by_instruction : &crc32c_by_table;
}

#elif defined(__aarch64__)

uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t so_far) noexcept {
  uint32_t crc = ~so_far;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
  }
  for (; left != 0; ++at, --left) {
    const auto byte = std::to_integer<uint32_t>(*at);
    asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
  }
  return ~crc;
}

Crc fastest() noexcept {
  return (::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0 ? &by_instruction : &crc32c_by_table;
}

#else

Crc fastest() noexcept {
  return &crc32c_by_table;
}

#endif

}  // namespace

uint32_t crc32c_by_table(std::span<const std::byte> bytes, uint32_t so_far) noexcept {
  uint32_t crc = ~so_far;
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTable[(crc ^ std::to_integer<uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t so_far) noexcept {
  static const Crc best = fastest();
  return best(bytes, so_far);
}

}  // namespace aperture
