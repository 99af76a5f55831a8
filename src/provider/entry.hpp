// What every C entry of this door is wrapped in: nothing thrown ever reaches the C caller.
//
// Data-path entries call only noexcept code and need no wrapping. No state, any thread.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include <new>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "base/not_cancelled.hpp"
#include "base/uses.hpp"

namespace aperture::provider {

// Why a forked child is turned away (fork.hpp).
inline constexpr char kForked[] =
    "this process was forked after that object had been opened, and it stays with the parent; open "
    "what the child needs anew, from fi_getinfo and fi_fabric on";

// Whether it was opened before this process was forked, and stayed there. fork.cpp
bool is_of_parent(const struct fid* what) noexcept;

// Runs fn, which returns 0 or a negative fi_errno; an exception becomes -FI_ENOMEM or -FI_EOTHER.
// It is no cancellation point.
template <typename Fn>
auto guarded(const char* call, Fn&& fn) noexcept -> decltype(fn()) {
  const NotCancelled section;
  try {
    return std::forward<Fn>(fn)();
  } catch (const std::bad_alloc&) {
    return refuse(-FI_ENOMEM, "%s: out of memory", call);
  } catch (...) {
    return refuse(-FI_EOTHER, "%s: an unexpected internal error; please report it", call);
  }
}

// The same for a call on an object, of which its fid is the first member; NULL is left to fn. A
// forked child that has inherited it is turned away.
template <typename Fid, typename Fn>
auto guarded(const char* call, const Fid* of, Fn&& fn) noexcept -> decltype(fn()) {
  if (is_of_parent(reinterpret_cast<const struct fid*>(of))) [[unlikely]]
    return refuse(-FI_EOPNOTSUPP, "%s: %s", call, kForked);
  return guarded(call, std::forward<Fn>(fn));
}

// The same for fi_close: of what was inherited nothing is to be closed, and there is no harm.
template <typename Fn>
int guarded_close(const char* call, const struct fid* of, Fn&& fn) noexcept {
  if (is_of_parent(of)) return 0;
  return guarded(call, std::forward<Fn>(fn));
}

}  // namespace aperture::provider
