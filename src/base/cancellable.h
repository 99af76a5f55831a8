/* Sleeping where the thread may be cancelled (pthread_cancel(3)), with what is to be undone then.
 *
 * Written in C: each door carries its own unwinder, and a cancellation, which the C library's
 * unwinds, must meet no C++ frame that wants to clean up, or that lets nothing through (noexcept).
 * Whoever calls these, and its callers, have none. pthreads(7), "Cancellation points".
 */
#ifndef APERTURE_BASE_CANCELLABLE_H
#define APERTURE_BASE_CANCELLABLE_H

#include <poll.h>

#ifdef __cplusplus
extern "C" {
#endif

/* poll(2), then undo(with) unless undo is NULL; the latter also when the thread is cancelled. */
int aperture_cancellable_poll(struct pollfd* fds, nfds_t count, int timeout_ms, void (*undo)(void*),
                              void* with);
/* sched_yield(2), which is no cancellation point by itself. */
void aperture_cancellable_yield(void);

#ifdef __cplusplus
}
#endif

#endif
