// Random keys: never the parent's in a child, never again after a restart, all bits alive.
#include "base/random.hpp"

#include <set>
#include <thread>

#include "base/fork.hpp"
#include "base/forked.hpp"

namespace aperture {
namespace {

std::vector<uint64_t> from_child(int n) {
  return test::drawn_in_child<uint64_t>(n, [](uint64_t& v) {
    v = random_u64();
    return true;
  });
}

TEST(Random, forked_child_does_not_repeat_its_parent_or_its_siblings) {
  (void)random_u64();  // the buffer is full when the children inherit it
  std::set<uint64_t> seen;
  size_t drawn = 0;
  for (int round = 0; round < 5; ++round) {
    for (const uint64_t v : from_child(200)) {
      seen.insert(v);
      ++drawn;
    }
  }
  for (int i = 0; i < 1000; ++i, ++drawn) seen.insert(random_u64());
  EXPECT_EQ(drawn, 2000u);
  EXPECT_EQ(seen.size(), drawn);
}

TEST(Random, threads_do_not_share_values) {
  std::vector<std::vector<uint64_t>> drawn(4);
  std::vector<std::thread> threads;
  for (auto& mine : drawn) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < 5000; ++i) mine.push_back(random_u64());
    });
  }
  for (auto& t : threads) t.join();
  std::set<uint64_t> seen;
  for (const auto& mine : drawn) seen.insert(mine.begin(), mine.end());
  EXPECT_EQ(seen.size(), 20000u);
}

TEST(Random, every_bit_is_set_about_half_of_the_time) {
  constexpr int kDraws = 20000;
  int ones[64] = {};
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t v = random_u64();
    for (int b = 0; b < 64; ++b) ones[b] += static_cast<int>(v >> b & 1);
  }
  // 8 standard deviations
  for (const int n : ones) EXPECT_NEAR(n, kDraws / 2, 566);
}

TEST(Random, any_length_is_filled) {
  for (const size_t len : {0u, 1u, 7u, 4095u, 4096u, 4097u, 20000u}) {
    std::vector<unsigned char> bytes(len + 16, 0);
    random_bytes(bytes.data(), len);
    for (size_t i = len; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], 0);
    if (len >= 64) {
      EXPECT_NE(std::set<unsigned char>(bytes.begin(), bytes.begin() + 64).size(), 1u);
    }
  }
}

TEST(ProcessEpoch, is_constant_here_and_another_in_a_child) {
  const uint64_t mine = process_epoch();
  EXPECT_NE(mine, 0u);
  EXPECT_EQ(process_epoch(), mine);
  uint64_t in_thread = 0;
  std::thread([&] { in_thread = process_epoch(); }).join();
  EXPECT_EQ(in_thread, mine);
  EXPECT_TRUE(test::holds_in_child([mine] {
    const uint64_t theirs = process_epoch();
    return theirs != mine && theirs != 0 && theirs == process_epoch();
  }));
  EXPECT_EQ(process_epoch(), mine);
}

}  // namespace
}  // namespace aperture
