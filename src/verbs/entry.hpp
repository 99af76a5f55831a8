// What every C entry of this door is wrapped in: nothing thrown ever reaches the C caller, and a
// forked child, which has neither the control thread nor the lanes, is turned away.
//
// Data-path entries call only noexcept code and need no wrapping. No state, any thread.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "nic/fork_guard.hpp"

namespace aperture::verbs {

// A refusal: logs the sentence (printf-style) and is the errno.
#define APERTURE_REFUSE(error, ...) \
  ([&]() noexcept -> int {          \
    APERTURE_WARN(__VA_ARGS__);     \
    return (error);                 \
  }())

// Of control calls none is a cancellation point, as none is in libibverbs but the two that wait for
// events: a thread that is cancelled inside would leave its locks behind.
class NotCancelled {
 public:
  NotCancelled() noexcept { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { ::pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// Runs fn, which returns 0 or an errno; so does this.
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

// How many objects refer to this one: it cannot be destroyed until there is none.
class Uses {
 public:
  // relaxed: a count alone; what is behind it is published by whoever handed the object over
  void add() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    // SYNC POINT: verbs-uses: what the child did to its parent is visible before the parent goes
    count_.fetch_sub(1, std::memory_order_release);
  }
  uint32_t count() const noexcept {
    // SYNC POINT: verbs-uses: a destruction that reads 0 sees what every child did
    return count_.load(std::memory_order_acquire);
  }

 private:
  std::atomic<uint32_t> count_{0};
};

// One use of an object, for as long as this lives.
class Use {
 public:
  Use() noexcept = default;
  explicit Use(Uses& uses) noexcept : uses_(&uses) { uses.add(); }
  Use(Use&& other) noexcept : uses_(std::exchange(other.uses_, nullptr)) {}
  Use& operator=(Use&& other) noexcept {
    std::swap(uses_, other.uses_);
    return *this;
  }
  ~Use() {
    if (uses_ != nullptr) uses_->drop();
  }

 private:
  Uses* uses_ = nullptr;
};

// The object of ours whose first member is this one of libibverbs'.
template <typename Object, typename Base>
Object& object_of(Base* base) noexcept {
  return *reinterpret_cast<Object*>(base);
}

}  // namespace aperture::verbs
