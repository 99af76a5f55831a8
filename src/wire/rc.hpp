// What connected queue pairs of the verbs door (RC, UC, XRC) write into the cells of a lane.
//
// A message begins in a cell's body (ring/cell.hpp); `bytes` below are offsets in the body. It is a
// head, the operation's fixed fields, 4 bytes of a receive queue's number if flagged (XRC), and
// inline payload, run on over as many cells as it takes. All integers little-endian, unaligned.
//
//   0      op        u8
//   1      flags     u8   kRcImm, kRcInv, kRcSolicited, kRcFirst, kRcLast, kRcXrc
//   2      len       u16  inline payload in bytes (or a small code, see the operation)
//   4      imm       u32  immediate data as the application gave it, or the rkey to invalidate; or
//                         a code, see the operation
//   8      fields of the operation
//
// The number of cells follows from op, flags and len alone, so the two sides cannot disagree, and a
// hostile peer can make us skip cells of its own ring at worst. Everything decoded is a peer's
// word: lengths and places are checked where they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ring/cell.hpp"

namespace aperture::wire {

enum class RcOp : uint8_t {
  none = 0,
  // requests
  send = 1,         // inline payload
  send_bytes = 2,   // one piece of a message, in the request byte ring
  write = 3,        // RDMA write, inline payload
  write_bytes = 4,  // one piece of an RDMA write, in the request byte ring
  read = 5,
  atomic = 6,
  notice = 7,  // of a write with immediate data whose bytes moved otherwise
  // responses
  nak = 16,          // the request at that position was refused; len = status, imm = denial
  rnr = 17,          // the request at that position waits for a receive; imm = timer code
  read_inline = 18,  // result of a small read or an atomic
  read_data = 19,    // piece of such a result in the response byte ring
};

inline constexpr uint8_t kRcImm = 1;
inline constexpr uint8_t kRcInv = 2;
inline constexpr uint8_t kRcSolicited = 4;
inline constexpr uint8_t kRcFirst = 8;  // first piece of a message
inline constexpr uint8_t kRcLast = 16;  // last piece of a message
inline constexpr uint8_t kRcXrc = 32;   // the number of a shared receive queue is there

// In the word `notices` of a request channel: what its consumer lets the peer do by its own hand.
// An empty word allows nothing.
inline constexpr uint32_t kRcDirectReads = 1;
inline constexpr uint32_t kRcDirectWrites = 2;

inline constexpr size_t kRcHeadBytes = 8;
inline constexpr uint16_t kRcMaxInline = 256;

struct RcHead {
  uint8_t op;
  uint8_t flags;
  uint16_t len;
  uint32_t imm;
};
static_assert(sizeof(RcHead) == kRcHeadBytes);

struct RcSendBytes {  // piece [offset, offset + len) of `total`
  uint64_t byte_pos;
  uint32_t len;
  uint32_t offset;
  uint32_t total;
  uint32_t reserved;
};
struct RcWrite {
  uint32_t addr_lo;  // of the remote range, split so that nothing is padded
  uint32_t addr_hi;
  uint32_t rkey;

  uint64_t addr() const noexcept { return uint64_t{addr_hi} << 32 | addr_lo; }
};
static_assert(sizeof(RcWrite) == 12);
struct RcWriteBytes {  // piece [offset, offset + len) of [addr, addr + total)
  uint64_t addr;
  uint64_t byte_pos;
  uint32_t rkey;
  uint32_t len;
  uint32_t offset;
  uint32_t total;
};
struct RcRead {
  uint64_t addr;
  uint32_t rkey;
  uint32_t len;
};
struct RcAtomic {
  uint64_t addr;
  uint32_t rkey;
  uint32_t is_swap;  // 1: compare and swap, 0: fetch and add
  uint64_t compare_add;
  uint64_t swap;
};
struct RcNotice {
  uint64_t len;  // bytes that were written
};
struct RcAnswer {  // of nak, rnr, read_inline
  uint64_t pos;    // of the request
};
struct RcReadData {
  uint64_t pos;
  uint64_t byte_pos;
  uint32_t offset;
  uint32_t len;
};

// Body bytes of the fixed fields, or SIZE_MAX for an operation that does not exist.
constexpr size_t rc_field_bytes(RcOp op) noexcept {
  switch (op) {
    case RcOp::send: return 0;
    case RcOp::send_bytes: return sizeof(RcSendBytes);
    case RcOp::write: return sizeof(RcWrite);
    case RcOp::write_bytes: return sizeof(RcWriteBytes);
    case RcOp::read: return sizeof(RcRead);
    case RcOp::atomic: return sizeof(RcAtomic);
    case RcOp::notice: return sizeof(RcNotice);
    case RcOp::nak:
    case RcOp::rnr:
    case RcOp::read_inline: return sizeof(RcAnswer);
    case RcOp::read_data: return sizeof(RcReadData);
    case RcOp::none: break;
  }
  return SIZE_MAX;
}

constexpr bool rc_has_payload(RcOp op) noexcept {
  return op == RcOp::send || op == RcOp::write || op == RcOp::read_inline;
}

// Where the inline payload begins in the body.
constexpr size_t rc_payload_offset(RcOp op, uint8_t flags) noexcept {
  return kRcHeadBytes + rc_field_bytes(op) + ((flags & kRcXrc) != 0 ? 4 : 0);
}

// Cells that a message takes; 0 for a head that no sound peer writes.
constexpr uint32_t rc_cells_of(RcOp op, uint8_t flags, uint16_t len) noexcept {
  if (rc_field_bytes(op) == SIZE_MAX) return 0;
  size_t bytes = rc_payload_offset(op, flags);
  if (rc_has_payload(op)) {
    if (len > kRcMaxInline) return 0;
    bytes += len;
  }
  return ring::cells_for(bytes);
}
inline constexpr uint32_t kRcMaxCells = rc_cells_of(RcOp::write, kRcXrc, kRcMaxInline);

inline RcHead load_rc_head(const std::byte* body) noexcept {
  RcHead h;
  std::memcpy(&h, body, sizeof h);
  return h;
}
// Fixed fields of every operation, and a queue's number behind them, lie in the first cell.
template <typename Fields>
inline Fields load_rc(const std::byte* body) noexcept {
  static_assert(kRcHeadBytes + sizeof(Fields) + 4 <= ring::kBodyBytes);
  Fields f;
  std::memcpy(&f, body + kRcHeadBytes, sizeof f);
  return f;
}
template <typename Fields>
inline void store_rc(std::byte* body, const RcHead& head, const Fields& f) noexcept {
  static_assert(kRcHeadBytes + sizeof(Fields) + 4 <= ring::kBodyBytes);
  std::memcpy(body, &head, sizeof head);
  std::memcpy(body + kRcHeadBytes, &f, sizeof f);
}
// Without the flag nobody reads it; it may be stored all the same where no payload lies behind.
inline void store_srq_number(std::byte* body, RcOp op, uint32_t number) noexcept {
  std::memcpy(body + kRcHeadBytes + rc_field_bytes(op), &number, sizeof number);
}
inline uint32_t load_srq_number(const std::byte* body, RcOp op) noexcept {
  uint32_t number;
  std::memcpy(&number, body + kRcHeadBytes + rc_field_bytes(op), sizeof number);
  return number;
}

}  // namespace aperture::wire
