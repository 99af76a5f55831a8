// In a program that is linked statically, beside the steps.
#include "regcache/memhooks_monitor.hpp"
#include "regcache/userfault_monitor.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "pinned_pages.hpp"

namespace aperture::regcache::test {
namespace {

TEST(Static, has_no_hooks_and_says_why) {
  PinnedPages pages;
  auto cache = Cache::create(pages, {});
  ASSERT_TRUE(cache);
  const char* why = "";
  EXPECT_EQ(MemhooksMonitor::create(**cache, why).error(), Errc::not_supported);
  EXPECT_NE(std::strstr(why, "linked statically"), nullptr) << why;
  why = "";
  const auto by_kernel = UserfaultMonitor::create(**cache, why);
  ASSERT_FALSE(by_kernel) << "of some changes calls alone tell";
  if (by_kernel.error() != Errc::not_supported) GTEST_SKIP() << "no kernel feature: " << why;
  EXPECT_NE(std::strstr(why, "linked statically"), nullptr) << why;
}

}  // namespace
}  // namespace aperture::regcache::test
