// Whether one process may read the memory of another that is not its child: what the peers of a
// job are to each other, and what Yama's ptrace_scope 1 forbids.
#pragma once

namespace aperture::tool {

// Forks two children, has one read a word of the other with process_vm_readv, and reaps both.
// Returns 0 when the word came back right, else the errno. allow: the one that is read permits it
// to everybody of its user, as APERTURE_CMA=allow has our processes do.
int try_sibling_read(bool allow);

}  // namespace aperture::tool
