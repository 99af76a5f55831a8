// What a forked child must not have: our sockets, and the belief that the NIC is still running.
//
// The control thread does not exist in a child, so every entry point asks in_forked_child() and
// turns away there. Sockets would keep a port busy or a dead parent's connection up if a child held
// them: ParentOnlyFd descriptors are closed in the child, before fork() returns there.
//
// Any thread. The registry is one bit per descriptor number, set after opening and cleared before
// closing: at worst a child keeps a descriptor, never does it close one that is not ours.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.hpp"

namespace aperture::nic {

// Installs the handlers. Idempotent, any thread. Errors: no_memory.
Status guard_against_fork() noexcept;

// 1 in the process that installed the guard; the kernel wipes it to 0 in a child. fork_guard.cpp's.
[[gnu::visibility("hidden")]] extern std::atomic<const uint64_t*> g_alive_word;

// True in a child of the process that called guard_against_fork(), also after a bare clone(). In
// every call of the data path.
inline bool in_forked_child() noexcept {
  // SYNC POINT: fork-guard
  return *g_alive_word.load(std::memory_order_acquire) == 0;
}

// For owners of another kind: the descriptor is closed in forked children, until it is forgotten,
// just before it is closed. False: it must not be closed, since this is a child, where that was
// done and the number may be the application's by now.
void close_in_forked_children(int fd) noexcept;
bool forget_for_forked_children(int fd) noexcept;

// A descriptor that is closed in forked children.
class ParentOnlyFd {
 public:
  ParentOnlyFd() noexcept = default;
  explicit ParentOnlyFd(UniqueFd fd) noexcept;
  ParentOnlyFd(ParentOnlyFd&& other) noexcept = default;
  ParentOnlyFd& operator=(ParentOnlyFd&& other) noexcept;
  ~ParentOnlyFd() { reset(); }

  int get() const noexcept { return fd_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  void reset() noexcept;

 private:
  UniqueFd fd_;
};

}  // namespace aperture::nic
