// What every C entry of this door is wrapped in: nothing thrown ever reaches the C caller, and a
// forked child, which has neither the control thread nor the lanes, is turned away.
//
// Data-path entries call only noexcept code and need no wrapping. No state, any thread.
#pragma once

#include <cerrno>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "base/not_cancelled.hpp"
#include "base/uses.hpp"
#include "nic/fork_guard.hpp"

namespace aperture::verbs {

// for the calls, which stand in the global namespace
using aperture::object_of;
using aperture::Use;

// A refusal: logs the sentence (printf-style) and is the errno.
#define APERTURE_REFUSE(error, ...) \
  ([&]() noexcept -> int {          \
    APERTURE_WARN(__VA_ARGS__);     \
    return (error);                 \
  }())

// Of control calls none is a cancellation point, as none is in libibverbs but the two that wait for
// events. Runs fn, which returns 0 or an errno; so does this.
template <typename Fn>
int guarded(const char* call, Fn&& fn) noexcept {
  if (nic::in_forked_child()) {
    return APERTURE_REFUSE(EOPNOTSUPP,
                           "%s: this process was forked after the device had been opened, and the "
                           "device stays with the parent; open it again after an exec",
                           call);
  }
  const NotCancelled section;
  try {
    return std::forward<Fn>(fn)();
  } catch (const std::bad_alloc&) {
    return APERTURE_REFUSE(ENOMEM, "%s: out of memory", call);
  } catch (...) {
    return APERTURE_REFUSE(EIO, "%s: an unexpected internal error; please report it", call);
  }
}

// The same where an object is given up: in a forked child there is nothing to be done, and no harm.
template <typename Fn>
int guarded_release(const char* call, Fn&& fn) noexcept {
  if (nic::in_forked_child()) return 0;
  return guarded(call, std::forward<Fn>(fn));
}

// Runs fn(out), which returns 0 or an errno; this returns what it has put into out, or nullptr with
// errno set.
template <typename Object, typename Fn>
Object* guarded_new(const char* call, Fn&& fn) noexcept {
  Object* made = nullptr;
  const int error = guarded(call, [&] { return fn(made); });
  if (error == 0) return made;
  errno = error;
  return nullptr;
}

}  // namespace aperture::verbs
