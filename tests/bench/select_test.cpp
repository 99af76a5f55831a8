// Patterns and CPU lists of the command lines.
#include "stopwatch/select.hpp"

#include <gtest/gtest.h>

namespace aperture::bench {
namespace {

TEST(Select, empty_list_selects_all) {
  EXPECT_TRUE(selected("", "send_lat", 8));
}

TEST(Select, a_measure_is_selected_by_name_size_or_glob) {
  EXPECT_TRUE(selected("send_lat", "send_lat", 4096));
  EXPECT_TRUE(selected("x,send_lat/8", "send_lat", 8));
  EXPECT_TRUE(selected("send_*", "send_lat", 8));
  EXPECT_TRUE(selected("*/8", "send_lat", 8));
}

TEST(Select, neighbours_are_not_selected) {
  EXPECT_FALSE(selected("send_lat/8", "send_lat", 4096));
  EXPECT_FALSE(selected("send", "send_lat", 8));
  EXPECT_FALSE(selected("tagged_lat,read_lat", "send_lat", 8));
}

TEST(Select, a_pair_of_cpus_is_two_numbers_or_none) {
  int cpus[2] = {0, 1};
  EXPECT_TRUE(parse_cpus("2,3", cpus));
  EXPECT_EQ(cpus[0], 2);
  EXPECT_EQ(cpus[1], 3);
  EXPECT_TRUE(parse_cpus("-", cpus));
  EXPECT_EQ(cpus[0], -1);
  EXPECT_FALSE(parse_cpus("1", cpus));
  EXPECT_FALSE(parse_cpus("1,2,3", cpus));
  EXPECT_FALSE(parse_cpus("-1,2", cpus));
}

}  // namespace
}  // namespace aperture::bench
