// Copying to and from memory that may not be there: an address that is not mapped, or not for
// writing, is an answer and not a signal.
//
// A region may be registered before it is mapped, and unmapped while it is registered, so whoever
// executes a peer's request must find out by trying.
// The copies run in code of known extent; the handler of SIGSEGV and SIGBUS sends a fault in there
// to its exit, and hands every other fault to the handler that was installed before. A handler that
// the application installs later, and that does not hand on, takes this away: then such a fault
// ends the process, as it would anywhere else. Any thread.
#pragma once

#include <cstddef>

namespace aperture {

// Installs the handlers, once in a process. Later calls cost nothing.
void install_fault_guard() noexcept;

// Copies n bytes between places that do not overlap. False: a part of them could not be touched;
// what lies before it may have been copied.
bool guarded_copy(void* to, const void* from, size_t n) noexcept;

// Whether a byte of each page of [at, at + n) can be read, or also written; a write changes
// nothing. n > 0. True says something about now only.
bool guarded_touch(void* at, size_t n, bool for_writing) noexcept;

}  // namespace aperture
