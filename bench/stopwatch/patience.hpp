// How long one operation may take before its measure is given up.
//
// set_patience() is called before the process forks. A Patience belongs to one wait.
#pragma once

#include <cstdint>

namespace aperture::bench {

// For every Patience of this process; three seconds at first.
void set_patience(double seconds);
// The same for a wait that sleeps.
int patience_ms() noexcept;

// Gives up on an operation that takes too long; looks at the clock only now and then.
class Patience {
 public:
  explicit Patience(const char* awaited) noexcept : awaited_(awaited) {}
  // True every 64th time: the wait is a long one.
  bool tick() {
    if ((++spins_ & 0xfffu) == 0) check();
    return (spins_ & 63u) == 0;
  }

 private:
  void check();

  const char* awaited_;
  uint32_t spins_ = 0;
  uint64_t until_ns_ = 0;
};

}  // namespace aperture::bench
