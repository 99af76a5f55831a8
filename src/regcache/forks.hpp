// How often this process has forked, and whether it is just doing so. A page that a child shares is
// copied for whoever writes it first, which may be the parent: then a resource that holds the page
// and has not told the kernel so (FOLL_PIN) is the child's from there on. So nothing that was made
// before a fork is relied on after it. vfork(2) and posix_spawn(3) share no page; _Fork(3) is
// noticed by its hook (hooked_calls.hpp). clone(2) that copies memory and fork(2) by a bare system
// call are not noticed: with these only resources that have told the kernel are right.
//
// Any thread; the counts are read without a lock.
#pragma once

#include <cstdint>

#include "base/errc.hpp"

namespace aperture::regcache {

// From now on forks are counted. Idempotent. Errors: no_memory.
Status count_forks() noexcept;

struct Forks {
  uint64_t begun = 0;
  uint64_t over = 0;  // in the parent
  bool operator==(const Forks&) const noexcept = default;
};
Forks forks() noexcept;

// For a hook, around a fork that runs no handlers. A signal handler may call them.
void fork_begins() noexcept;
void fork_is_over() noexcept;
// In the child, where no thread of the parent's goes on forking.
void forks_of_parent_are_over() noexcept;

}  // namespace aperture::regcache
