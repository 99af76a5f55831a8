// Where in a program an address of code is, in words for explanations: function, file and line
// where the program has debug information, else the file it was loaded from and the offset.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "protect/wording.hpp"

namespace aperture::protect {

// "in main at program.c:42 (0x55d0c0de1234)", or "at 0x55d0c0de1234 (program+0x1234)"; "at a place
// that was not recorded" for 0. The address is a return address in process `pid`, which must be
// one of ours that may be looked at. An address in one of the door's inline functions is told as
// the place that it was called from. Slow the first time (milliseconds: it reads debug
// information), remembered afterwards for every process of that program. Other processes are looked
// into for a sixteenth of the time at most, and a second in advance: beyond that their addresses
// are told as numbers. Any thread; may throw bad_alloc.
std::string describe_code(pid_t pid, uint64_t address, const Wording& door);

}  // namespace aperture::protect
