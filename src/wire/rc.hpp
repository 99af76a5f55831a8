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
// hostile peer can make us skip cells of its own ring at worst.
//
// The layouts are templates: what we store holds plain numbers (RcWrite), what is loaded holds each
// number of the peer's as Wild (load_rc<RcWriteFields>), usable only by bounding it or through
// protect/. No state, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/copy.hpp"
#include "base/wild.hpp"
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
  notice = 7,        // of a write with immediate data whose bytes moved otherwise
  wake = 8,          // open our accessor slots, which you have made dormant
  atomic_write = 9,  // 8 bytes, as one
  flush = 10,        // what was written there is placed, or persistent, before this is executed
  // responses
  nak = 16,          // the request at that position was refused; len = status, imm = denial
  rnr = 17,          // the request at that position waits for a receive; imm = timer code
  read_inline = 18,  // result of a small read or an atomic
  read_data = 19,    // piece of such a result in the response byte ring
  permit = 20,       // what the peer may access directly: pos = gate number, len = flags
};

inline constexpr uint8_t kRcImm = 1;
inline constexpr uint8_t kRcInv = 2;
inline constexpr uint8_t kRcSolicited = 4;
inline constexpr uint8_t kRcFirst = 8;  // first piece of a message
inline constexpr uint8_t kRcLast = 16;  // last piece of a message
inline constexpr uint8_t kRcXrc = 32;   // the number of a shared receive queue is there
inline constexpr uint8_t kRcRoom = 64;  // of a nak: the message was too long for a receive of imm

inline constexpr size_t kRcHeadBytes = 8;
inline constexpr uint16_t kRcMaxInline = 256;

// How a layout holds its numbers when we write it; Wild is how it holds them when it was read.
template <typename T>
using Plain = T;

template <template <typename> class As>
struct RcHeadFields {
  uint8_t op;  // read_rc_head() knows which there are
  uint8_t flags;
  As<uint16_t> len;
  As<uint32_t> imm;
};
using RcHead = RcHeadFields<Plain>;
static_assert(sizeof(uint64_t) == kRcHeadBytes);

template <template <typename> class As>
struct RcSendBytesFields {  // piece [offset, offset + len) of `total`
  As<uint64_t> byte_pos;
  As<uint32_t> len;
  As<uint32_t> offset;
  As<uint32_t> total;
  uint32_t reserved;
};
using RcSendBytes = RcSendBytesFields<Plain>;
template <template <typename> class As>
struct RcWriteFields {
  As<uint32_t> addr_lo;  // of the remote range, split so that nothing is padded
  As<uint32_t> addr_hi;
  As<uint32_t> rkey;
};
using RcWrite = RcWriteFields<Plain>;
static_assert(sizeof(RcWrite) == 12);
template <template <typename> class As>
struct RcWriteBytesFields {  // piece [offset, offset + len) of [addr, addr + total)
  As<uint64_t> addr;
  As<uint64_t> byte_pos;
  As<uint32_t> rkey;
  As<uint32_t> len;
  As<uint32_t> offset;
  As<uint32_t> total;
};
using RcWriteBytes = RcWriteBytesFields<Plain>;
template <template <typename> class As>
struct RcReadFields {  // piece [offset, offset + len) of [addr, addr + total)
  As<uint64_t> addr;
  As<uint32_t> rkey;
  As<uint32_t> len;
  As<uint32_t> offset;
  As<uint32_t> total;
};
using RcRead = RcReadFields<Plain>;
template <template <typename> class As>
struct RcAtomicFields {
  As<uint64_t> addr;
  As<uint32_t> rkey;
  As<uint32_t> is_swap;  // 1: compare and swap, 0: fetch and add
  As<uint64_t> compare_add;
  As<uint64_t> swap;
};
using RcAtomic = RcAtomicFields<Plain>;
template <template <typename> class As>
struct RcAtomicWriteFields {
  As<uint64_t> addr;
  As<uint64_t> value;
  As<uint32_t> rkey;
  uint32_t reserved;
};
using RcAtomicWrite = RcAtomicWriteFields<Plain>;
template <template <typename> class As>
struct RcFlushFields {
  As<uint64_t> addr;
  As<uint64_t> len;
  As<uint32_t> rkey;
  As<uint32_t> how;  // ib::kFlush...
};
using RcFlush = RcFlushFields<Plain>;
template <template <typename> class As>
struct RcNoticeFields {
  As<uint64_t> len;  // bytes that were written
};
using RcNotice = RcNoticeFields<Plain>;
template <template <typename> class As>
struct RcAnswerFields {  // of nak, rnr, read_inline, permit
  As<uint64_t> pos;      // of the request
};
using RcAnswer = RcAnswerFields<Plain>;
template <template <typename> class As>
struct RcReadDataFields {
  As<uint64_t> pos;
  As<uint64_t> byte_pos;
  As<uint32_t> offset;
  As<uint32_t> len;
};
using RcReadData = RcReadDataFields<Plain>;

// Body bytes of the fixed fields, or SIZE_MAX for an operation that does not exist.
constexpr size_t rc_field_bytes(RcOp op) noexcept {
  switch (op) {
    case RcOp::send:
    case RcOp::wake: return 0;
    case RcOp::send_bytes: return sizeof(RcSendBytes);
    case RcOp::write: return sizeof(RcWrite);
    case RcOp::write_bytes: return sizeof(RcWriteBytes);
    case RcOp::read: return sizeof(RcRead);
    case RcOp::atomic: return sizeof(RcAtomic);
    case RcOp::atomic_write: return sizeof(RcAtomicWrite);
    case RcOp::flush: return sizeof(RcFlush);
    case RcOp::notice: return sizeof(RcNotice);
    case RcOp::nak:
    case RcOp::rnr:
    case RcOp::read_inline:
    case RcOp::permit: return sizeof(RcAnswer);
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

// Of the two that have a fast path.
inline constexpr size_t kRcSendOffset = rc_payload_offset(RcOp::send, 0);
inline constexpr size_t kRcWriteOffset = rc_payload_offset(RcOp::write, 0);

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

// A head goes from and to its cell in one register: fields that are stored one by one and then
// loaded together make a processor wait until the stores have left it, some 4 ns each time.
// Any head, as it is: for who steps over cells, and for the fast path, which bounds it by itself.
inline RcHeadFields<Wild> load_rc_head(const std::byte* body) noexcept {
  uint64_t all;
  std::memcpy(&all, body, sizeof all);
  all = copied_once(all);
  return {static_cast<uint8_t>(all), static_cast<uint8_t>(all >> 8),
          Wild<uint16_t>(static_cast<uint16_t>(all >> 16)),
          Wild<uint32_t>(static_cast<uint32_t>(all >> 32))};
}
// The head of a message that a sound peer might have written.
struct RcMessage {
  RcOp op = RcOp::none;
  uint8_t flags = 0;
  uint16_t len = 0;  // of the inline payload, at most kRcMaxInline; 0 where there is none
  uint32_t n_cells = 0;
  Wild<uint16_t> code;  // what stands in place of the length where there is no payload
  Wild<uint32_t> imm;

  bool has(uint8_t flag) const noexcept { return (flags & flag) != 0; }
};
// False: no sound peer writes that.
inline bool read_rc_head(const std::byte* body, RcMessage& out) noexcept {
  const RcHeadFields<Wild> h = load_rc_head(body);
  const auto op = static_cast<RcOp>(h.op);
  uint16_t len = 0;
  if (rc_has_payload(op) && !h.len.bounded(kRcMaxInline, len)) return false;
  out = {op, h.flags, len, rc_cells_of(op, h.flags, len), h.len, h.imm};
  return out.n_cells != 0;
}

// Fixed fields of every operation, and a queue's number behind them, lie in the first cell.
template <template <template <typename> class> class Fields>
inline Fields<Wild> load_rc(const std::byte* body) noexcept {
  static_assert(sizeof(Fields<Wild>) == sizeof(Fields<Plain>));
  static_assert(kRcHeadBytes + sizeof(Fields<Wild>) + 4 <= ring::kBodyBytes);
  return load_once<Fields<Wild>>(body + kRcHeadBytes);
}
// The same of a write in cells, its address in one.
struct RcTarget {
  Wild<uint64_t> addr;
  Wild<uint32_t> rkey;
};
inline RcTarget load_rc_target(const std::byte* body) noexcept {
  static_assert(offsetof(RcWrite, addr_hi) == sizeof(uint32_t));
  uint64_t addr;
  uint32_t rkey;
  std::memcpy(&addr, body + kRcHeadBytes, sizeof addr);
  std::memcpy(&rkey, body + kRcHeadBytes + offsetof(RcWrite, rkey), sizeof rkey);
  return {Wild<uint64_t>(copied_once(addr)), Wild<uint32_t>(copied_once(rkey))};
}
inline void store_rc(std::byte* body, const RcHead& head) noexcept {
  const uint64_t all =
      head.op | uint64_t{head.flags} << 8 | uint64_t{head.len} << 16 | uint64_t{head.imm} << 32;
  std::memcpy(body, &all, sizeof all);
}
template <typename Fields>
inline void store_rc(std::byte* body, const RcHead& head, const Fields& f) noexcept {
  static_assert(kRcHeadBytes + sizeof(Fields) + 4 <= ring::kBodyBytes);
  store_rc(body, head);
  store_members(body + kRcHeadBytes, f);
}
// Without the flag nobody reads it; it may be stored all the same where no payload lies behind.
inline void store_srq_number(std::byte* body, RcOp op, uint32_t number) noexcept {
  std::memcpy(body + kRcHeadBytes + rc_field_bytes(op), &number, sizeof number);
}
inline Wild<uint32_t> load_srq_number(const std::byte* body, RcOp op) noexcept {
  uint32_t number;
  std::memcpy(&number, body + kRcHeadBytes + rc_field_bytes(op), sizeof number);
  return copied_once(Wild<uint32_t>(number));
}

}  // namespace aperture::wire
