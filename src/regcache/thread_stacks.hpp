// Whether memory may lie on a thread's stack, or among its thread-local variables beside it.
//
// The C library maps the stacks of threads, empties them when a thread ends and gives them to the
// next one, all without a word to anybody. Where they are it does not say either, but to the
// kernel: each thread has registered the address of its list of robust mutexes, get_robust_list(2),
// which lies in its descriptor, at the end of its stack. No state, any thread; nothing is
// allocated.
#pragma once

#include "regcache/range.hpp"

namespace aperture::regcache {

// `whole`: the mappings around the range. True also where it cannot be found out. The main thread's
// stack does not count: that never goes.
bool may_be_on_a_stack(const Range& range, const Range& whole) noexcept;

// False: it could never be found out here.
bool knows_stacks() noexcept;

}  // namespace aperture::regcache
