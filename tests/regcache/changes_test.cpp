// The ring by which changes reach the cache: none is lost without a word, whoever puts.
#include "regcache/changes.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace aperture::regcache {
namespace {

TEST(Changes, are_taken_in_the_order_in_which_they_were_put) {
  Changes changes;
  Change change;
  EXPECT_FALSE(changes.take(change));
  for (uint64_t round = 0; round < 5; ++round) {
    for (uint64_t i = 0; i < Changes::kRoom; ++i) changes.put({{i, round}, Change::Kind::moved});
    EXPECT_TRUE(changes.any());
    for (uint64_t i = 0; i < Changes::kRoom; ++i) {
      ASSERT_TRUE(changes.take(change));
      EXPECT_EQ(change.range.begin, i);
      EXPECT_EQ(change.range.end, round);
      EXPECT_EQ(change.kind, Change::Kind::moved);
    }
    EXPECT_FALSE(changes.take(change));
    EXPECT_FALSE(changes.any());
  }
  EXPECT_FALSE(changes.was_lost());
}

TEST(Changes, of_which_there_are_too_many_are_told_as_lost_once) {
  Changes changes;
  for (uint64_t i = 0; i < Changes::kRoom; ++i) changes.put({});
  EXPECT_FALSE(changes.was_lost());
  changes.put({});
  EXPECT_TRUE(changes.any());
  EXPECT_TRUE(changes.was_lost());
  EXPECT_FALSE(changes.was_lost());
  Change change;
  for (uint64_t i = 0; i < Changes::kRoom; ++i) EXPECT_TRUE(changes.take(change));
  changes.put({});
  EXPECT_TRUE(changes.take(change)) << "there is room again";
}

// What a thread had put and ended before the taker asks is there, or was lost.
TEST(Changes, of_several_threads_each_come_once_and_in_their_order) {
  constexpr int kThreads = 4;
  constexpr uint64_t kEach = 20'000;
  Changes changes;
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 1; i <= kEach; ++i) {
        changes.begin();
        changes.put({{t, i}, Change::Kind::unmapped});
        changes.end();
      }
      ++ended;
    });
  }
  uint64_t last[kThreads] = {};
  uint64_t taken = 0;
  bool lost = false;
  for (bool all = false; !all;) {
    all = ended == kThreads;
    if (all) {
      EXPECT_FALSE(changes.any_begun());
    }
    lost = changes.was_lost() || lost;
    for (Change change; changes.take(change); ++taken) {
      ASSERT_LT(change.range.begin, uint64_t{kThreads});
      EXPECT_GT(change.range.end, last[change.range.begin]);
      last[change.range.begin] = change.range.end;
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lost, taken != kThreads * kEach);
}

}  // namespace
}  // namespace aperture::regcache
