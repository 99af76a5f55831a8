// What every C entry of this door is wrapped in: nothing thrown ever reaches the C caller, and a
// forked child, which has neither the control thread nor the lanes of its parent, is turned away
// from what the parent had opened.
//
// Data-path entries call only noexcept code and need no wrapping. No state, any thread.
#pragma once

#include <cerrno>
#include <new>
#include <utility>

#include "base/fork_guard.hpp"
#include "base/log.hpp"
#include "base/not_cancelled.hpp"
#include "base/uses.hpp"

namespace aperture::verbs {

// for the calls, which stand in the global namespace
using aperture::object_of;
using aperture::refuse;
using aperture::Use;

// Of control calls none is a cancellation point, as none is in libibverbs but the two that wait for
// events. Runs fn, which returns 0 or an errno; so does this.
template <typename Fn>
int guarded(const char* call, const Life& life, Fn&& fn) noexcept {
  if (life.is_over()) {
    return refuse(EOPNOTSUPP,
                  "%s: this process was forked after that context had been opened, and it stays "
                  "with the parent; open the device anew with ibv_open_device",
                  call);
  }
  const NotCancelled section;
  try {
    return std::forward<Fn>(fn)();
  } catch (const std::bad_alloc&) {
    return refuse(ENOMEM, "%s: out of memory", call);
  } catch (...) {
    return refuse(EIO, "%s: an unexpected internal error; please report it", call);
  }
}

// The same where an object is given up: of an inherited one there is nothing to be given up, and no
// harm.
template <typename Fn>
int guarded_release(const char* call, const Life& life, Fn&& fn) noexcept {
  if (life.is_over()) return 0;
  return guarded(call, life, std::forward<Fn>(fn));
}

// Runs fn(out), which returns 0 or an errno; this returns what it has put into out, or nullptr with
// errno set.
template <typename Object, typename Fn>
Object* guarded_new(const char* call, const Life& life, Fn&& fn) noexcept {
  Object* made = nullptr;
  const int error = guarded(call, life, [&] { return fn(made); });
  if (error == 0) return made;
  errno = error;
  return nullptr;
}

// The same, and returns libibverbs' part of it.
template <typename Object, typename Fn>
auto guarded_new_base(const char* call, const Life& life, Fn&& fn) noexcept {
  Object* made = guarded_new<Object>(call, life, std::forward<Fn>(fn));
  if constexpr (requires { made->base(); }) {
    return made != nullptr ? made->base() : nullptr;
  } else {
    return made != nullptr ? &made->base : nullptr;
  }
}

}  // namespace aperture::verbs
