/* A sleep in which the thread may be cancelled: see cancellable.h. */
#include "verbs/cancellable.h"

#include <errno.h>
#include <pthread.h>

int aperture_cancellable_poll(struct pollfd* fds, nfds_t count, void (*undo)(void*), void* with) {
  int ready = 0;
  int error = 0;
  pthread_cleanup_push(undo, with);
  ready = poll(fds, count, -1);
  error = errno;
  pthread_cleanup_pop(1);
  errno = error;
  return ready;
}
