// Atomics, atomic writes and flushes: see rc_word_responder.hpp.
#include "ib/rc_word_responder.hpp"

#include <cstring>

#include "base/guarded_copy.hpp"
#include "transport/atomic_op.hpp"

namespace aperture::ib {

using protect::AccessAsk;
using protect::Denial;
using protect::Rights;
using transport::AtomicOp;
using transport::AtomicType;
using transport::ClaimVerdict;
using wire::RcOp;

// Calls fn(std::byte* target) if the word that is asked for is one that may be reached. False: that
// was refused, and there is nothing more to do about the request.
template <typename Fn>
bool RcWordResponder::work_on_word(const AccessAsk& ask, Fn&& fn) noexcept {
  // the number alone; whether it may be reached is for the key to say
  if (ask.addr.unchecked() % sizeof(uint64_t) != 0) {
    execution_.refuse(WcStatus::rem_inv_req_err, &ask, Denial::misaligned);
    return false;
  }
  const protect::Checked checked = q_.spec_.keys->access().check(ask, &execution_.access().hint());
  if (!checked) {
    execution_.refuse(WcStatus::rem_access_err, &ask, checked.denial());
    return false;
  }
  const bool done = checked.grant().each_piece([&](std::byte* target, size_t n) {
    // the range of an offset-addressed region need not begin where its addresses say
    if (n != sizeof(uint64_t) || reinterpret_cast<uintptr_t>(target) % sizeof(uint64_t) != 0 ||
        !guarded_touch(target, n, true)) {
      return false;
    }
    fn(target);
    return true;
  });
  if (!done) execution_.refuse(WcStatus::rem_access_err, &ask, Denial::not_backed);
  return done;
}

bool RcWordResponder::on_atomic() noexcept {
  const auto f = wire::load_rc<wire::RcAtomicFields>(q_.lane_->request_rx.cells.body());
  const AccessAsk ask = execution_.ask(f.rkey, f.addr, sizeof(uint64_t), Rights::remote_atomic);
  uint32_t is_swap = 0;
  if (!q_.is_reliable() || !q_.allows(kAllowRemoteAtomic) || q_.attr_.max_dest_rd_atomic == 0 ||
      !f.is_swap.bounded(1, is_swap)) {
    return execution_.refuse(WcStatus::rem_inv_req_err, &ask, Denial::none);
  }
  if (q_.lane_.may_execute() == ClaimVerdict::wait) return false;
  std::byte former[sizeof(uint64_t)];
  std::byte compare_add[sizeof(uint64_t)];
  std::byte swap[sizeof(uint64_t)];
  // operands are values of the peer's, for memory that it may write
  std::memcpy(compare_add, &f.compare_add, sizeof compare_add);
  std::memcpy(swap, &f.swap, sizeof swap);
  const bool done = work_on_word(ask, [&](std::byte* target) {
    transport::execute_atomic(is_swap != 0 ? AtomicOp::cswap : AtomicOp::sum, AtomicType::uint64,
                              target, is_swap != 0 ? swap : compare_add,
                              is_swap != 0 ? compare_add : nullptr, former, 1);
  });
  if (!done) return true;
  ring::BodyWriter(q_.lane_->response_tx.cells, wire::rc_payload_offset(RcOp::read_inline, 0))
      .copy_in(former, sizeof former);
  execution_.respond({static_cast<uint8_t>(RcOp::read_inline), 0, sizeof former, 0},
                     wire::RcAnswer{q_.lane_->request_rx.cells.pos()});
  return true;
}

// A write of one word that nobody sees half of, after all that was written before. It takes a place
// among the reads, and needs no more right than a write.
bool RcWordResponder::on_atomic_write() noexcept {
  const auto f = wire::load_rc<wire::RcAtomicWriteFields>(q_.lane_->request_rx.cells.body());
  const AccessAsk ask = execution_.ask(f.rkey, f.addr, sizeof(uint64_t), Rights::remote_write);
  if (!q_.is_reliable() || !q_.allows(kAllowRemoteWrite) || q_.attr_.max_dest_rd_atomic == 0) {
    return execution_.refuse(WcStatus::rem_inv_req_err, &ask, Denial::none);
  }
  if (q_.lane_.may_execute() == ClaimVerdict::wait) return false;
  std::byte value[sizeof(uint64_t)];
  std::memcpy(value, &f.value, sizeof value);  // the peer's, for memory that it may write
  work_on_word(ask, [&](std::byte* target) {
    transport::execute_atomic(AtomicOp::write, AtomicType::uint64, target, value, nullptr, nullptr,
                              1);
  });
  return true;
}

// Requests execute in order, and what peers copy by themselves is in place before they claim or
// post anything behind it: what was written before is visible already, and what is left of a flush
// is to say whether the key allows it, and the file.
bool RcWordResponder::on_flush() noexcept {
  const auto f = wire::load_rc<wire::RcFlushFields>(q_.lane_->request_rx.cells.body());
  constexpr uint32_t kTypes = kFlushGlobal | kFlushPersistent;
  uint32_t how = 0;
  const bool is_sound = f.how.bounded(kTypes | kFlushWhole, how) && (how & kTypes) != 0;
  const bool persists = (how & kFlushPersistent) != 0;
  AccessAsk ask = execution_.ask(f.rkey, f.addr, f.len.unchecked(), Rights::none);
  uint32_t allowed = 0;
  if ((how & kFlushGlobal) != 0) {
    ask.need |= Rights::flush_global;
    allowed |= kAllowFlushGlobal;
  }
  if (persists) {
    ask.need |= Rights::flush_persistent;
    allowed |= kAllowFlushPersistent;
  }
  if (!q_.is_reliable() || !is_sound || !q_.allows(allowed)) {
    return execution_.refuse(WcStatus::rem_inv_req_err, &ask, Denial::none);
  }
  if (q_.lane_.may_execute() == ClaimVerdict::wait) return false;
  const protect::AccessCheck& checks = q_.spec_.keys->access();
  Denial denial = (how & kFlushWhole) != 0 ? checks.widen(ask) : Denial::none;
  if (denial == Denial::none) denial = persists ? checks.commit(ask) : checks.check(ask).denial();
  return denial == Denial::none || execution_.refuse(WcStatus::rem_access_err, &ask, denial);
}

}  // namespace aperture::ib
