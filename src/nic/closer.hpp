// Closes descriptors about whose end a stranger decides, on threads that may wait.
//
// A file of a file system that its sender serves is asked once more when it is closed; a TCP socket
// with SO_LINGER waits for what it sent to be taken; and a unix socket takes along what lies in it
// unread, which may be either. The control thread closes none of these. Each user has a thread, as
// long as something of his is there to be closed, so that nobody waits for what another has sent.
// What cannot be closed stays open and is counted, and who has too much of that must not bring
// more. Any thread.
#pragma once

#include <sys/types.h>

#include "base/fork_guard.hpp"

namespace aperture::nic {

// Closing it keeps nobody waiting, and so do the calls that move it: a memory file, a pipe, an
// eventfd.
bool closes_at_once(int fd) noexcept;
void close_aside(UniqueFd fd, uid_t whose) noexcept;
// A unix socket: from now on nothing comes or goes by it, whoever has it besides.
void close_aside(ParentOnlyFd socket, uid_t whose) noexcept;
// So much of that user waits to be closed that no more is taken of him.
bool is_behind_with(uid_t whose) noexcept;

}  // namespace aperture::nic
