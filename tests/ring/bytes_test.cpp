// The byte ring by itself: contiguous pieces, freed in order, and positions that a peer invented.
#include "ring/bytes.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

namespace aperture::ring {
namespace {

constexpr uint64_t kSize = 4096;

class ByteRing : public testing::Test {
 protected:
  std::vector<std::byte> memory_ = std::vector<std::byte>(kSize);
  ByteWriter writer_{memory_.data(), kSize};
  ByteReader reader_{memory_.data(), kSize};
};

TEST_F(ByteRing, piece_never_wraps_and_begins_on_a_line) {
  for (int i = 0; i < 1000; ++i) {
    uint64_t pos = 0;
    const uint32_t len = static_cast<uint32_t>(i * 37 % 1500);
    ASSERT_TRUE(writer_.reserve(len, pos));
    EXPECT_EQ(pos % 64, 0u);
    EXPECT_LE(pos % kSize + len, kSize);
    EXPECT_EQ(writer_.at(pos), memory_.data() + pos % kSize);
    writer_.commit(pos, len);
    writer_.grant(ByteReader::after(pos, len));
  }
}

TEST_F(ByteRing, full_ring_gives_nothing_until_it_is_freed) {
  uint64_t pos = 0;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(writer_.reserve(1000, pos));
    writer_.commit(pos, 1000);
  }
  EXPECT_FALSE(writer_.reserve(1000, pos));
  EXPECT_FALSE(writer_.reserve(1, pos));
  EXPECT_EQ(writer_.free_bytes(), 0u);
  writer_.grant(1024);
  EXPECT_TRUE(writer_.reserve(1000, pos));
  EXPECT_FALSE(writer_.reserve(1025, pos));
}

TEST_F(ByteRing, live_pieces_never_overlap) {
  std::mt19937 random(1);
  std::deque<std::pair<uint64_t, uint32_t>> live;
  for (int i = 0; i < 20000; ++i) {
    const uint32_t len = static_cast<uint32_t>(random() % 1400);
    uint64_t pos = 0;
    if (writer_.reserve(len, pos)) {
      for (const auto& [at, n] : live) {
        const uint64_t a = pos % kSize;
        const uint64_t b = at % kSize;
        ASSERT_TRUE(a + len <= b || b + n <= a || len == 0 || n == 0) << i;
      }
      writer_.commit(pos, len);
      live.emplace_back(pos, len);
    } else {
      ASSERT_FALSE(live.empty());  // a piece of up to a third always fits once all is free
      writer_.grant(ByteReader::after(live.front().first, live.front().second));
      live.pop_front();
    }
  }
}

TEST_F(ByteRing, nonsense_about_what_is_free_is_ignored) {
  uint64_t pos = 0;
  ASSERT_TRUE(writer_.reserve(4000, pos));
  writer_.commit(pos, 4000);
  for (const uint64_t nonsense : {uint64_t{4097}, ~uint64_t{0}, uint64_t{1} << 63}) {
    writer_.grant(nonsense);
    EXPECT_FALSE(writer_.reserve(200, pos));
  }
  writer_.grant(100);  // odd, but possible: never more than the ring, never past its end
  if (writer_.reserve(90, pos)) {
    EXPECT_LE(pos % kSize + 90, kSize);
  }
}

TEST_F(ByteRing, view_shows_only_what_lies_in_the_ring) {
  EXPECT_EQ(reader_.view(0, kSize), memory_.data());
  EXPECT_EQ(reader_.view(kSize + 64, 10), memory_.data() + 64);
  EXPECT_EQ(reader_.view(0, kSize + 1), nullptr);
  EXPECT_EQ(reader_.view(kSize - 64, 65), nullptr);
  EXPECT_EQ(reader_.view(kSize - 1, 1), memory_.data() + kSize - 1);
  EXPECT_EQ(reader_.view(~uint64_t{0}, 2), nullptr);
  EXPECT_EQ(reader_.view(5, ~uint64_t{0}), nullptr);
  EXPECT_EQ(reader_.view(5, uint64_t{1} << 63), nullptr);
}

}  // namespace
}  // namespace aperture::ring
