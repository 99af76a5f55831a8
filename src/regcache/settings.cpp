// Reading the variables: see settings.hpp.
#include "regcache/settings.hpp"

#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "base/log.hpp"
#include "base/settings.hpp"

namespace aperture::regcache {

namespace {

using std::string_view;

// Unset and empty are the same.
string_view text_of(const char* name) noexcept {
  const char* const text = std::getenv(name);
  return text != nullptr ? text : "";
}

template <typename Number>
Number number_of(const char* name, Number otherwise) noexcept {
  const string_view text = text_of(name);
  if (text.empty()) return otherwise;
  Number number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && at == end) return number;
  if (error == std::errc::result_out_of_range && at == end) {
    return std::numeric_limits<Number>::max();
  }
  APERTURE_WARN("%s=%s is no number; it is taken as not set", name, text.data());
  return otherwise;
}

bool is_on(const char* name) noexcept {
  const string_view text = text_of(name);
  if (text == "0") return false;
  if (!text.empty() && text != "1") {
    APERTURE_WARN("%s=%s is neither 0 nor 1; it is taken as not set", name, text.data());
  }
  return true;
}

MonitorKind monitor_of_environment() noexcept {
  const string_view text = text_of("FI_MR_CACHE_MONITOR");
  if (text.empty() || text == "userfaultfd") return MonitorKind::userfaultfd;
  if (text == "memhooks") return MonitorKind::memhooks;
  if (text != "disabled") {
    APERTURE_WARN(
        "FI_MR_CACHE_MONITOR=%s: there is no such monitor, so the registration cache is off; set "
        "it to userfaultfd, memhooks or disabled",
        text.data());
  }
  return MonitorKind::disabled;
}

}  // namespace

Settings settings_of_environment() noexcept {
  Settings s;
  s.cache.max_bytes = number_of("FI_MR_CACHE_MAX_SIZE", s.cache.max_bytes);
  s.cache.max_count = number_of("FI_MR_CACHE_MAX_COUNT", s.cache.max_count);
  s.monitor = monitor_of_environment();
  if (s.cache.max_bytes == 0 || s.cache.max_count == 0) s.monitor = MonitorKind::disabled;
  s.cache.check = setting_is("APERTURE_MR_CACHE_CHECK", "1");
  s.cuda = is_on("FI_MR_CUDA_CACHE_MONITOR_ENABLED");
  s.rocr = is_on("FI_MR_ROCR_CACHE_MONITOR_ENABLED");
  s.ze = is_on("FI_MR_ZE_CACHE_MONITOR_ENABLED");
  return s;
}

}  // namespace aperture::regcache
