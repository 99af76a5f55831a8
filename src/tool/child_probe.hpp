// Trying something out in a child process that then exits, so that a crash, a hang or a library's
// constructor cannot harm the command itself.
//
// Only for a process with one thread (the command has no other).
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <functional>
#include <string>

namespace aperture::tool {

struct ProbeAnswer {
  bool answered = false;  // false: the child crashed or did not come back in time
  std::string text;       // what the probe returned, or why there is no answer
};

// While one lives, a child that has ended waits for its parent. Where whoever started the command
// has SIGCHLD ignored, an exec leaves it so, and the kernel reaps children unseen; what the command
// becomes has it as it was.
class ReapableChildren {
 public:
  ReapableChildren() noexcept;
  ~ReapableChildren();
  ReapableChildren(const ReapableChildren&) = delete;
  ReapableChildren& operator=(const ReapableChildren&) = delete;

 private:
  struct sigaction before_ {};
};

// Waits until the child has ended, which ReapableChildren lets it do. False: errno says why not.
bool reap(pid_t child, int& status) noexcept;

// Runs probe in a forked child; its result comes back through a pipe (at most 4 KiB). The child is
// killed and reaped after timeout_ms.
ProbeAnswer probe_in_child(const std::function<std::string()>& probe, int timeout_ms = 5000);

}  // namespace aperture::tool
