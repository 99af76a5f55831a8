// Monotonic time in nanoseconds, and a cheap tick for the data path.
//
// now_ns() is clock_gettime (21 ns measured); ticks() is the CPU's counter (a few ns), to be
// compared with ticks_from_ns(). Any thread.
#pragma once

#include <time.h>

#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace aperture {

inline constexpr uint64_t kNsPerMs = 1'000'000;

inline uint64_t now_ns() noexcept {
  timespec ts;
  ::clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1000000000u + static_cast<uint64_t>(ts.tv_nsec);
}

inline uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t v;
  asm volatile("mrs %0, cntvct_el0" : "=r"(v));
  return v;
#else
  return now_ns();
#endif
}

// Ticks in that many nanoseconds; calibrated once per process (about 2 ms at the first call).
uint64_t ticks_from_ns(uint64_t ns) noexcept;

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace aperture
