// The Nth allocation of a door's library fails, for each N, in a process of its own: nobody crashes
// or hangs, whatever fails says so, and the same process then does all of it without a fault
// (docs/adr/0006). Included by the one source of a program, which gets its malloc() from here; what
// libfabric, librdmacm and libc allocate for themselves never fails.
//
// A seeded sample of all N runs for kSampleSeconds; APERTURE_ALLOCATIONS=all runs them all, and a
// number that one alone.
#pragma once

#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace aperture::nth {

inline constexpr uint64_t kNever = ~uint64_t{0};
inline constexpr unsigned kWatchdogSeconds = 60;
inline std::atomic<uint64_t> allocations{0};
inline std::atomic<uint64_t> fails_at{kNever};
// Where the door's library lies; written before there is a second thread.
inline uintptr_t library_from = 0;
inline uintptr_t library_end = 0;

inline bool must_fail(const void* caller) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(caller);
  if (at < library_from || at >= library_end) return false;
  // relaxed: a count, and which thread's allocation is the Nth does not matter
  if (allocations.fetch_add(1, std::memory_order_relaxed) + 1 !=
      fails_at.load(std::memory_order_relaxed)) {
    return false;
  }
  errno = ENOMEM;
  return true;
}

}  // namespace aperture::nth

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_calloc(count, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_memalign(alignment, size);
}
}

namespace aperture::nth {

// What a play ends with, as a process's exit status.
enum Outcome : int { fine = 0, refused = 1, hangs = 10, does_not_recover = 11, stays_open = 12 };

// Thrown by a play: a call has failed, or what it waits for does not come.
struct Ended {
  Outcome outcome;
  std::string why;
};

// What a close came to say; the second call of one that was refused must succeed.
inline bool all_closed = true;

// Calls step() until it returns true.
template <typename Step>
void until(const char* what, Step&& step) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!step()) {
    if (std::chrono::steady_clock::now() > end) throw Ended{hangs, what};
    std::this_thread::yield();
  }
}

inline int find_library(dl_phdr_info* info, size_t, void* name) {
  if (std::strstr(info->dlpi_name, static_cast<const char*>(name)) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    library_from = info->dlpi_addr + part.p_vaddr;
    library_end = library_from + part.p_memsz;
  }
  return 1;
}

using Play = void (*)();

inline Outcome outcome_of(Play play) {
  try {
    play();
    return all_closed ? fine : stays_open;
  } catch (const Ended& end) {
    if (std::getenv("APERTURE_ALLOCATIONS") != nullptr) {
      std::fprintf(stderr, "%s\n", end.why.c_str());
    }
    return all_closed ? end.outcome : stays_open;
  }
}

// In a process of its own. With n 0 nothing fails, and `count` is how much was allocated.
inline int run_in_child(Play load, const char* library, Play play, uint64_t n, uint64_t* count) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kWatchdogSeconds);
    load();
    ::dl_iterate_phdr(find_library, const_cast<char*>(library));
    if (library_end == 0) ::_exit(does_not_recover);
    allocations = 0;
    fails_at = n != 0 ? n : kNever;
    const Outcome first = outcome_of(play);
    fails_at = kNever;
    if (n == 0) *count = allocations;
    if (n == 0 || first >= hangs) ::_exit(first);
    Outcome again = refused;  // a connection may be in its last gasps
    for (int tries = 0; tries < 2 && again == refused; ++tries) again = outcome_of(play);
    ::_exit(again == refused ? does_not_recover : again);
  }
  int status = -1;
  if (::waitpid(child, &status, 0) != child) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// `load` sees to it that the library, whose file name `library` is part of, is there.
inline void fail_each(Play load, const char* library, Play play, int sample_seconds) {
  auto* const shared = static_cast<uint64_t*>(
      ::mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(shared, MAP_FAILED);
  ASSERT_EQ(run_in_child(load, library, play, 0, shared), fine) << "without a failure all works";
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
    EXPECT_EQ(run_in_child(load, library, play, n, shared), fine)
        << "allocation " << n << " of " << *shared
        << " fails; a negative number is a signal, 10 a hang, 11 that it does not work afterwards, "
           "12 that something cannot be closed";
    ++tried;
  }
  std::printf("seed %u: %zu of %zu allocations failed in turn\n", seed, tried,
              static_cast<size_t>(*shared));
}

}  // namespace aperture::nth
