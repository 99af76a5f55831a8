// What the fuzzers of lanes share: the input as a program of small steps, and the end of a run that
// has broken a rule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace aperture::fuzz {

inline void require(bool so, const char* what) {
  if (so) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// The bytes of the input, taken from the front; zero behind its end.
class Steps {
 public:
  Steps(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool more() const { return at_ < end_; }
  template <typename T>
  T take() {
    T v{};
    const size_t n = std::min(sizeof v, static_cast<size_t>(end_ - at_));
    std::memcpy(&v, at_, n);
    at_ += n;
    return v;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

}  // namespace aperture::fuzz
