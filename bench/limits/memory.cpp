// What one miss of memory costs: a chain of loads, each of which tells where the next one is.
//
// The chain visits every cache line of the buffer once in a random order, so neither a prefetcher
// nor the order of execution can help; misses of address translation are part of it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/clock.hpp"
#include "limits/limit.hpp"

namespace aperture::bench {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kStep = 256;  // loads per sample

}  // namespace

Row miss_latency(Side& side, const Pages&, size_t size_bytes, double seconds) {
  if (side.rank == 1) return Row{};
  const Pages memory(size_bytes, Pages::Kind::own);
  std::vector<uint32_t> order(size_bytes / kLine);
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 random(7);
  std::shuffle(order.begin(), order.end(), random);
  for (size_t i = 0; i < order.size(); i++) {
    const std::byte* next = memory.data() + order[(i + 1) % order.size()] * kLine;
    std::memcpy(memory.data() + order[i] * kLine, &next, sizeof next);
  }
  const std::byte* at = memory.data() + order[0] * kLine;
  Samples samples(1u << 20);
  const uint64_t until = ticks() + ticks_from_ns(static_cast<uint64_t>(seconds * 1e9));
  for (uint64_t last = ticks(); last < until;) {
    for (size_t i = 0; i < kStep; i++) std::memcpy(&at, at, sizeof(void*));
    const uint64_t now = ticks();
    samples.add(now - last);
    last = now;
  }
  asm volatile("" : : "r"(at));  // the chain is not to be elided
  return latency_row(samples, 1.0 / static_cast<double>(kStep));
}

}  // namespace aperture::bench
