// Putting away what a killed side left in /dev/shm.
//
// libfabric's shm provider names its regions after the process; a side that had to be killed cannot
// remove them itself. Only names that hold exactly the given process id, and files of our own user,
// are touched.
#pragma once

#include <sys/types.h>

namespace aperture::bench {

void remove_leftovers(pid_t pid) noexcept;

}  // namespace aperture::bench
