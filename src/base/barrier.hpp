// The asymmetric fence: free for the frequent side, membarrier(2) for the rare side.
//
// Frequent side: store; light_barrier(); load.   Rare side: store; heavy_barrier(); load.
// Then at least one side sees the other's store. This holds across processes if the frequent side's
// process has registered (register_for_heavy_barriers()); a process that could not register says so
// at the handshake and uses full_fence() instead (LightFence below decides once).
#pragma once

#include <atomic>
#include <cstdint>

namespace aperture {

// Registers this process for MEMBARRIER_CMD_GLOBAL_EXPEDITED. False where the kernel has none.
// Idempotent, any thread.
bool register_for_heavy_barriers() noexcept;

// Every registered process's running threads pass a full fence before this returns (about 0.4 us
// and more). Falls back to a plain seq_cst fence where membarrier is missing.
void heavy_barrier() noexcept;

// How many of them this process has passed: each interrupts every core on which a registered
// process runs, so they are to be rare.
uint64_t heavy_barriers_passed() noexcept;

inline void light_barrier() noexcept {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

// ThreadSanitizer does not model fences, and GCC says so at each one: what it must see is ordered
// by the acquire and release operations beside them.
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#endif
inline void full_fence() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace aperture
