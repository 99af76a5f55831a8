// membarrier(2), GLOBAL_EXPEDITED: see barrier.hpp.
#include "base/barrier.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace aperture {

namespace {

int membarrier(int cmd) noexcept {
  return static_cast<int>(::syscall(SYS_membarrier, cmd, 0, 0));
}

}  // namespace

bool register_for_heavy_barriers() noexcept {
  return membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
}

void heavy_barrier() noexcept {
  full_fence();
  if (membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0) full_fence();
}

}  // namespace aperture
