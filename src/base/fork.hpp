// Which process is this? A number that differs in every child of fork(), for one load.
//
// getpid(2) is a system call (117 ns), too much for whatever must notice on the data path that its
// per-thread state was inherited from a parent (random keys, thread ids). The word lies in a page
// that the kernel wipes in a child (MADV_WIPEONFORK), so that raw clone() is noticed too. Any
// thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace aperture {

namespace fork_detail {
extern std::atomic<std::atomic<uint64_t>*> epoch_word;
uint64_t new_epoch() noexcept;
}  // namespace fork_detail

// Never 0; the same until the process is forked, another one in the child.
inline uint64_t process_epoch() noexcept {
  // acquire: the page is mapped and wiped on fork before the pointer is seen
  const auto* word = fork_detail::epoch_word.load(std::memory_order_acquire);
  // relaxed: the number orders nothing
  const uint64_t epoch = word->load(std::memory_order_relaxed);
  return epoch != 0 ? epoch : fork_detail::new_epoch();
}

}  // namespace aperture
