// The clock of a wait.
#include "stopwatch/patience.hpp"

#include "base/clock.hpp"
#include "stopwatch/failure.hpp"

namespace aperture::bench {

namespace {

// Set before the process forks, and never again.
uint64_t patience_ns = 3'000'000'000;

}  // namespace

void set_patience(double seconds) {
  patience_ns = static_cast<uint64_t>(seconds * 1e9);
}

int patience_ms() noexcept {
  return static_cast<int>(patience_ns / 1'000'000);
}

void Patience::check() {
  const uint64_t now = now_ns();
  if (until_ns_ == 0) until_ns_ = now + patience_ns;
  if (now > until_ns_) {
    throw Failure("waited %.0f s for %s", static_cast<double>(patience_ns) * 1e-9, awaited_);
  }
}

}  // namespace aperture::bench
