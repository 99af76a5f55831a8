// What wakes a thread that sleeps until a completion queue or a counter has something: an eventfd
// that becomes readable with the next arrival, once it is armed.
//
// Guarded by the engine's lock, but for wake().
#pragma once

#include <atomic>

#include "base/fd.hpp"

namespace aperture::qp {

class WakeFd {
 public:
  // Once is enough. Errors: no_fds, no_memory.
  Status open() noexcept;
  int get() const noexcept { return fd_.get(); }

  void arm() noexcept { armed_ = true; }
  // Something has come.
  void on_arrival() noexcept {
    if (armed_) [[unlikely]]
      wake();
  }
  // Nobody sleeps on it any more: it is quiet.
  void disarm() noexcept;
  // The same, left as it is.
  void stand_down() noexcept { armed_ = false; }
  // For when somebody else may be blocked on it: readable until disarm().
  void hand_back() noexcept {
    armed_ = false;
    wake();
  }
  // Readable now. Any thread, no lock.
  void wake() noexcept;

 private:
  bool armed_ = false;
  // Or about to be drained. Set after the signal: who finds it unset and leaves the descriptor as
  // it is has drained it all the same by the next time.
  std::atomic<bool> readable_{false};
  UniqueFd fd_;
};

}  // namespace aperture::qp
