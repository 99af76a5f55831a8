// The Nth system call of a door's library fails: nth_play.hpp. Included by one source of a
// program, whose functions stand before the C library's.
#pragma once

#include "base/each_call.hpp"
#include "doors/nth_play.hpp"

namespace aperture::nth {

inline bool may_fail(const void* caller) noexcept {
  return is_in_library(caller);
}

}  // namespace aperture::nth
