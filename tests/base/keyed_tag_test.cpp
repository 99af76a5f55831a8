// Keyed tags are those of SipHash-2-4's authors, and depend on each bit of key and text.
#include "base/keyed_tag.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace aperture {
namespace {

TagKey rising_key() {
  TagKey key;
  for (size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i);
  return key;
}

std::vector<std::byte> rising(size_t n) {
  std::vector<std::byte> text;
  for (size_t i = 0; i < n; ++i) text.push_back(static_cast<std::byte>(i));
  return text;
}

KeyedTag tag(std::initializer_list<uint8_t> bytes) {
  KeyedTag out;
  size_t at = 0;
  for (const uint8_t each : bytes) out[at++] = std::byte{each};
  return out;
}

TEST(KeyedTag, has_the_values_of_its_authors) {
  const TagKey key = rising_key();
  EXPECT_EQ(keyed_tag(key, {}), tag({0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72}));
  EXPECT_EQ(keyed_tag(key, rising(1)), tag({0xfd, 0x67, 0xdc, 0x93, 0xc5, 0x39, 0xf8, 0x74}));
  EXPECT_EQ(keyed_tag(key, rising(15)), tag({0xe5, 0x45, 0xbe, 0x49, 0x61, 0xca, 0x29, 0xa1}));
}

TEST(KeyedTag, depends_on_each_bit_of_key_and_text) {
  std::set<KeyedTag> seen;
  TagKey key = rising_key();
  auto text = rising(40);
  seen.insert(keyed_tag(key, text));
  const auto flip_each = [&](std::span<std::byte> bytes) {
    for (std::byte& each : bytes) {
      for (int bit = 0; bit < 8; ++bit) {
        each ^= std::byte{1} << bit;
        EXPECT_TRUE(seen.insert(keyed_tag(key, text)).second);
        each ^= std::byte{1} << bit;
      }
    }
  };
  flip_each(key);
  flip_each(text);
  EXPECT_FALSE(seen.insert(keyed_tag(key, text)).second);
}

TEST(KeyedTag, is_equal_to_itself_and_to_no_neighbour) {
  const KeyedTag one = keyed_tag(rising_key(), rising(3));
  EXPECT_TRUE(equal_in_constant_time(one, one));
  for (size_t i = 0; i < one.size(); ++i) {
    KeyedTag other = one;
    other[i] ^= std::byte{1};
    EXPECT_FALSE(equal_in_constant_time(one, other));
  }
}

}  // namespace
}  // namespace aperture
