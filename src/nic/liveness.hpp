// Whether another process still lives, asked cheaply.
//
// PF_EXITING in the stat file of its main thread shows 0.1 ms after a SIGKILL, whatever the process
// has mapped; hang-up of its sockets and its pidfd come only when its memory has been torn down.
// The file is opened once and is bound to that very process: a reused number cannot mislead it. A
// read costs some 17 us. Owned by the control thread.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/fd.hpp"

namespace aperture::nic {

class Liveness {
 public:
  Liveness() noexcept = default;
  // start_time is what the process said of itself: another one has that number by now if it
  // differs.
  Liveness(pid_t pid, uint64_t start_time) noexcept;

  // False only if it is surely dead or dying. True as well where /proc does not tell.
  bool alive() const noexcept;

 private:
  bool other_threads_live() const noexcept;

  pid_t pid_ = 0;
  UniqueFd stat_;  // /proc/PID/task/PID/stat
  bool never_lived_ = false;
};

}  // namespace aperture::nic
