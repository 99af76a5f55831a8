// For the message of a failure: what a process that does not answer is in.
#pragma once

#include <sys/types.h>

#include <string>

namespace aperture::doors {

// For each thread: its name and state, the system call that it waits in, where that is in the
// kernel, and what lies on its stack and looks like code, as FILE+OFFSET for addr2line, the
// innermost first (some of that is left from calls that have returned). Less where the kernel does
// not let us look.
std::string whereabouts(pid_t pid);

}  // namespace aperture::doors
