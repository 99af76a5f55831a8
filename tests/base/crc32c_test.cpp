// CRC32C has the values that RFC 3720 lists, by instruction and by table, in one go and in pieces.
#include "base/crc32c.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace aperture {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> out;
  for (const char c : text) out.push_back(static_cast<std::byte>(c));
  return out;
}

void expect_crc(const std::vector<std::byte>& bytes, uint32_t crc) {
  EXPECT_EQ(crc32c(bytes), crc);
  EXPECT_EQ(crc32c_by_table(bytes), crc);
}

TEST(Crc32c, has_the_values_of_the_rfc) {
  expect_crc({}, 0);
  expect_crc(bytes_of("123456789"), 0xe3069283);
  expect_crc(std::vector<std::byte>(32, std::byte{0}), 0x8a9136aa);
  expect_crc(std::vector<std::byte>(32, std::byte{0xff}), 0x62a8ab43);
  std::vector<std::byte> rising;
  for (unsigned i = 0; i < 32; ++i) rising.push_back(static_cast<std::byte>(i));
  expect_crc(rising, 0x46dd794e);
  std::reverse(rising.begin(), rising.end());
  expect_crc(rising, 0x113fdb5c);
}

TEST(Crc32c, is_the_same_by_table_in_pieces_and_at_any_place) {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(300);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  const std::span all(bytes);
  for (size_t from = 0; from < 9; ++from) {
    for (size_t len = 0; len < 80; ++len) {
      const auto part = all.subspan(from, len);
      const uint32_t crc = crc32c(part);
      ASSERT_EQ(crc, crc32c_by_table(part)) << from << " " << len;
      const size_t cut = len / 3;
      ASSERT_EQ(crc, crc32c(part.subspan(cut), crc32c(part.first(cut)))) << from << " " << len;
    }
  }
}

TEST(Crc32c, sees_each_bit_that_has_changed) {
  std::vector<std::byte> bytes(64, std::byte{0x5a});
  const uint32_t crc = crc32c(bytes);
  for (std::byte& each : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      each ^= std::byte{1} << bit;
      EXPECT_NE(crc32c(bytes), crc);
      each ^= std::byte{1} << bit;
    }
  }
}

}  // namespace
}  // namespace aperture
