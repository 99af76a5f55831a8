// What a process does that others pay for, or that others wait for: its heavy barriers
// (membarrier(2) of the expedited kinds, each of which interrupts every core on which a registered
// process runs), its yields (sched_yield(2)) and its sleeps (poll(2)), counted from outside: the
// functions stand before the C library's, so one source of a program includes this, and the program
// exports its symbols.
//
// That a count is one of something is to be tested: a process that has two peers has registered for
// heavy barriers, and that is a call of the same function.
#pragma once

#include <dlfcn.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/system_call.hpp"

namespace aperture::test {

inline std::atomic<uint64_t> heavy_barriers{0};
inline std::atomic<uint64_t> registrations{0};  // for heavy barriers of others

// Of one thread. What took longer than kTakenNs has let somebody else run; half a microsecond is
// the price of one that nobody wanted.
struct Yields {
  static constexpr int64_t kTakenNs = 1'500;
  uint64_t taken = 0;
  uint64_t vain = 0;
};
inline thread_local Yields yields;
inline thread_local uint64_t naps = 0;  // of poll(2): those that found nothing at once

inline int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// This thread and all that it starts from now on run on the first so many of the cores that it may
// use, or on all where there are fewer.
inline void keep_to_cores(int count) {
  cpu_set_t all, some;
  CPU_ZERO(&some);
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  for (int core = 0; core < CPU_SETSIZE && count > 0; ++core) {
    if (!CPU_ISSET(core, &all)) continue;
    CPU_SET(core, &some);
    --count;
  }
  ::sched_setaffinity(0, sizeof some, &some);
}

inline long on_system_call(const SystemCall& call) noexcept {
  if (call.number == SYS_membarrier) {
    const bool registers = (call.a[0] & (MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED |
                                         MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)) != 0;
    if (registers) {
      registrations.fetch_add(1);
    } else if (call.a[0] != MEMBARRIER_CMD_QUERY) {
      heavy_barriers.fetch_add(1);
    }
  }
  return call.pass_on();
}

}  // namespace aperture::test

#pragma GCC visibility push(default)  // a library finds them here

extern "C" {
int sched_yield() noexcept {
  static auto* const passed_on = reinterpret_cast<int (*)()>(::dlsym(RTLD_NEXT, "sched_yield"));
  const int64_t begun = aperture::test::monotonic_ns();
  const int result = passed_on();
  aperture::test::Yields& yields = aperture::test::yields;
  ++(aperture::test::monotonic_ns() - begun >= yields.kTakenNs ? yields.taken : yields.vain);
  return result;
}

int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  using Call = int (*)(pollfd*, nfds_t, int);
  static const auto passed_on = reinterpret_cast<Call>(::dlsym(RTLD_NEXT, "poll"));
  if (timeout_ms == 0) return passed_on(fds, count, 0);
  if (const int ready = passed_on(fds, count, 0); ready != 0) return ready;
  ++aperture::test::naps;
  return passed_on(fds, count, timeout_ms);
}
}

#pragma GCC visibility pop
