/* Sleeping where the thread may be cancelled: see cancellable.h. */
#include "base/cancellable.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>

int aperture_cancellable_poll(struct pollfd* fds, nfds_t count, int timeout_ms, void (*undo)(void*),
                              void* with) {
  if (undo == NULL) return poll(fds, count, timeout_ms);
  int ready = 0;
  int error = 0;
  pthread_cleanup_push(undo, with);
  ready = poll(fds, count, timeout_ms);
  error = errno;
  pthread_cleanup_pop(1);
  errno = error;
  return ready;
}

void aperture_cancellable_yield(void) {
  pthread_testcancel();
  sched_yield();
}
