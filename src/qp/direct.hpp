// Remote writes and reads directly (transport/one_sided.hpp): when nothing of ours that matters
// stands before them in the ring and the target does not poll; and claiming the head of the ring
// from a target that has stopped.
//
// What the owner has to look at itself goes through the ring: what it asks for, what it does not
// permit, and what faults on its side. A fault on our side is the end of the operation, with
// Errc::bad_buffer. Guarded by the engine's lock. ARCHITECTURE.md; docs/revocation.md.
#pragma once

#include "qp/responses.hpp"

namespace aperture::qp {

class DirectRma {
 public:
  DirectRma(QpCore& core, Pending& pending, Responses& responses) noexcept
      : core_(core), pending_(pending), responses_(responses) {}

  // An access to that key is likely: what it looks at first is fetched meanwhile.
  void foresee(uint64_t key) const noexcept {
    const transport::OneSided& path = core_.one_sided;
    if (path.is_allowed() && !core_.target.surely_polls()) path.foresee(core_.shown(key).key);
  }
  // The operation may go on directly now.
  bool may_go(Wqe& wqe) noexcept;
  // True: it is over, well or badly. False: more is to be done in a later poll, or by the owner.
  bool put(Wqe& wqe) noexcept;
  // If the first request that is not executed has stood there for too long: does it directly, or
  // wakes its owner.
  void claim_stalled_head() noexcept;
  // It does so soon, unless the owner executes that request first.
  bool may_claim_head() const noexcept;
  // That one, which has found no room in the ring, goes directly once there is time for it.
  bool may_go_soon(const Wqe& wqe) const noexcept {
    return wqe.kind != WqeKind::send && !is_atomic(wqe.kind) && !wqe.through_ring &&
           core_.one_sided.is_possible(permit_for(wqe)) &&
           pending_.done_through() == core_.lane->request_tx.cells.pos();
  }

 private:
  // What became of one chunk: more is to be done, nothing is, or it is for the owner.
  enum class Step : uint8_t { copied, over, for_owner };
  Step copy(Wqe& wqe, uint8_t range_at, const RemoteRange& part, uint64_t wqe_offset,
            uint64_t& bytes) noexcept;
  bool is_refused(Wqe& wqe) noexcept;
  protect::Denial would_refuse(const Wqe& wqe, const RemoteRange& range) const noexcept;
  // Asked of each piece that is to be claimed with those before it.
  bool may_claim(const Piece& piece) const noexcept {
    return !is_for_owner(piece) && core_.one_sided.is_possible(permit_for(piece));
  }
  bool copy_claimed(Piece& piece) noexcept;
  bool copy_claimed(Wqe& wqe, const Piece& piece) noexcept;
  bool copy_claimed_line(Piece& line) noexcept;
  static bool has_failed(const Wqe& wqe) noexcept {
    return wqe.denial != protect::Denial::none || wqe.error != Errc::ok;
  }
  template <typename Operation>
  static uint16_t permit_for(const Operation& what) noexcept {
    return what.kind == WqeKind::read ? transport::kPermitReads : transport::kPermitWrites;
  }

  QpCore& core_;
  Pending& pending_;
  Responses& responses_;
};

}  // namespace aperture::qp
