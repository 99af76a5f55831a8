// Why a measure could not be taken, as one sentence for its row.
#pragma once

#include <exception>

namespace aperture::bench {

// Holds its own text: it is also thrown where no descriptor is left, and must need nothing there.
class Failure : public std::exception {
 public:
  explicit Failure(const char* format, ...) noexcept __attribute__((format(printf, 2, 3)));
  const char* what() const noexcept override { return text_; }

 private:
  char text_[512];
};

}  // namespace aperture::bench
