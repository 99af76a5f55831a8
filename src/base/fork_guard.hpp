// What a forked child must not have: its parent's sockets, and the belief that the parent's NIC is
// running there.
//
// Neither the control thread nor any lane exists in a child. What the parent had opened is
// therefore of another life: every entry point asks Life::is_over() of the object that it was
// called for, and turns away there. What the child opens by itself is of its own life and works: it
// gets a control thread, a key table, doorways, numbers and an incarnation of its own
// (base/per_process.hpp). Sockets would keep a port busy or a dead parent's connection up if a
// child held them: ParentOnlyFd descriptors are closed in the child, before fork() returns there.
// Other descriptors (memory files, doorbells) stay open in it unused, as the child's own copies.
//
// Any thread. The registry is one bit per descriptor number, set after opening and cleared before
// closing: at worst a child keeps a descriptor, never does it close one that is not ours.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.hpp"

namespace aperture {

// The life of a process as it was when something was opened; it is over in each forked child, also
// after a bare clone().
class Life {
 public:
  // Before anything was opened in this process: one that is never over.
  constexpr Life() noexcept = default;
  // That of this process: begun by guard_against_fork(), else as above.
  static Life now() noexcept;

  // In every call of the data path: a load and a compare with memory.
  bool is_over() const noexcept { return *word_ == 0; }
  bool has_begun() const noexcept { return word_ != &kAlways; }

 private:
  friend Status guard_against_fork() noexcept;
  explicit Life(const uint64_t* word) noexcept : word_(word) {}

  static constexpr uint64_t kAlways = 1;
  // 1 in the process that began it, on a page of its own, which the kernel wipes in a child
  const uint64_t* word_ = &kAlways;
};

// Begins the life of this process, and installs the handlers. Idempotent, any thread. Errors:
// no_memory, not_supported (the kernel cannot wipe).
Status guard_against_fork() noexcept;

// The same for what needs no NIC, such as a fabric: over in a child that was forked once its parent
// had opened something, and not in one that was forked before.
class ForkRound {
 public:
  ForkRound() noexcept;  // the one of this process
  constexpr explicit ForkRound(uint32_t number) noexcept : number_(number) {}
  bool is_over() const noexcept;
  uint32_t number() const noexcept { return number_; }

 private:
  uint32_t number_;
};

// For owners of another kind: the descriptor is closed in forked children, until it is forgotten,
// just before it is closed. False: it must not be closed, since that round is over, it was closed
// then, and the number may be the application's by now.
void close_in_forked_children(int fd) noexcept;
bool forget_for_forked_children(int fd, ForkRound opened_in) noexcept;

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
  // False in a child where it was closed.
  bool is_here() const noexcept { return fd_ && !round_.is_over(); }
  void reset() noexcept;
  // Somebody else has closed it, so the number is theirs: it is left alone.
  void abandon() noexcept;

 private:
  UniqueFd fd_;
  ForkRound round_;  // in which it was opened
};

}  // namespace aperture
