// libfabric's variables for registration caches, as fi_mr(3) has them.
#include "regcache/settings.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <string>

namespace aperture::regcache {
namespace {

// Lines of that level are said; the environment is asked once.
[[maybe_unused]] const int g_informed = ::setenv("APERTURE_LOG", "info", 1);

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

TEST_F(CacheSettings, monitors_of_device_memory_are_said_to_switch_nothing) {
  const auto said_of = [](const char* name, const char* value) {
    testing::internal::CaptureStderr();
    with(name, value);
    return testing::internal::GetCapturedStderr();
  };
  for (size_t i = 3; i < std::size(kNames); ++i) {
    const std::string name = kNames[i];
    for (const char* value : {"0", "1"}) {
      const std::string said = said_of(kNames[i], value);
      EXPECT_NE(said.find(name + "=" + value + " switches nothing"), std::string::npos) << said;
    }
    const std::string said = said_of(kNames[i], "off");
    EXPECT_NE(said.find(name + "=off is neither 0 nor 1"), std::string::npos) << said;
    EXPECT_EQ(said_of(kNames[i], ""), "");
  }
}

}  // namespace
}  // namespace aperture::regcache
