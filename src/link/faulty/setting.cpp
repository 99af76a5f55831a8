// Reading APERTURE_FAULT: see setting.hpp.
#include "link/faulty/setting.hpp"

#include <sys/auxv.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/no_throw.hpp"
#include "base/settings.hpp"

namespace aperture::link::faulty {

namespace {

// The same in each library of one process, which may have both doors; short, since it is read from
// a line and typed again.
uint64_t drawn_seed() noexcept {
  uint64_t of_this_run = 0;
  if (const auto* const bytes = reinterpret_cast<const void*>(::getauxval(AT_RANDOM))) {
    std::memcpy(&of_this_run, bytes, sizeof of_this_run);
  }
  return FaultDice(of_this_run, 0).draw(0, 0) % 1'000'000;
}

// A plan that cannot be read was told of by whoever looks at all settings (check_settings()).
std::optional<FaultPlan> read() noexcept {
  const char* const text = setting_text("APERTURE_FAULT");
  if (text == nullptr) return std::nullopt;
  FaultPlan plan;
  const Status is_sound = no_throw(
      [&]() -> Status { return read_fault_plan(text, plan).empty() ? Errc::ok : Errc::invalid; });
  if (!is_sound) return std::nullopt;
  if (!plan.has_seed) plan.seed = drawn_seed();
  tell("faults are injected, as APERTURE_FAULT=%s says; seed=%llu draws the same ones again", text,
       static_cast<unsigned long long>(plan.seed));
  return plan;
}

}  // namespace

const FaultPlan* configured() noexcept {
  static const std::optional<FaultPlan> plan = read();
  return plan ? &*plan : nullptr;
}

void tell(const char* format, ...) noexcept {
  if (setting_is("APERTURE_LOG", "off")) return;
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log_line(LogLevel::warn, "%s", text);
}

uint64_t next_number() noexcept {
  static std::atomic<uint64_t> last{0};
  // relaxed: a number, which orders nothing
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace aperture::link::faulty
