// The words of InfiniBand queue pairs: types, states, operations, completions, asynchronous events.
//
// The numbers are those of <infiniband/verbs.h>, which the verbs door asserts, so that it need not
// translate them. No state, any thread. (IBTA vol. 1, 10 and 11.)
#pragma once

#include <cstdint>

namespace aperture::ib {

enum class QpType : uint8_t { rc = 2, uc = 3, ud = 4, xrc_send = 9, xrc_recv = 10 };

enum class QpState : uint8_t { reset = 0, init = 1, rtr = 2, rts = 3, sqd = 4, sqe = 5, err = 6 };

enum class SendOp : uint8_t {
  write = 0,
  write_with_imm = 1,
  send = 2,
  send_with_imm = 3,
  read = 4,
  cmp_swap = 5,
  fetch_add = 6,
  local_inv = 7,
  bind_mw = 8,
  send_with_inv = 9,
  flush = 14,
  atomic_write = 15,
};
inline constexpr unsigned kSendOps = 16;  // the numbers between them are other devices'
constexpr bool is_send(SendOp op) noexcept {
  return op == SendOp::send || op == SendOp::send_with_imm || op == SendOp::send_with_inv;
}
constexpr bool is_write(SendOp op) noexcept {
  return op == SendOp::write || op == SendOp::write_with_imm;
}
constexpr bool is_atomic(SendOp op) noexcept {
  return op == SendOp::cmp_swap || op == SendOp::fetch_add;
}
constexpr bool returns_data(SendOp op) noexcept {
  return op == SendOp::read || is_atomic(op);
}
constexpr bool has_imm(SendOp op) noexcept {
  return op == SendOp::send_with_imm || op == SendOp::write_with_imm;
}
// What a fence waits for: whatever is answered with more than an acknowledgement.
constexpr bool is_fenced(SendOp op) noexcept {
  return returns_data(op) || op == SendOp::atomic_write || op == SendOp::flush;
}
// Takes one of the places that max_rd_atomic and max_dest_rd_atomic count. A flush takes none: it
// is repeated as it is.
constexpr bool takes_place(SendOp op) noexcept {
  return returns_data(op) || op == SendOp::atomic_write;
}
// What may have its bytes inline.
constexpr bool may_be_inline(SendOp op) noexcept {
  return is_send(op) || is_write(op) || op == SendOp::atomic_write;
}
// Done at this end, without a peer.
constexpr bool is_local(SendOp op) noexcept {
  return op == SendOp::bind_mw || op == SendOp::local_inv;
}

// Flags of a work request.
inline constexpr uint32_t kFence = 1;
inline constexpr uint32_t kSignaled = 2;
inline constexpr uint32_t kSolicited = 4;
inline constexpr uint32_t kInline = 8;

// How a flush is done (SendWr::swap): its placement types, one at least, and whether it is of all
// that the key reaches.
inline constexpr uint32_t kFlushGlobal = 1;
inline constexpr uint32_t kFlushPersistent = 2;
inline constexpr uint32_t kFlushWhole = 4;

enum class WcStatus : uint8_t {
  success = 0,
  loc_len_err = 1,
  loc_qp_op_err = 2,
  loc_prot_err = 4,
  wr_flush_err = 5,
  mw_bind_err = 6,
  bad_resp_err = 7,
  loc_access_err = 8,
  rem_inv_req_err = 9,
  rem_access_err = 10,
  rem_op_err = 11,
  retry_exc_err = 12,
  rnr_retry_exc_err = 13,
  rem_abort_err = 16,
  fatal_err = 19,
  general_err = 21,
};

enum class WcOpcode : uint8_t {
  send = 0,
  write = 1,
  read = 2,
  cmp_swap = 3,
  fetch_add = 4,
  bind_mw = 5,
  local_inv = 6,
  flush = 8,
  atomic_write = 9,
  recv = 128,
  recv_write_with_imm = 129,
};

// Of the completion of each operation, by its number.
inline constexpr WcOpcode kOpcodeOf[kSendOps] = {
    WcOpcode::write,
    WcOpcode::write,
    WcOpcode::send,
    WcOpcode::send,
    WcOpcode::read,
    WcOpcode::cmp_swap,
    WcOpcode::fetch_add,
    WcOpcode::local_inv,
    WcOpcode::bind_mw,
    WcOpcode::send,
    {},
    {},
    {},
    {},  // of other devices
    WcOpcode::flush,
    WcOpcode::atomic_write,
};
constexpr WcOpcode opcode_of(SendOp op) noexcept {
  return kOpcodeOf[static_cast<unsigned>(op)];
}

inline constexpr uint8_t kWcGrh = 1;
inline constexpr uint8_t kWcWithImm = 2;
inline constexpr uint8_t kWcWithInv = 8;

enum class AsyncEvent : uint8_t {
  cq_err = 0,
  qp_fatal = 1,
  qp_req_err = 2,
  qp_access_err = 3,
  comm_est = 4,
  sq_drained = 5,
  srq_err = 14,
  srq_limit_reached = 15,
  qp_last_wqe_reached = 16,
};

// What peers may do through a queue pair, whatever their key says (qp_access_flags).
inline constexpr uint32_t kAllowRemoteWrite = 2;
inline constexpr uint32_t kAllowRemoteRead = 4;
inline constexpr uint32_t kAllowRemoteAtomic = 8;
inline constexpr uint32_t kAllowFlushGlobal = 256;
inline constexpr uint32_t kAllowFlushPersistent = 512;

// The lkey of null MRs: what is read there is zero, what is written is gone. Keys have numbers from
// 1 on, so no key table has it, and peers never reach it.
inline constexpr uint32_t kNullLkey = 1;

inline constexpr uint32_t kMaxSge = 32;
inline constexpr uint32_t kMaxInlineBytes = 1024;
inline constexpr uint32_t kMaxQueueWrs = 32768;
inline constexpr uint32_t kMaxReadsInFlight = 128;
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 31;

}  // namespace aperture::ib
