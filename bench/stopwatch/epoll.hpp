// Sleeping until one of some descriptors can be read, as event-driven programs do: epoll(7).
//
// One thread. Level-triggered: what is not taken is told again.
#pragma once

#include <sys/epoll.h>

#include <cstdint>

#include "base/fd.hpp"

namespace aperture::bench {

class Epoll {
 public:
  Epoll();

  // tag: what wait() calls it.
  void add(int fd, uint64_t tag);

  // Sleeps until something can be read, and calls ready(tag) for each. Throws Failure when nothing
  // comes for as long as an operation may take.
  template <typename Ready>
  void wait(const char* awaited, Ready&& ready) {
    epoll_event events[kBatch];
    const int n = sleep(events, awaited);
    for (int i = 0; i < n; i++) ready(events[i].data.u64);
  }

 private:
  static constexpr int kBatch = 64;

  int sleep(epoll_event (&events)[kBatch], const char* awaited);

  UniqueFd fd_;
};

// Makes reads of it answer EAGAIN instead of sleeping.
void make_nonblocking(int fd);

}  // namespace aperture::bench
