/* A sleep in which the thread may be cancelled, with what is to be undone then.
 *
 * Written in C: this library carries its own unwinder, and a cancellation, which the C library's
 * unwinds, must meet no C++ frame that wants to clean up. Whoever calls it, and its callers, have
 * none. pthreads(7), "Cancellation points".
 */
#ifndef APERTURE_VERBS_CANCELLABLE_H
#define APERTURE_VERBS_CANCELLABLE_H

#include <poll.h>

#ifdef __cplusplus
extern "C" {
#endif

/* poll(2) without a deadline, then undo(with); the latter also when the thread is cancelled. */
int aperture_cancellable_poll(struct pollfd* fds, nfds_t count, void (*undo)(void*), void* with);

#ifdef __cplusplus
}
#endif

#endif
