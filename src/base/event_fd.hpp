// Eventfds: one descriptor, readable from a signal until it is drained.
//
// libc's read and write are cancellation points: a thread of the application's that is cancelled
// while it is in a call of ours would leave our locks behind. These are none. Any thread.
#pragma once

namespace aperture {

// Makes it readable. Nothing for -1.
void signal_eventfd(int fd) noexcept;
// Takes back all signals so far; only for EFD_NONBLOCK, or one that is known to be readable.
// Nothing for -1.
void drain_eventfd(int fd) noexcept;
// Whether any descriptor is readable now.
bool is_readable(int fd) noexcept;

}  // namespace aperture
