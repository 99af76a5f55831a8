// Atomics of ours (man 3 fi_atomic): one request each, in order with all others, and for a fetching
// or comparing one the former values in the response ring. Always executed by the owner, whatever
// the link: so they are atomic with one another and with the owner's own CPU atomics
// (atomic_responder.hpp). Guarded by the engine's lock.
#pragma once

#include "qp/responses.hpp"

namespace aperture::qp {

class AtomicRequester {
 public:
  AtomicRequester(QpCore& core, Pending& pending, Responses& responses) noexcept
      : core_(core), pending_(pending), responses_(responses) {}

  // Errors: again, no_key.
  Status post(const AtomicWr& wr) noexcept;
  // One that has waited. True: it is in the ring, or over.
  bool put(Wqe& wqe) noexcept;

 private:
  bool put(const AtomicWr& wr, Wqe& wqe) noexcept;
  bool put_in_cells(const AtomicWr& wr, Wqe& wqe) noexcept;
  bool put_in_bytes(const AtomicWr& wr, Wqe& wqe) noexcept;
  bool keep(const AtomicWr& wr, Wqe& wqe) noexcept;

  QpCore& core_;
  Pending& pending_;
  Responses& responses_;
};

}  // namespace aperture::qp
