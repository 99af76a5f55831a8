// Whether a call that a signal has interrupted goes on, as the kernel's own calls do: signal(7),
// "Interruption of system calls and library functions by signal handlers". For waits that stand for
// a read(2), which goes on after a handler with SA_RESTART, and sleep in poll(2), which never does.
//
// Which signal it was, nobody says afterwards. So the answer is yes where each that may have come
// has SA_RESTART, and no where one has not: a program with such a handler counts on EINTR, and one
// without has never seen it. No state; any thread.
#pragma once

namespace aperture {

// What comes of a wait whose poll(2) has failed with that errno: 0 if it goes on, or the errno.
// Asked by the thread that has waited.
int errno_of_wait(int error) noexcept;

}  // namespace aperture
