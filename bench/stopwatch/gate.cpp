// Arriving and waiting, asleep: who waits takes no core from those who still come.
#include "stopwatch/gate.hpp"

#include <unistd.h>

#include "base/clock.hpp"
#include "stopwatch/failure.hpp"
#include "stopwatch/patience.hpp"

namespace aperture::bench {

namespace {

constexpr unsigned kLookEvery_us = 200;
constexpr uint64_t kOperations = 4;  // to come here takes a pair several

}  // namespace

Gate::Gate(unsigned parties) : parties_(parties), pages_(sizeof(Words), Pages::Kind::shared) {}

uint64_t Gate::pass() {
  Words& w = words();
  // SYNC POINT: bench-gate. Only times and counts are passed.
  if (w.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == parties_) {
    const uint64_t now = now_ns();
    w.opened_ns.store(now, std::memory_order_release);  // SYNC POINT: bench-gate
    return now;
  }
  const uint64_t until = now_ns() + kOperations * static_cast<uint64_t>(patience_ms()) * 1'000'000;
  uint64_t opened;
  while ((opened = w.opened_ns.load(std::memory_order_acquire)) == 0) {
    if (now_ns() > until) throw Failure("%s", kNotAllCame);
    ::usleep(kLookEvery_us);
  }
  return opened;
}

}  // namespace aperture::bench
