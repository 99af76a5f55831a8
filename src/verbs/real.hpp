// The real libibverbs, for the devices, contexts and functions that are not ours.
//
// It is in the process under a name of its own (exports.map and CMakeLists.txt say how), since the
// name libibverbs.so.1 is ours. Nothing is looked up before the first call. Any thread.
#pragma once

#include <atomic>
#include <cerrno>

namespace aperture::verbs {

// The function of that name and version, or nullptr: there is no real library, or it is older.
void* real_symbol(const char* name, const char* version) noexcept;

// A function of the real library, looked up once.
template <typename Function>
class Real {
 public:
  constexpr Real(const char* name, const char* version) noexcept : name_(name), version_(version) {}

  Function* get() noexcept {
    // acquire and release: whoever sees the pointer sees the library that was found
    // SYNC POINT: real-symbol
    void* found = found_.load(std::memory_order_acquire);
    if (found == nullptr) {
      found = real_symbol(name_, version_);
      // SYNC POINT: real-symbol
      found_.store(found, std::memory_order_release);
    }
    return reinterpret_cast<Function*>(found);
  }
  // Calls it; `otherwise` is the answer where it does not exist, with errno EOPNOTSUPP.
  template <typename Answer, typename... Arguments>
  Answer call_or(Answer otherwise, Arguments... arguments) noexcept {
    Function* function = get();
    if (function != nullptr) return function(arguments...);
    errno = EOPNOTSUPP;
    return otherwise;
  }

 private:
  const char* const name_;
  const char* const version_;
  std::atomic<void*> found_{nullptr};
};

}  // namespace aperture::verbs

// The real function of that name, for the body of our own: ForwardTo the real library.
#define APERTURE_REAL(function, version)                              \
  static constinit ::aperture::verbs::Real<decltype(function)> real { \
#function, version                                                \
  }

// The first statement of a function of ours that is about an object: what is not `ours` goes to the
// real function, with those arguments; `otherwise` is the answer where there is none.
#define APERTURE_FORWARD(ours, otherwise, function, version, ...) \
  APERTURE_REAL(function, version);                               \
  if (!(ours)) return real.call_or<decltype(function(__VA_ARGS__))>(otherwise, __VA_ARGS__)
