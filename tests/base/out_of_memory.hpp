// Allocations that fail while a test says so. Included by one source of a program, which gets its
// operator new from here.
#pragma once

#include "base/own_new.hpp"

namespace aperture::test {

inline bool out_of_memory = false;

inline void* allocate(size_t bytes) noexcept {
  return out_of_memory ? nullptr : std::malloc(bytes);
}

}  // namespace aperture::test
