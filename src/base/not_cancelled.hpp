// A section in which the thread cannot be cancelled (pthread_cancel(3)): at a call of the C library
// that is a cancellation point it would leave our locks behind. Cancellation is acted upon after
// it. Any thread.
#pragma once

#include <pthread.h>

namespace aperture {

class NotCancelled {
 public:
  NotCancelled() noexcept { ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { ::pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;
  NotCancelled& operator=(const NotCancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace aperture
