// How often this process has forked, and whether it is just doing so. A page that a child shares is
// copied for whoever writes it first, which may be the parent: then a resource that holds the page
// and has not told the kernel so (FOLL_PIN) is the child's from there on. So nothing that was made
// before a fork is relied on after it. vfork(2) and posix_spawn(3) share no page; fork(2) by a bare
// system call is not noticed, for which only resources that have told the kernel are right.
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

}  // namespace aperture::regcache
