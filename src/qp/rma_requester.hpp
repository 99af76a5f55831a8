// Remote writes and reads of ours: directly where that may be (direct.hpp), else through the
// request ring, inline or in pieces; and the notice by which the owner hears of what it has not
// executed.
//
// Every piece is remembered until it is executed, so that it can be claimed. With several ranges
// all are checked before the first byte moves: one that is bad changes nothing. A write that is in
// a file when it completes (man 3 fi_mr, FI_RMA_PMEM; FI_COMMIT_COMPLETE) goes through the ring
// whatever the link; behind its pieces come requests that let the owner pass each range to the
// file, and behind those what tells the owner of it.
//
// Notices (man 3 fi_rma, FI_REMOTE_CQ_DATA; man 3 fi_getinfo, FI_RMA_EVENT): what the owner
// executes it sees. What was copied directly is told with a notice through the ring, published
// after the copying call has returned, so whoever reads the event finds the bytes. A request that
// was claimed still lies in the ring: the owner tells of it as it steps over it. Only endpoints
// that asked for events, and writes with immediate data, pay for any of this. Guarded by the
// engine's lock.
#pragma once

#include "qp/direct.hpp"

namespace aperture::qp {

class RmaRequester {
 public:
  RmaRequester(QpCore& core, Pending& pending, Responses& responses, DirectRma& direct) noexcept
      : core_(core), pending_(pending), responses_(responses), direct_(direct) {}

  // Errors: again, no_key.
  Status post(WqeKind kind, const RmaWr& wr) noexcept;
  // True: everything of it is in the ring, or it is over.
  bool put(Wqe& wqe) noexcept;

 private:
  bool put_through_ring(Wqe& wqe) noexcept;
  template <typename Fields>
  void put_request(Wqe& wqe, const wire::Head& head, const Fields& fields,
                   uint64_t secret) noexcept;
  bool put_checks(Wqe& wqe) noexcept;
  bool put_commits(Wqe& wqe) noexcept;
  bool put_write_inline(Wqe& wqe) noexcept;
  bool put_write_pieces(Wqe& wqe) noexcept;
  bool put_reads(Wqe& wqe) noexcept;
  bool put_notice(Wqe& wqe) noexcept;

  QpCore& core_;
  Pending& pending_;
  Responses& responses_;
  DirectRma& direct_;
};

}  // namespace aperture::qp
