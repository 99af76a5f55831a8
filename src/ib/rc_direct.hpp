// RDMA without the target's help (process_vm_writev, process_vm_readv), when nothing of ours stands
// before it in the ring and the target is away; and claiming the head of the ring from a target
// that has stopped. ARCHITECTURE.md says when; transport/target.hpp decides who is away.
//
// The ordering rule: a direct access begins when every earlier request is executed, and that was
// told. What would be refused is left to its owner, whose queue pair has to know and to say why. So
// is what faults on its side; a fault in a buffer of ours fails the WQE. Guarded by the engine's
// lock. A part of RcQp, see rc_core.hpp.
#pragma once

#include "ib/rc_answers.hpp"

namespace aperture::ib {

class RcDirect {
 public:
  RcDirect(RcCore& core, RcAnswers& answers) noexcept : q_(core), answers_(answers) {}

  // The fast path: all of a read or a write that is one piece. False: nothing is noted, and it goes
  // the slow path, which finds out why.
  bool post_fast(const SendWr& wr) noexcept;
  bool may_go(const Wqe& w) noexcept;
  enum class Went : uint8_t {
    over,    // well or badly
    notice,  // the bytes are in place, and their immediate data are to follow
    later,   // goes on with the next poll
    ring,    // the rest is for its owner
  };
  // It may be that the first pieces of a write went through the ring and are executed; should the
  // rest have to go there too, it goes on where it was.
  Went put(uint32_t at) noexcept;
  // Asked when not all of the ring is done: has the first request that is not executed stood for
  // too long? An RDMA of ours is then done directly if the owner is not at it; for all else its
  // doorbell is rung.
  void claim_stalled_head() noexcept;
  // It does that RDMA soon, unless the owner does.
  bool may_claim_head() const noexcept;

 private:
  // What a copy came to. Neither done nor failed: it is for its owner.
  struct Copied {
    bool done = false;
    WcStatus failed = WcStatus::success;
    uint64_t bytes = 0;
  };
  Copied copy(uint32_t at, uint64_t offset, uint64_t n) noexcept;
  Copied came_to(const protect::DirectResult& r) noexcept;
  Copied copy_by_stand_in(uint32_t at, uint64_t offset, uint64_t n,
                          const protect::Grant& in_device) noexcept;
  protect::DirectResult access(SendOp op, protect::DirectAsk& ask) noexcept;
  bool would_be_refused(const Wqe& w) const noexcept;
  bool may_claim(const RcPiece& piece) noexcept;
  bool copy_claimed(const RcPiece& piece) noexcept;

  RcCore& q_;
  RcAnswers& answers_;
};

}  // namespace aperture::ib
