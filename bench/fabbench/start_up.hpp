// What it takes to begin: two processes from nothing to their first message.
#pragma once

#include "fabbench/session.hpp"
#include "stopwatch/pair.hpp"
#include "stopwatch/row.hpp"

namespace aperture::bench {

// loading: from the process's first call into libfabric on, which loads all of its providers.
// opening: from there on; queues, endpoint, and what the provider does to reach its peer.
enum class From { loading, opening };

// Both sides start at once; rank 0's time until its first message was answered. One sample: a
// process begins once.
Row measure_start_up(const Setup& setup, Side& side, From from, size_t size_bytes);

}  // namespace aperture::bench
