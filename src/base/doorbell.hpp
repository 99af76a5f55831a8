// Doorbells: what makes a sleeping engine of another process look, one pipe an engine.
//
// Whoever holds a descriptor can change O_NONBLOCK for all who share its open file, so no two
// processes share one: the pipe is opened anew for each, through /proc/self/fd, and then neither a
// read nor a write of ours can ever block. An eventfd cannot be opened anew. Every end is open for
// reading and writing: who rings a process that has ended meets no SIGPIPE. The calls are no
// cancellation points (base/event_fd.hpp). Any thread.
#pragma once

#include "base/fd.hpp"

namespace aperture {

// The engine's own end: readable from a ring until it is drained. Errors: no_fds, no_memory, io.
Result<UniqueFd> make_doorbell() noexcept;
// The same doorbell, opened anew: to be given to a peer, or of what a peer gave. Errors: protocol
// (it is no pipe), no_fds, io.
Result<UniqueFd> open_doorbell(int fd) noexcept;

// Nothing for -1. A full pipe has been rung often enough. An eventfd can be rung as well.
void ring_doorbell(int fd) noexcept;
// Takes back all rings so far. True: there was one.
bool drain_doorbell(int fd) noexcept;

}  // namespace aperture
