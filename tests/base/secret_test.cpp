// Secrets: equal only to themselves, hashing only under themselves, and nowhere a core dump looks.
#include "base/secret.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <vector>

#include "base/value_of.hpp"

namespace aperture {
namespace {

using test::value_of;

std::vector<uint8_t> some_key(size_t size, uint8_t seed = 1) {
  std::vector<uint8_t> key(size);
  for (size_t i = 0; i < size; ++i) key[i] = static_cast<uint8_t>(seed + 3 * i);
  return key;
}

// VmFlags of the mapping that holds the address; empty if there is none.
std::string flags_at(const void* address) {
  std::ifstream smaps("/proc/self/smaps");
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long from = 0;
    unsigned long to = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
      const auto at = reinterpret_cast<unsigned long>(address);
      here = at >= from && at < to;
    } else if (here && line.rfind("VmFlags:", 0) == 0) {
      return line + " ";
    }
  }
  return "";
}

TEST(Secret, is_equal_to_its_bytes_and_to_no_neighbour_of_them) {
  const auto key = some_key(37);
  auto secret = value_of(Secret::copy_of(key));
  EXPECT_EQ(secret.size_bytes(), 37u);
  EXPECT_TRUE(secret.equals(key));
  EXPECT_FALSE(secret.equals({key.data(), 36}));
  auto longer = key;
  longer.push_back(0);
  EXPECT_FALSE(secret.equals(longer));
  for (size_t i = 0; i < key.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto other = key;
      other[i] = static_cast<uint8_t>(other[i] ^ (1 << bit));
      EXPECT_FALSE(secret.equals(other)) << i;
    }
  }
}

TEST(Secret, of_any_length_can_be_had_and_of_none_cannot) {
  for (const size_t size : {1, 15, 16, 32, 64, 65, 1024, 5000}) {
    const auto key = some_key(size);
    EXPECT_TRUE(value_of(Secret::copy_of(key)).equals(key)) << size;
  }
  EXPECT_EQ(Secret::copy_of({}).error(), Errc::invalid);
}

TEST(Secret, hashes_under_itself) {
  std::set<KeyedHash> seen;
  const std::string text = "what is said";
  for (uint8_t seed = 0; seed < 50; ++seed) {
    for (const size_t size : {1, 8, 64, 100}) {
      auto a = Secret::copy_of(some_key(size, seed));
      auto b = Secret::copy_of(some_key(size, seed));
      ASSERT_TRUE(a.ok() && b.ok());
      const KeyedHash hash = a->hash(std::as_bytes(std::span(text)));
      EXPECT_TRUE(equal_in_constant_time(hash, b->hash(std::as_bytes(std::span(text)))));
      EXPECT_FALSE(equal_in_constant_time(hash, a->hash(std::as_bytes(std::span(text).first(5)))));
      EXPECT_TRUE(seen.insert(hash).second);
    }
  }
}

TEST(Secret, does_not_go_into_a_core_dump) {
  auto secret = value_of(Secret::copy_of(some_key(64)));
  EXPECT_NE(flags_at(secret.bytes().data()).find(" dd "), std::string::npos)
      << flags_at(secret.bytes().data());
}

TEST(Secret, is_gone_when_its_last_owner_is) {
  const void* at = nullptr;
  {
    const Secret moved = value_of(Secret::copy_of(some_key(64)));
    at = moved.bytes().data();
    EXPECT_TRUE(moved.equals(some_key(64)));
    EXPECT_NE(flags_at(at), "");
  }
  const std::string left = flags_at(at);  // other memory may have come to that place
  EXPECT_EQ(left.find(" dd "), std::string::npos) << left;
}

}  // namespace
}  // namespace aperture
