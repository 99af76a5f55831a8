// The Nth allocation of a door's library fails: nth_play.hpp. Included by one source of a
// program, which gets its malloc() from here.
#pragma once

#include <cerrno>

#include "doors/nth_play.hpp"

namespace aperture::nth {

inline bool must_fail(const void* caller) noexcept {
  if (!is_in_library(caller) || !is_the_nth()) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace aperture::nth

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_calloc(count, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  if (aperture::nth::must_fail(__builtin_return_address(0))) return nullptr;
  return __libc_memalign(alignment, size);
}
}
