// The order statistics that rows are made of.
#include "stopwatch/samples.hpp"

#include <gtest/gtest.h>

#include "stopwatch/row.hpp"

namespace aperture::bench {
namespace {

TEST(Samples, quantiles_of_none_and_of_one) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({3}, 0.99), 3);
}

TEST(Samples, quantiles_are_the_median_and_the_tails) {
  const std::vector<double> values = {9, 1, 5, 3, 7};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 0.5), 5);
  EXPECT_EQ(quantile(values, 1), 9);
}

TEST(Samples, one_interrupted_block_does_not_move_the_headline) {
  Samples samples(32 * 20);
  for (int i = 0; i < 32 * 20; i++) samples.add(i == 100 ? 4'000'000 : 100);
  const Summary s = samples.summary(0.5);
  EXPECT_NEAR(s.typical, 50 * ns_per_tick(), 1e-6);
  EXPECT_GT(s.mean, 2 * s.typical);
  EXPECT_NEAR(s.p99, 50 * ns_per_tick(), 1e-6);
}

TEST(Samples, more_than_the_capacity_are_left_out) {
  Samples samples(2);
  for (int i = 0; i < 5; i++) samples.add(10);
  EXPECT_EQ(samples.summary(1).count, 2u);
  EXPECT_TRUE(samples.full());
}

TEST(Row, failed_row_prints_its_reason_in_both_forms) {
  Row row;
  row.measure = "send_lat";
  row.size_bytes = 8;
  row.note = "said \"no\"\n";
  EXPECT_NE(print(row, Format::text).find("failed"), std::string::npos);
  EXPECT_NE(print(row, Format::json).find("\"note\": \"said \\\"no\\\" \""), std::string::npos);
}

TEST(Row, rate_is_the_median_of_its_repetitions) {
  const Row row = rate_row(Unit::gigabytes_per_second, {1, 9, 4});
  EXPECT_TRUE(row.ok);
  EXPECT_EQ(row.value, 4);
  EXPECT_FALSE(rate_row(Unit::gigabytes_per_second, {}).ok);
}

}  // namespace
}  // namespace aperture::bench
