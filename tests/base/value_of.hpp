// What a call that must succeed has brought.
#pragma once

#include <stdexcept>
#include <string>

#include "base/errc.hpp"

namespace aperture::test {

// Ends the test, with the place and the error, where there is none.
template <typename T>
T value_of(Result<T> result, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (!result) {
    throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " +
                             describe(result.error()));
  }
  return *std::move(result);
}

}  // namespace aperture::test
