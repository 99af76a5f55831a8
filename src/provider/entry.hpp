// What every C entry of this door is wrapped in: nothing thrown ever reaches the C caller.
//
// Data-path entries call only noexcept code and need no wrapping. No state, any thread.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <new>
#include <utility>

#include "base/log.hpp"
#include "base/not_cancelled.hpp"
#include "base/uses.hpp"
#include "nic/fork_guard.hpp"

namespace aperture::provider {

// Why a forked child is turned away (fork.hpp).
inline constexpr char kForked[] =
    "this process was forked after the domain had been opened, and the domain stays with the "
    "parent; open one here after an exec";

// Runs fn, which returns 0 or a negative fi_errno; an exception becomes -FI_ENOMEM or -FI_EOTHER.
// It is no cancellation point, and a forked child is turned away (fork.hpp).
template <typename Fn>
auto guarded(const char* call, Fn&& fn) noexcept -> decltype(fn()) {
  if (nic::in_forked_child()) return refuse(-FI_EOPNOTSUPP, "%s: %s", call, kForked);
  const NotCancelled section;
  try {
    return std::forward<Fn>(fn)();
  } catch (const std::bad_alloc&) {
    return refuse(-FI_ENOMEM, "%s: out of memory", call);
  } catch (...) {
    return refuse(-FI_EOTHER, "%s: an unexpected internal error; please report it", call);
  }
}

// The same for fi_close: in a forked child there is nothing to be done, and no harm.
template <typename Fn>
int guarded_close(const char* call, Fn&& fn) noexcept {
  if (nic::in_forked_child()) return 0;
  return guarded(call, std::forward<Fn>(fn));
}

}  // namespace aperture::provider
