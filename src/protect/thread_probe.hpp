// What became of a thread that holds a pin: running, stopped, or gone.
//
// Behind an interface so that tests can stage every answer. No state, any thread. Measured: of a
// thread that was killed, PF_EXITING shows within 0.1 ms; state T or t shows only after a
// process_vm_writev call has ended. docs/revocation.md, "Each step and why it is there".
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace aperture::protect {

enum class ThreadState {
  running,  // or unknown: keep waiting
  stopped,  // state T or t: it is not inside a system call
  gone,     // dead, dying, or the number belongs to another thread by now
};

class ThreadProbe {
 public:
  virtual ~ThreadProbe() = default;
  virtual ThreadState look(pid_t pid, pid_t tid, uint64_t start_time) noexcept = 0;
  // Whether all threads of the process have ended, of which one was started at that time: then the
  // kernel has closed what it had open, and with that its drivers have stopped.
  virtual bool is_over(pid_t pid, uint64_t start_time) noexcept = 0;
};

// /proc/PID/task/TID/stat.
class ProcThreadProbe final : public ThreadProbe {
 public:
  ThreadState look(pid_t pid, pid_t tid, uint64_t start_time) noexcept override;
  bool is_over(pid_t pid, uint64_t start_time) noexcept override;
};

// Field 22 of the stat file of a thread, in clock ticks since boot; 0 if there is no such thread or
// /proc cannot be read.
uint64_t thread_start_time(pid_t pid, pid_t tid) noexcept;

}  // namespace aperture::protect
