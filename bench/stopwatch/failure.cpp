// Formatting of failures.
#include "stopwatch/failure.hpp"

#include <cstdarg>
#include <cstdio>

namespace aperture::bench {

Failure::Failure(const char* format, ...) : std::runtime_error("") {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  static_cast<std::runtime_error&>(*this) = std::runtime_error(text);
}

}  // namespace aperture::bench
