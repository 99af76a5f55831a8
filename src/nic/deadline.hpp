// A time after which something is over, unless it is taken back before: one timer of the control
// thread's (control_thread.hpp). Owned by that thread.
#pragma once

#include <cassert>
#include <utility>

#include "base/clock.hpp"
#include "nic/control_thread.hpp"

namespace aperture::nic {

class Deadline {
 public:
  explicit Deadline(ControlThread& control) noexcept : control_(control) {}
  ~Deadline() { cancel(); }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  // over() is called once, so long from now, in place of what was set before. It may destroy this.
  template <typename Over>
  void set(uint64_t ns, Over over) noexcept {
    cancel();
    timer_ = control_.add_timer(now_ns() + ns, [this, over = std::move(over)]() mutable {
      assert(timer_ != 0);
      timer_ = 0;
      over();
    });
    assert(timer_ != 0);
  }
  void cancel() noexcept { control_.cancel_timer(std::exchange(timer_, 0)); }
  bool is_set() const noexcept { return timer_ != 0; }

 private:
  ControlThread& control_;
  ControlThread::TimerId timer_ = 0;
};

}  // namespace aperture::nic
