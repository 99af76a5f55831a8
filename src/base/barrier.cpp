// membarrier(2), GLOBAL_EXPEDITED: see barrier.hpp.
#include "base/barrier.hpp"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace aperture {

namespace {

int membarrier(int cmd) noexcept {
  return static_cast<int>(::syscall(SYS_membarrier, cmd, 0, 0));
}

std::atomic<uint64_t> g_passed{0};

}  // namespace

uint64_t heavy_barriers_passed() noexcept {
  return g_passed.load(std::memory_order_relaxed);  // relaxed: a count, which orders nothing
}

bool register_for_heavy_barriers() noexcept {
  return membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
}

void heavy_barrier() noexcept {
  g_passed.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count, which orders nothing
  full_fence();
  while (membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0) {
    full_fence();
    if (errno != ENOMEM) return;  // there is none; but one that only lacks memory is to come
    ::sched_yield();
  }
}

}  // namespace aperture
