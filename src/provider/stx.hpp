// fid_stx: shared transmit contexts. man 3 fi_endpoint, "SHARED CONTEXTS".
//
// What endpoints share is the queue of operations that are posted and not done: its memory, and its
// bound. Nothing is posted to a context itself, and completions go where each endpoint has them.
// The queue is guarded by the engine's lock, all else serialised by the application.
#pragma once

#include <rdma/fi_endpoint.h>

#include "provider/domain.hpp"
#include "qp/port.hpp"

namespace aperture::provider {

struct Stx {
  explicit Stx(size_t size, size_t planned_atomics) : queue(size, planned_atomics) {
    queue.size = size;
  }
  fid_stx fid{};
  Domain* domain = nullptr;
  // Of which each endpoint's are a subset.
  uint64_t caps = 0;
  size_t inject_size = 0;
  size_t iov_limit = 0;
  size_t rma_iov_limit = 0;
  qp::TransmitQueue queue;
  Uses uses;  // endpoints bound to it
};

}  // namespace aperture::provider
