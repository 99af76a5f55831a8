// A ping-pong of 64-bit values: odd ones are rank 0's, even ones rank 1's.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "limits/limit.hpp"

namespace aperture::bench {

// write(value) is to be seen by the other side, seen() is what it has written last. The row is half
// a round trip.
template <typename Write, typename Seen>
Row ping_pong(Side& side, double seconds, Write&& write, Seen&& seen) {
  constexpr uint64_t kStop = UINT64_MAX;
  constexpr size_t kFewest = 256;  // round trips
  if (side.rank == 1) {
    for (uint64_t value = 1;; value += 2) {
      uint64_t now;
      while ((now = seen()) != value && now != kStop) continue;
      if (now == kStop) return Row{};
      write(value + 1);
    }
  }
  Samples samples(1u << 21);
  const uint64_t until = ticks() + ticks_from_ns(static_cast<uint64_t>(seconds * 1e9));
  const uint64_t warm = ticks() + ticks_from_ns(static_cast<uint64_t>(seconds * 1e8));
  uint64_t value = 1;
  // however little of the time the machine gave us
  for (uint64_t last = ticks(); last < until || samples.size() < kFewest; value += 2) {
    write(value);
    const uint64_t now = ticks();  // while it travels: costs nothing
    if (last > warm) samples.add(now - last);
    last = now;
    while (seen() != value + 1) continue;
  }
  write(kStop);
  return latency_row(samples, 0.5);
}

}  // namespace aperture::bench
