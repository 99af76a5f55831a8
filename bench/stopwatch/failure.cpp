// Formatting of failures.
#include "stopwatch/failure.hpp"

#include <cstdarg>
#include <cstdio>

namespace aperture::bench {

Failure::Failure(const char* format, ...) noexcept {
  va_list args;
  va_start(args, format);
  std::vsnprintf(text_, sizeof text_, format, args);
  va_end(args);
}

}  // namespace aperture::bench
