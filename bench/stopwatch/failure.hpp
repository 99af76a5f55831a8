// Why a measure could not be taken, as one sentence for its row.
#pragma once

#include <stdexcept>

namespace aperture::bench {

class Failure : public std::runtime_error {
 public:
  explicit Failure(const char* format, ...) __attribute__((format(printf, 2, 3)));
};

}  // namespace aperture::bench
