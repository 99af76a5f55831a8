// What stands behind a function of libc that this library stands in front of.
//
// For what is not ours a hook is a load and a jump to the next definition: it works before
// constructors have run, in signal handlers and in children of vfork(), leaves errno alone and is a
// cancellation point where libc's is. None that is one is noexcept: cancellation unwinds through
// it. They are exported without a version, so that they stand in for every version of their names
// (exports.map). Any thread.
#pragma once

#include <atomic>
#include <cerrno>

#define APERTURE_HOOK extern "C" [[gnu::visibility("default"), gnu::used]]

namespace aperture::verbs {

// The function of that name behind ours. Keeps errno.
void* find_next(const char* name) noexcept;

// The next definition of a function, looked up once.
template <typename Function>
class Next {
 public:
  constexpr explicit Next(const char* name) noexcept : name_(name) {}
  Function* get() noexcept {
    // relaxed: the same value whoever finds it, and code is always there
    void* found = found_.load(std::memory_order_relaxed);
    if (found == nullptr) [[unlikely]] {
      found = find_next(name_);
      found_.store(found, std::memory_order_relaxed);
    }
    return reinterpret_cast<Function*>(found);
  }

 private:
  const char* const name_;
  std::atomic<void*> found_{nullptr};
};

inline int hook_failed(int error) noexcept {
  errno = error;
  return -1;
}

}  // namespace aperture::verbs

// Defines next_NAME, and finds it early, so that the first call of a hook in a signal handler does
// not have to look anything up. EACH: a list of APERTURE_..(NAME, Type), which is named KIND.
#define APERTURE_DEFINE_NEXT(name, Type) constinit Next<Type> next_##name(#name);
#define APERTURE_FIND_NEXT(name, Type) next_##name.get();
#define APERTURE_DEFINE_EACH_NEXT(KIND, EACH)             \
  EACH(APERTURE_DEFINE_NEXT)                              \
  [[gnu::constructor]] void find_each_##KIND() noexcept { \
    EACH(APERTURE_FIND_NEXT)                              \
  }
