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
  count(words().arrived, words().opened_ns);
  return await(words().opened_ns);
}

void Gate::leave() {
  count(words().left, words().closed_ns);
}

uint64_t Gate::closed_ns() const {
  return seen(words().closed_ns);
}

uint64_t Gate::await_closed() const {
  return await(words().closed_ns);
}

// Nobody stores a time over this.
void Gate::give_up() noexcept {
  words().opened_ns.store(kGivenUp, std::memory_order_release);  // SYNC POINT: bench-gate
  words().closed_ns.store(kGivenUp, std::memory_order_release);  // SYNC POINT: bench-gate
}

void Gate::count(std::atomic<uint32_t>& come, std::atomic<uint64_t>& at_ns) {
  // SYNC POINT: bench-gate. Only times and counts are passed.
  if (come.fetch_add(1, std::memory_order_acq_rel) + 1 != parties_) return;
  uint64_t not_yet = 0;
  at_ns.compare_exchange_strong(not_yet, now_ns(), std::memory_order_acq_rel);
}

uint64_t Gate::seen(const std::atomic<uint64_t>& at_ns) {
  const uint64_t at = at_ns.load(std::memory_order_acquire);
  if (at == kGivenUp) throw Failure("%s", kNotAllCame);
  return at;
}

uint64_t Gate::await(const std::atomic<uint64_t>& at_ns) {
  const uint64_t until = now_ns() + kOperations * static_cast<uint64_t>(patience_ms()) * 1'000'000;
  uint64_t at;
  while ((at = seen(at_ns)) == 0) {
    if (now_ns() > until) throw Failure("%s", kNotAllCame);
    ::usleep(kLookEvery_us);
  }
  return at;
}

}  // namespace aperture::bench
