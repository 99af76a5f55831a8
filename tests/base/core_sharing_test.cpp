// When a thread that polls in vain yields: the back-off, and what a yield tells.
#include "base/core_sharing.hpp"

#include <gtest/gtest.h>

namespace aperture {
namespace {

constexpr uint64_t kFirst = CoreSharing::kFirstPatienceNs;
constexpr uint64_t kLeast = CoreSharing::kLeastPatienceNs;
constexpr uint64_t kMost = CoreSharing::kMostPatienceNs;

TEST(CoreSharing, looks_at_the_clock_once_in_so_many_polls) {
  CoreSharing sharing;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < CoreSharing::kPolls; ++i) EXPECT_FALSE(sharing.count());
    EXPECT_TRUE(sharing.count());
    (void)sharing.is_due(true, 1);
  }
}

TEST(CoreSharing, is_due_once_all_was_in_vain_for_its_patience) {
  CoreSharing sharing;
  const uint64_t begin = ticks();
  const uint64_t patience = ticks_from_ns(kFirst);
  EXPECT_FALSE(sharing.is_due(true, begin));
  EXPECT_FALSE(sharing.is_due(true, begin + patience - 1));
  EXPECT_TRUE(sharing.is_due(true, begin + patience));
}

TEST(CoreSharing, is_not_due_while_something_is_found) {
  CoreSharing sharing;
  const uint64_t begin = ticks();
  const uint64_t patience = ticks_from_ns(kFirst);
  EXPECT_FALSE(sharing.is_due(true, begin));
  EXPECT_FALSE(sharing.is_due(false, begin + patience));
  EXPECT_FALSE(sharing.is_due(true, begin + 2 * patience - 1));
  EXPECT_TRUE(sharing.is_due(true, begin + 2 * patience));
}

TEST(CoreSharing, waits_anew_after_it_has_given_the_core_away) {
  CoreSharing sharing;
  EXPECT_FALSE(sharing.is_due(true, ticks() - ticks_from_ns(kMost)));
  const uint64_t before = ticks();
  sharing.give_away();
  EXPECT_FALSE(sharing.is_due(true, before));
  EXPECT_TRUE(sharing.is_due(true, ticks() + ticks_from_ns(kMost)));
}

TEST(CoreSharing, yields_more_seldom_while_nobody_takes_the_core_and_more_often_again) {
  EXPECT_EQ(CoreSharing::next_patience_ns(kFirst, false), 2 * kFirst);
  EXPECT_EQ(CoreSharing::next_patience_ns(kMost, false), kMost);
  EXPECT_EQ(CoreSharing::next_patience_ns(kMost, true), kMost / 2);
  EXPECT_EQ(CoreSharing::next_patience_ns(kLeast, true), kLeast);
  CoreSharing sharing;
  for (int i = 0; i < 100; ++i) {
    sharing.give_away();
    EXPECT_GE(sharing.patience_ns(), kLeast);
    EXPECT_LE(sharing.patience_ns(), kMost);
  }
}

}  // namespace
}  // namespace aperture
