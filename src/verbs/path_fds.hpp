// Which descriptors of the process are event channels of ours.
//
// For any other descriptor the question costs one load. A mark may be stale, when a descriptor was
// closed by a bare system call, or in a child: so whoever acts on one asks channel_behind(), which
// looks at the open file itself. Children of fork() change nothing here until they open a channel
// of their own, children of vfork(), which shares our memory, never. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/errc.hpp"

namespace aperture::verbs {

namespace rdma_cm {
class Channel;
}

inline constexpr int kMaxMarkedFd = 65536;
extern std::array<std::atomic<uint8_t>, kMaxMarkedFd> fd_marks;

inline bool is_marked(int fd) noexcept {
  // relaxed: whoever opened the descriptor has handed its number over since
  return static_cast<unsigned>(fd) < kMaxMarkedFd &&
         fd_marks[static_cast<size_t>(fd)].load(std::memory_order_relaxed) != 0;
}

// A new event channel's descriptor. -1 and errno: there is none to be had.
int open_channel(int flags) noexcept;
// Null: it is no event channel (any more).
std::shared_ptr<rdma_cm::Channel> channel_behind(int fd) noexcept;
// Whether this process, and not a child of it, asks.
bool owns_channels() noexcept;
// From now on this process does: it was forked before its parent had made anything of them.
void own_channels() noexcept;

// `copy` has become another descriptor of the same open file as `fd`. Errors: no_fds (the number is
// too high), no_memory.
Status copied(int fd, int copy) noexcept;
// The descriptor is about to be closed, or has been. The channel ends with its last one.
void forget(int fd) noexcept;
// All from first to last.
void forget_range(unsigned first, unsigned last) noexcept;

}  // namespace aperture::verbs
