// Trying something out in a child process that then exits, so that a crash, a hang or a library's
// constructor cannot harm the command itself.
//
// Only for a process with one thread (the command has no other).
#pragma once

#include <functional>
#include <string>

namespace aperture::tool {

struct ProbeAnswer {
  bool answered = false;  // false: the child crashed or did not come back in time
  std::string text;       // what the probe returned, or why there is no answer
};

// Runs probe in a forked child; its result comes back through a pipe (at most 4 KiB). The child is
// killed and reaped after timeout_ms.
ProbeAnswer probe_in_child(const std::function<std::string()>& probe, int timeout_ms = 5000);

}  // namespace aperture::tool
