// The list of faults that a user writes: each word with its value, and a sentence that names what
// is wrong; and the dice, which depend on nothing but the seed, a number and a count.
#include "base/fault_plan.hpp"

#include <gtest/gtest.h>

#include <set>

namespace aperture {
namespace {

FaultPlan plan_of(const std::string& text) {
  FaultPlan plan;
  EXPECT_EQ(read_fault_plan(text, plan), "") << text;
  return plan;
}
std::string fault_of(const std::string& text) {
  FaultPlan plan;
  plan.seed = 4711;
  const std::string fault = read_fault_plan(text, plan);
  EXPECT_NE(fault, "") << text;
  EXPECT_EQ(plan.seed, 4711u) << "changed by what is wrong";
  return fault;
}

TEST(FaultPlan, each_word_has_its_value) {
  const FaultPlan plan = plan_of(
      "seed=7,delay=2ms:10%, delay=50us:after:100,rnr=3s:5%,retry=0.1%,flush=after:0,"
      "death=after:10000,drop=100%,duplicate=0%,reorder=0.000001%");
  EXPECT_TRUE(plan.has_seed);
  EXPECT_EQ(plan.seed, 7u);
  ASSERT_EQ(plan.delay_count, 2u);
  EXPECT_EQ(plan.delays[0].ns, 2'000'000u);
  EXPECT_EQ(plan.delays[0].when.of_2_32, (uint64_t{1} << 32) / 10);
  EXPECT_EQ(plan.delays[1].ns, 50'000u);
  EXPECT_TRUE(plan.delays[1].when.is_once);
  EXPECT_EQ(plan.delays[1].when.after, 100u);
  EXPECT_EQ(plan.rnr_ns, 3'000'000'000u);
  EXPECT_EQ(plan.when(FaultKind::retry).of_2_32, (uint64_t{1} << 32) / 1000);
  EXPECT_TRUE(plan.when(FaultKind::flush).strikes(0, 0));
  EXPECT_FALSE(plan.when(FaultKind::flush).strikes(1, 0));
  EXPECT_TRUE(plan.when(FaultKind::death).strikes(10'000, ~0u));
  EXPECT_TRUE(plan.when(FaultKind::drop).strikes(3, ~0u));
  EXPECT_FALSE(plan.when(FaultKind::duplicate).strikes(3, 0));
  EXPECT_FALSE(plan.when(FaultKind::duplicate).is_ever());
  EXPECT_TRUE(plan.when(FaultKind::reorder).is_ever());
}

TEST(FaultPlan, what_is_not_said_never_strikes) {
  const FaultPlan plan = plan_of("rnr=5%");
  EXPECT_FALSE(plan.has_seed);
  EXPECT_EQ(plan.rnr_ns, 1'000'000'000u);
  EXPECT_TRUE(plan.is_of_lanes());
  EXPECT_FALSE(plan.is_of_datagrams());
  EXPECT_FALSE(plan.delays_any());
  EXPECT_FALSE(plan.when(FaultKind::death).is_ever());
  EXPECT_TRUE(plan_of("drop=1%").is_of_datagrams());
  EXPECT_FALSE(plan_of("drop=1%").is_of_lanes());
  EXPECT_FALSE(plan_of("seed=3").is_of_lanes());
  EXPECT_TRUE(plan_of("delay=1ms:1%").is_of_datagrams());
}

TEST(FaultPlan, an_unknown_word_is_named_and_what_was_meant) {
  EXPECT_EQ(fault_of("dely=1ms:1%"), "'dely' is no fault; 'delay' is perhaps what is meant");
  EXPECT_EQ(fault_of("corrupt=1%"),
            "'corrupt' is no fault; there are seed, delay, rnr, retry, flush, death, drop, "
            "duplicate, reorder");
  for (const char* text : {"", ",", "retry=1%,", "=1%", "retry=1%,,drop=1%"}) {
    EXPECT_NE(fault_of(text).find("an empty word"), std::string::npos) << text;
  }
}

TEST(FaultPlan, a_value_that_is_none_is_named_with_what_is_wanted) {
  EXPECT_EQ(fault_of("drop=1%,retry=5"),
            "'retry=5': retry wants when: a share, such as 5% or 0.1%, or after:100");
  EXPECT_EQ(fault_of("seed=x"), "'seed=x': seed wants a whole number, as in seed=7");
  for (const char* bad : {"retry=101%",       "retry=-1%",
                          "retry=%",          "retry=1.%",
                          "retry=1.0000001%", "retry=.5%",
                          "retry=100.1%",     "retry",
                          "retry=",           "retry=after:",
                          "retry=after:-1",   "retry=after:5%",
                          "retry=1ms:5%",     "delay=5%",
                          "delay=2:5%",       "delay=2m:5%",
                          "delay=0ms:5%",     "delay=61s:5%",
                          "delay=ms:5%",      "delay=99999999999999999999s:5%",
                          "delay=2ms:",       "rnr=2ms",
                          "rnr=:5%",          "seed=",
                          "seed=-1",          "seed=99999999999999999999"}) {
    const std::string fault = fault_of(bad);
    EXPECT_NE(fault.find("'" + std::string(bad) + "'"), std::string::npos) << fault;
  }
}

TEST(FaultPlan, a_word_is_said_once_but_for_delays) {
  EXPECT_EQ(fault_of("retry=1%,retry=2%"), "'retry' is said too often");
  EXPECT_EQ(fault_of("seed=1,seed=1"), "'seed' is said too often");
  EXPECT_EQ(plan_of("delay=1s:1%,delay=2s:1%,delay=3s:1%,delay=4s:1%").delay_count, 4u);
  EXPECT_EQ(fault_of("delay=1s:1%,delay=2s:1%,delay=3s:1%,delay=4s:1%,delay=5s:1%"),
            "'delay' is said too often");
}

TEST(FaultDice, the_same_seed_and_number_draw_the_same) {
  const FaultDice one(7, 1), same(7, 1), other_number(7, 2), other_seed(8, 1);
  std::set<uint32_t> drawn;
  for (uint64_t n = 0; n < 100; ++n) {
    for (uint32_t salt = 1; salt < 5; ++salt) {
      EXPECT_EQ(one.draw(salt, n), same.draw(salt, n));
      EXPECT_NE(one.draw(salt, n), other_number.draw(salt, n));
      EXPECT_NE(one.draw(salt, n), other_seed.draw(salt, n));
      drawn.insert(one.draw(salt, n));
    }
  }
  EXPECT_EQ(drawn.size(), 400u);
}

TEST(FaultDice, a_share_strikes_about_so_often) {
  const FaultDice dice(3, 5);
  const FaultPlan plan = plan_of("retry=10%");
  int struck = 0;
  for (uint64_t n = 0; n < 100'000; ++n) {
    if (plan.when(FaultKind::retry).strikes(n, dice.draw(1, n))) ++struck;
  }
  EXPECT_NEAR(struck, 10'000, 500);
}

}  // namespace
}  // namespace aperture
