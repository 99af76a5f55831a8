// The Nth allocation (or whatever else a program counts) fails, for each N, in a process of its own
// (docs/adr/0006). What counts, and what is done meanwhile, the including program says.
//
// A seeded sample of all N runs for so many seconds; APERTURE_ALLOCATIONS=all runs them all, and a
// number that one alone.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace aperture::nth {

inline constexpr uint64_t kNever = ~uint64_t{0};
inline constexpr unsigned kWatchdogSeconds = 60;
inline std::atomic<uint64_t> allocations{0};
inline std::atomic<uint64_t> fails_at{kNever};
// What has failed, where it has a name: of the run that fail_each() is at.
inline constexpr size_t kNameBytes = 32;
inline char* failed_name = nullptr;

// Counts an allocation: whether it is the one that fails.
inline bool is_the_nth() noexcept {
  // relaxed: a count, and which thread's allocation is the Nth does not matter
  return allocations.fetch_add(1, std::memory_order_relaxed) + 1 ==
         fails_at.load(std::memory_order_relaxed);
}
inline void fail_from_now_on(uint64_t n) noexcept {
  allocations = 0;
  fails_at = n != 0 ? n : kNever;
}

// What run(n) ends with in a process of its own; a negative number is a signal. With n 0 nothing
// fails, and `count` is how much was allocated.
using Run = int (*)(uint64_t n);
inline int run_in_child(Run run, uint64_t n, uint64_t* count) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kWatchdogSeconds);
    const int outcome = run(n);
    if (n == 0) *count = allocations;
    ::_exit(outcome);
  }
  int status = -1;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Each run must end with 0; `meaning` explains the other numbers.
inline void fail_each(Run run, int sample_seconds, const char* meaning) {
  void* const page = ::mmap(nullptr, sizeof(uint64_t) + kNameBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const shared = static_cast<uint64_t*>(page);
  failed_name = reinterpret_cast<char*>(shared + 1);
  ASSERT_EQ(run_in_child(run, 0, shared), 0) << "without a failure all works";
  ASSERT_GT(*shared, 50u);
  std::vector<uint64_t> order(*shared);
  std::iota(order.begin(), order.end(), 1);
  const char* all = std::getenv("APERTURE_ALLOCATIONS");
  const bool sample = all == nullptr || std::string(all) != "all";
  if (all != nullptr && sample) order = {std::strtoull(all, nullptr, 10)};
  const char* given = std::getenv("APERTURE_SEED");
  const auto seed = static_cast<unsigned>(given != nullptr ? std::strtoul(given, nullptr, 10)
                                                           : std::random_device{}());
  if (sample) std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(sample_seconds);
  size_t tried = 0;
  for (const uint64_t n : order) {
    if (sample && std::chrono::steady_clock::now() > end) break;
    failed_name[0] = '\0';
    EXPECT_EQ(run_in_child(run, n, shared), 0)
        << "number " << n << " of " << *shared << " fails, " << failed_name
        << "; a negative number is a signal, 10 a hang, 11 that it does not work afterwards, "
        << meaning;
    ++tried;
  }
  std::printf("seed %u: %zu of %zu failed in turn\n", seed, tried, static_cast<size_t>(*shared));
}

}  // namespace aperture::nth
