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

// A variable of libfabric's, as the user has set it: unset and empty are the same.
struct Variable {
  const char* name;
  string_view text;
  Variable(const char* its_name, const char* value) noexcept
      : name(its_name), text(value != nullptr ? value : "") {}
};

template <typename Number>
Number number_of(const Variable& v, Number otherwise) noexcept {
  if (v.text.empty()) return otherwise;
  Number number = 0;
  const char* const end = v.text.data() + v.text.size();
  const auto [at, error] = std::from_chars(v.text.data(), end, number);
  if (error == std::errc() && at == end) return number;
  if (error == std::errc::result_out_of_range && at == end) {
    return std::numeric_limits<Number>::max();
  }
  APERTURE_WARN("%s=%s is no number; it is taken as not set", v.name, v.text.data());
  return otherwise;
}

// A driver is asked about its memory at each use, so there is no monitor of it.
void say_of_switch(const Variable& v) noexcept {
  if (v.text.empty()) return;
  if (v.text != "0" && v.text != "1") {
    APERTURE_WARN("%s=%s is neither 0 nor 1; it is taken as not set", v.name, v.text.data());
    return;
  }
  APERTURE_INFO(
      "%s=%s switches nothing: no registration of device memory is kept, its driver is asked at "
      "each use",
      v.name, v.text.data());
}

MonitorKind monitor_of(const Variable& v) noexcept {
  if (v.text.empty() || v.text == "userfaultfd") return MonitorKind::userfaultfd;
  if (v.text == "memhooks") return MonitorKind::memhooks;
  if (v.text != "disabled") {
    APERTURE_WARN(
        "%s=%s: there is no such monitor, so the registration cache is off; set it to userfaultfd, "
        "memhooks or disabled",
        v.name, v.text.data());
  }
  return MonitorKind::disabled;
}

constexpr const char* kMaxSize = "FI_MR_CACHE_MAX_SIZE";
constexpr const char* kMaxCount = "FI_MR_CACHE_MAX_COUNT";
constexpr const char* kMonitor = "FI_MR_CACHE_MONITOR";
constexpr const char* kCuda = "FI_MR_CUDA_CACHE_MONITOR_ENABLED";
constexpr const char* kRocr = "FI_MR_ROCR_CACHE_MONITOR_ENABLED";
constexpr const char* kZe = "FI_MR_ZE_CACHE_MONITOR_ENABLED";

}  // namespace

Settings settings_of_environment() noexcept {
  Settings s;
  s.cache.max_bytes = number_of({kMaxSize, std::getenv(kMaxSize)}, s.cache.max_bytes);
  s.cache.max_count = number_of({kMaxCount, std::getenv(kMaxCount)}, s.cache.max_count);
  s.monitor = monitor_of({kMonitor, std::getenv(kMonitor)});
  if (s.cache.max_bytes == 0 || s.cache.max_count == 0) s.monitor = MonitorKind::disabled;
  s.cache.check = setting_is("APERTURE_MR_CACHE_CHECK", "1");
  say_of_switch({kCuda, std::getenv(kCuda)});
  say_of_switch({kRocr, std::getenv(kRocr)});
  say_of_switch({kZe, std::getenv(kZe)});
  return s;
}

}  // namespace aperture::regcache
