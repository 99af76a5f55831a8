// Finding the real library's functions: see real.hpp.
#include "verbs/real.hpp"

#include <dlfcn.h>

namespace aperture::verbs {

namespace {

// Loaded with us by DT_NEEDED, so this takes a reference and loads nothing.
constexpr const char* kRealName = "libaperture-real-ibverbs.so.1";

void* real_library() noexcept {
  static void* const library = ::dlopen(kRealName, RTLD_LAZY | RTLD_NOLOAD);
  return library;
}

}  // namespace

void* real_symbol(const char* name, const char* version) noexcept {
  void* library = real_library();
  if (library == nullptr) return nullptr;
  const int kept = errno;
  void* found = ::dlvsym(library, name, version);
  // a node of its own for private functions: whatever version this library has
  if (found == nullptr) found = ::dlsym(library, name);
  errno = kept;
  return found;
}

}  // namespace aperture::verbs
