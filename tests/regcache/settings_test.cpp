// libfabric's variables for registration caches, as fi_mr(3) has them.
#include "regcache/settings.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace aperture::regcache {
namespace {

class CacheSettings : public testing::Test {
 protected:
  ~CacheSettings() override {
    for (const char* name : kNames) ::unsetenv(name);
  }
  static Settings with(const char* name, const char* value) {
    ::setenv(name, value, 1);
    const Settings settings = settings_of_environment();
    ::unsetenv(name);
    return settings;
  }
  static constexpr const char* kNames[] = {"FI_MR_CACHE_MAX_SIZE",
                                           "FI_MR_CACHE_MAX_COUNT",
                                           "FI_MR_CACHE_MONITOR",
                                           "FI_MR_CUDA_CACHE_MONITOR_ENABLED",
                                           "FI_MR_ROCR_CACHE_MONITOR_ENABLED",
                                           "FI_MR_ZE_CACHE_MONITOR_ENABLED"};
};

TEST_F(CacheSettings, not_set_are_a_cache_by_userfaultfd_without_a_limit_of_bytes) {
  const Settings s = settings_of_environment();
  EXPECT_EQ(s.cache.max_bytes, ~uint64_t{0});
  EXPECT_EQ(s.cache.max_count, 1024u);
  EXPECT_EQ(s.monitor, MonitorKind::userfaultfd);
  EXPECT_TRUE(s.cuda && s.rocr && s.ze);
}

TEST_F(CacheSettings, numbers_are_limits_and_zero_switches_the_cache_off) {
  EXPECT_EQ(with("FI_MR_CACHE_MAX_SIZE", "65536").cache.max_bytes, 65536u);
  EXPECT_EQ(with("FI_MR_CACHE_MAX_COUNT", "7").cache.max_count, 7u);
  EXPECT_EQ(with("FI_MR_CACHE_MAX_COUNT", "0").monitor, MonitorKind::disabled);
  EXPECT_EQ(with("FI_MR_CACHE_MAX_SIZE", "0").monitor, MonitorKind::disabled);
  EXPECT_EQ(with("FI_MR_CACHE_MAX_SIZE", "99999999999999999999999").cache.max_bytes, ~uint64_t{0});
}

TEST_F(CacheSettings, numbers_that_are_none_are_taken_as_not_set) {
  for (const char* value : {"", "many", "-1", "12 KB", "0x10"}) {
    EXPECT_EQ(with("FI_MR_CACHE_MAX_COUNT", value).cache.max_count, 1024u) << value;
    EXPECT_EQ(with("FI_MR_CACHE_MAX_COUNT", value).monitor, MonitorKind::userfaultfd) << value;
  }
}

TEST_F(CacheSettings, a_monitor_is_one_of_three_and_any_other_switches_the_cache_off) {
  EXPECT_EQ(with("FI_MR_CACHE_MONITOR", "userfaultfd").monitor, MonitorKind::userfaultfd);
  EXPECT_EQ(with("FI_MR_CACHE_MONITOR", "memhooks").monitor, MonitorKind::memhooks);
  EXPECT_EQ(with("FI_MR_CACHE_MONITOR", "disabled").monitor, MonitorKind::disabled);
  EXPECT_EQ(with("FI_MR_CACHE_MONITOR", "kdreg2").monitor, MonitorKind::disabled);
  EXPECT_EQ(with("FI_MR_CACHE_MONITOR", "Userfaultfd").monitor, MonitorKind::disabled);
}

TEST_F(CacheSettings, device_memory_is_kept_unless_its_monitor_is_zero) {
  EXPECT_FALSE(with("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "0").cuda);
  EXPECT_FALSE(with("FI_MR_ROCR_CACHE_MONITOR_ENABLED", "0").rocr);
  EXPECT_FALSE(with("FI_MR_ZE_CACHE_MONITOR_ENABLED", "0").ze);
  EXPECT_TRUE(with("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "1").cuda);
  EXPECT_TRUE(with("FI_MR_CUDA_CACHE_MONITOR_ENABLED", "off").cuda) << "no value that it has";
}

}  // namespace
}  // namespace aperture::regcache
