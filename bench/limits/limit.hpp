// The physical limits of this machine that any transport between two processes runs into.
//
// Each limit is one measure with a name, taken by one process (memcpy) or by a pinned pair.
#pragma once

#include <cstddef>
#include <vector>

#include "stopwatch/pages.hpp"
#include "stopwatch/pair.hpp"
#include "stopwatch/pairs.hpp"
#include "stopwatch/row.hpp"

namespace aperture::bench {

struct LimitSpec {
  const char* name;
  size_t size_bytes;
  const char* about;
  // Runs in both processes of a pair; what it shares was made before the fork.
  Row (*body)(Side& side, const Pages& shared, size_t size_bytes, double seconds);
  size_t shared_bytes;
  Crowding crowd{};
  bool hidden = false;  // only when asked for by name
};

const std::vector<LimitSpec>& all_limits();

// limits/lines.cpp
Row ping_pong_one_line(Side&, const Pages&, size_t, double seconds);
Row ping_pong_two_lines(Side&, const Pages&, size_t, double seconds);
Row ring_rate(Side&, const Pages&, size_t, double seconds);
Row ring_rate_credits(Side&, const Pages&, size_t, double seconds);
// limits/copies.cpp
Row copy_alone(Side&, const Pages&, size_t size_bytes, double seconds);
Row copy_by_two(Side&, const Pages&, size_t size_bytes, double seconds);
Row cma_call(Side&, const Pages&, size_t size_bytes, double seconds);
Row cma_anywhere(Side&, const Pages&, size_t size_bytes, double seconds);
Row cma_seen(Side&, const Pages&, size_t size_bytes, double seconds);
Row cma_bandwidth(Side&, const Pages&, size_t size_bytes, double seconds);
// limits/sockets.cpp
Row unix_ping_pong(Side&, const Pages&, size_t size_bytes, double seconds);
Row tcp_ping_pong(Side&, const Pages&, size_t size_bytes, double seconds);
Row tcp_polled_ping_pong(Side&, const Pages&, size_t size_bytes, double seconds);
Row tcp_polled_bandwidth(Side&, const Pages&, size_t size_bytes, double seconds);
Row unix_clients(Side&, const Pages&, size_t size_bytes, double seconds);
Row tcp_clients(Side&, const Pages&, size_t size_bytes, double seconds);
// limits/memory.cpp
Row miss_latency(Side&, const Pages&, size_t size_bytes, double seconds);

}  // namespace aperture::bench
