// When the executing side of a stream rests.
#include "transport/pace.hpp"

#include <gtest/gtest.h>

#include "transport/tuning.hpp"

namespace aperture::transport {
namespace {

class PaceTest : public testing::Test {
 protected:
  static constexpr uint64_t kCells = 8;  // between two looks at the clock

  // The next cells, each of which takes so long. True: a rest is due.
  bool take(uint64_t ns_each) {
    position_ += kCells;
    now_ += kCells * ticks_from_ns(ns_each);
    return pace_.is_rest_due(position_, now_);
  }
  bool take_fast() { return take(kChasingNs / 2); }
  bool take_slow() { return take(kChasingNs * 4); }
  // Slow ones until a rest is due.
  int slow_ones_until_rest() {
    for (int n = 1; n <= 1000; ++n) {
      if (take_slow()) return n;
    }
    return 0;
  }

  Pace pace_;
  uint64_t position_ = 0;
  uint64_t now_ = 1;
};

TEST_F(PaceTest, requests_that_come_fast_are_taken_without_a_rest) {
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(take_fast()) << i;
}

TEST_F(PaceTest, slow_ones_bring_a_rest_once_they_were_timed_from_end_to_end) {
  EXPECT_FALSE(take_slow()) << "when the first began is not known";
  EXPECT_TRUE(take_slow());
}

TEST_F(PaceTest, the_time_between_two_looks_at_the_ring_does_not_count) {
  take_fast();
  now_ += ticks_from_ns(1'000'000);
  pace_.begin(position_);
  EXPECT_FALSE(take_slow());
}

TEST_F(PaceTest, after_a_rest_that_helped_the_next_comes_as_soon_as_they_are_slow_again) {
  take_slow();
  ASSERT_TRUE(take_slow());
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(take_fast()) << i;
  EXPECT_TRUE(take_slow());
}

TEST_F(PaceTest, rests_that_change_nothing_are_put_off_longer_each_time_up_to_a_bound) {
  take_slow();
  ASSERT_TRUE(take_slow());
  int before = 0;
  for (int rest = 0; rest < 6; ++rest) {
    const int n = slow_ones_until_rest();
    EXPECT_GT(n, before) << rest;
    before = n;
  }
  EXPECT_EQ(slow_ones_until_rest(), before);
  EXPECT_LE(before, 70);
  for (int i = 0; i < 4; ++i) take_fast();  // one that helps
  EXPECT_LT(slow_ones_until_rest(), 4);
}

TEST_F(PaceTest, a_few_cells_are_not_worth_a_look_at_the_clock) {
  take_slow();
  for (uint64_t more = 1; more < kCells; ++more) EXPECT_FALSE(pace_.wants_rest(position_ + more));
  EXPECT_TRUE(take_slow()) << "what was taken meanwhile is of the same group";
}

TEST_F(PaceTest, a_rest_lasts_as_long_as_it_says_and_is_in_no_figure) {
  uint64_t now = ticks();
  pace_.is_rest_due(kCells, now);
  ASSERT_TRUE(pace_.is_rest_due(2 * kCells, now += ticks_from_ns(1'000'000)));
  pace_.rest();
  EXPECT_GE(ticks() - now, ticks_from_ns(kRestNs));
  EXPECT_FALSE(pace_.is_rest_due(3 * kCells, ticks()));
}

}  // namespace
}  // namespace aperture::transport
