// Calibration of the tick counter against CLOCK_MONOTONIC.
#include "base/clock.hpp"

#include "base/per_process.hpp"

namespace aperture {

namespace {

double measure_ticks_per_ns() noexcept {
  constexpr uint64_t kWindowNs = 2'000'000;
  const uint64_t t0 = now_ns();
  const uint64_t c0 = ticks();
  uint64_t t1 = t0;
  while (t1 - t0 < kWindowNs) t1 = now_ns();
  const uint64_t c1 = ticks();
  const double ratio = static_cast<double>(c1 - c0) / static_cast<double>(t1 - t0);
  return ratio > 0 ? ratio : 1.0;
}

constinit FoundOnce<double> ratio;

}  // namespace

uint64_t ticks_from_ns(uint64_t ns) noexcept {
  return static_cast<uint64_t>(static_cast<double>(ns) * ratio.get(measure_ticks_per_ns));
}

}  // namespace aperture
