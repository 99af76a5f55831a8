// How long the threads of some processes have slept in membarrier(2), all together.
//
// The kernel lets one process at a time interrupt the others, by a mutex. Where many processes want
// two cores, whoever has it may lose its core, and everybody else then sleeps until it gets one
// again: 490 ms were seen, with 44 processes that did nothing but compute and call it. The kernel
// counts that neither as waiting for a processor nor as anything else. So the program's own
// syscall(2), which libraries find before the C library's, measures it (barrier_clock.cpp).
#pragma once

#include <cstdint>
#include <string>

namespace aperture::hostile {

// Of the program that starts those processes, each with the variable in its environment.
class BarrierClock {
 public:
  BarrierClock();
  ~BarrierClock();
  BarrierClock(const BarrierClock&) = delete;
  BarrierClock& operator=(const BarrierClock&) = delete;

  static constexpr const char* kVariable = "APERTURE_BARRIER_CLOCK";
  std::string value() const { return std::to_string(fd_); }  // of the variable

 private:
  int fd_;
};

// Of all processes with the same variable; 0 where there is none. Any thread.
int64_t slept_in_barriers_ns() noexcept;

}  // namespace aperture::hostile
