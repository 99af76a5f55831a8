// A span of time in ticks, for the data path: found at the first use in a process. Any thread.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "base/per_process.hpp"

namespace aperture {

template <uint64_t kNs>
uint64_t ticks_in() noexcept {
  static constinit FoundOnce<uint64_t> found;
  return found.get([] { return ticks_from_ns(kNs); });
}

}  // namespace aperture
