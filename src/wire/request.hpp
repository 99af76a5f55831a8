// What queue pairs write into the cells of a lane: requests and responses.
//
// A message begins in a cell's body (ring/cell.hpp); `bytes` below are offsets in the body. It is a
// head, the operation's fixed fields, 8 bytes of a raw key if flagged (of operations that name one
// key), 8 bytes of immediate data if flagged, and inline payload, run on over as many cells as it
// takes. All integers little-endian, unaligned.
//
//   0      op        u8
//   1      flags     u8   kTagged, kImm, kFirst or kPreview, kLast, kDelivery, kRaw, kInvalidates,
//                         kGroup
//   2      len       u16  inline payload in bytes (or a small code, see the operation)
//   4      word      u64  tag; remote address; id: see the operation
//   12     fields of the operation
//
// The number of cells follows from op, flags and len alone, so the two sides cannot disagree, and a
// hostile peer can make us skip cells of its own ring at worst. Everything decoded is a peer's
// word: what is loaded is Wild, and is bounded where it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/copy.hpp"
#include "base/invariant.hpp"
#include "base/wild.hpp"
#include "ring/cell.hpp"

namespace aperture::wire {

enum class Op : uint8_t {
  none = 0,
  // requests
  send = 1,           // inline payload; word = tag
  send_bytes = 2,     // payload in the request byte ring; word = tag
  send_offer = 3,     // rendezvous: payload stays with the sender until granted; word = tag
  write = 4,          // RMA write, inline payload; word = address
  write_bytes = 5,    // one piece of an RMA write, payload in the request byte ring; word = address
  read = 6,           // RMA read; word = address
  notice = 7,         // of an access whose bytes moved otherwise; word = its length, len = kind
  check = 8,          // may this range be accessed? if not, the rest of its operation is dropped
  atomic = 9,         // atomic on one range, operands inline; word = address
  atomic_bytes = 10,  // atomic on several ranges, or with more operands: in the request byte ring
  commit = 11,        // this range, just written, into the file behind it; word = address
  invalidate = 12,    // a memory window that was bound for its sender; word = key
  wake = 13,          // open our accessor slots, which you have made dormant
  // responses
  grant = 16,        // rendezvous: send now; word = message id
  data = 17,         // rendezvous payload in the response byte ring; word = receive id
  finished = 18,     // rendezvous: everything has arrived; word = message id
  nak = 19,          // the request at that position was refused; word = position, len = denial,
                     // and which of an atomic's ranges it was in the upper byte
  read_inline = 20,  // result of a small read, or of an atomic; word = read id
  read_data = 21,    // piece of such a result in the response byte ring; word = read id
  pressure = 22,     // word = 1: offer messages, do not send payload unasked; 0: as usual
  permit = 23,       // what the peer may access directly: word = gate number, len = flags
};

inline constexpr uint8_t kTagged = 1;
inline constexpr uint8_t kImm = 2;
inline constexpr uint8_t kFirst = 4;      // first piece of an RMA operation
inline constexpr uint8_t kPreview = 4;    // of a grant: those bytes, and the message stays on offer
inline constexpr uint8_t kLast = 8;       // last piece of an RMA operation
inline constexpr uint8_t kDelivery = 16;  // the sender waits for `finished`
inline constexpr uint8_t kRaw = 32;       // the key is raw: its second half, the secret, is there

// Of a send with immediate data, which is the key of the invalidate before it: dropped if that was
// refused.
inline constexpr uint8_t kInvalidates = 64;
// Of a send with immediate data: part of a collective operation, the immediate data its group's
// key. Matched apart from all that applications send and receive.
inline constexpr uint8_t kGroup = 128;

// Kinds of a notice.
inline constexpr uint16_t kNoticeWrite = 0;
inline constexpr uint16_t kNoticeRead = 1;

inline constexpr size_t kHeadBytes = 12;
inline constexpr uint16_t kMaxInline = 256;

// The head as it is written, and behind it fixed fields in the order of the wire. Those in two
// forms: with plain numbers to be stored, and as they are loaded, in which each number is Wild.
struct Head {
  uint8_t op;
  uint8_t flags;
  uint16_t len;
  uint64_t word;

  static Head make(Op op, uint8_t flags, uint16_t len, uint64_t word) noexcept {
    return {static_cast<uint8_t>(op), flags, len, word};
  }
};
template <typename T>
using Plain = T;

template <typename Fields>
struct LoadedFrom;
template <template <template <typename> class> class FieldsOf>
struct LoadedFrom<FieldsOf<Plain>> {
  using Type = FieldsOf<Wild>;
};
template <typename Fields>
using Loaded = typename LoadedFrom<Fields>::Type;

template <template <typename> class As>
struct SendBytesFieldsOf {
  As<uint64_t> byte_pos;
  As<uint64_t> len;
};
using SendBytesFields = SendBytesFieldsOf<Plain>;
template <template <typename> class As>
struct SendOfferFieldsOf {
  As<uint64_t> len;
  As<uint64_t> address;  // of the payload in the sender, 0: not to be reached by CMA
  As<uint32_t> id;       // message id of the sender
  As<uint32_t> claim;    // index of the claim word, or kNoClaim
};
using SendOfferFields = SendOfferFieldsOf<Plain>;
template <template <typename> class As>
struct WriteFieldsOf {
  As<uint64_t> key;
};
using WriteFields = WriteFieldsOf<Plain>;
template <template <typename> class As>
struct WriteBytesFieldsOf {  // piece [offset, offset + len) of [word, word + total)
  As<uint64_t> key;
  As<uint64_t> total;
  As<uint64_t> offset;
  As<uint64_t> byte_pos;
  As<uint64_t> len;
};
using WriteBytesFields = WriteBytesFieldsOf<Plain>;
template <template <typename> class As>
struct ReadFieldsOf {  // piece [offset, offset + len) of [word, word + total)
  As<uint64_t> key;
  As<uint64_t> total;
  As<uint64_t> offset;
  As<uint64_t> len;
  As<uint64_t> id;
};
using ReadFields = ReadFieldsOf<Plain>;
template <template <typename> class As>
struct CheckFieldsOf {  // of check and commit
  As<uint64_t> key;
  As<uint64_t> len;
  As<uint64_t> write;  // 1: for writing, 0: for reading
};
using CheckFields = CheckFieldsOf<Plain>;
struct AtomicCode {  // what an atomic does: numbers of transport/atomic_op.hpp
  uint8_t op;
  uint8_t type;
  uint8_t kind;
  uint8_t ranges;  // 1 when inline
};
// The result of a fetching or comparing atomic has the position of its request for its read id.
// Behind the fields: `count` operands, then as many to compare with if its kind compares.
template <template <typename> class As>
struct AtomicFieldsOf {
  As<uint64_t> key;
  As<AtomicCode> code;
  As<uint32_t> count;  // elements
};
using AtomicFields = AtomicFieldsOf<Plain>;
// In the byte ring: that many AtomicRange, with kRaw as many secrets (u64 each), then the operands
// of all, then those to compare with.
template <template <typename> class As>
struct AtomicBytesFieldsOf {
  As<uint64_t> byte_pos;
  As<AtomicCode> code;
  As<uint32_t> len;  // bytes in the byte ring
};
using AtomicBytesFields = AtomicBytesFieldsOf<Plain>;
template <template <typename> class As>
struct AtomicRangeOf {
  As<uint64_t> addr;
  As<uint64_t> key;
  As<uint64_t> count;  // elements
};
using AtomicRange = AtomicRangeOf<Plain>;
static_assert(sizeof(AtomicFields) == 16 && sizeof(AtomicBytesFields) == 16);
static_assert(sizeof(AtomicRange) == 24 && sizeof(Loaded<AtomicRange>) == 24);
template <template <typename> class As>
struct GrantFieldsOf {
  As<uint64_t> receive_id;
  As<uint64_t> len;  // bytes wanted, from the message's beginning
};
using GrantFields = GrantFieldsOf<Plain>;
template <template <typename> class As>
struct DataFieldsOf {
  As<uint64_t> offset;
  As<uint64_t> byte_pos;
  As<uint64_t> len;
};
using DataFields = DataFieldsOf<Plain>;

inline constexpr uint32_t kNoClaim = ~uint32_t{0};

// Body bytes of the fixed fields, or SIZE_MAX for an operation that does not exist.
constexpr size_t field_bytes(Op op) noexcept {
  switch (op) {
    case Op::send:
    case Op::notice:
    case Op::invalidate:
    case Op::wake:
    case Op::finished:
    case Op::nak:
    case Op::read_inline:
    case Op::pressure:
    case Op::permit: return 0;
    case Op::send_bytes: return sizeof(SendBytesFields);
    case Op::send_offer: return sizeof(SendOfferFields);
    case Op::write: return sizeof(WriteFields);
    case Op::write_bytes: return sizeof(WriteBytesFields);
    case Op::read: return sizeof(ReadFields);
    case Op::check:
    case Op::commit: return sizeof(CheckFields);
    case Op::atomic: return sizeof(AtomicFields);
    case Op::atomic_bytes: return sizeof(AtomicBytesFields);
    case Op::grant: return sizeof(GrantFields);
    case Op::data:
    case Op::read_data: return sizeof(DataFields);
    case Op::none: break;
  }
  return SIZE_MAX;
}

constexpr bool has_inline_payload(Op op) noexcept {
  return op == Op::send || op == Op::write || op == Op::atomic || op == Op::read_inline;
}

// Operations whose fields name one key; of others kRaw takes no room.
constexpr bool names_key(Op op) noexcept {
  return op == Op::write || op == Op::write_bytes || op == Op::read || op == Op::check ||
         op == Op::commit || op == Op::atomic;
}

// Where the inline payload begins in the body, and the immediate data ends.
constexpr size_t payload_offset(Op op, uint8_t flags) noexcept {
  return kHeadBytes + field_bytes(op) + (names_key(op) && (flags & kRaw) != 0 ? 8 : 0) +
         ((flags & kImm) != 0 ? sizeof(uint64_t) : 0);
}

// Cells that a message takes; 0 for a head that no sound peer writes.
constexpr uint32_t cells_of(Op op, uint8_t flags, uint16_t len) noexcept {
  if (field_bytes(op) == SIZE_MAX) return 0;
  size_t bytes = payload_offset(op, flags);
  if (has_inline_payload(op)) {
    if (len > kMaxInline) return 0;
    bytes += len;
  }
  return ring::cells_for(bytes);
}

// Messages and operations that lie in one cell: `line_room` bytes at most. A send of that kind has
// none but these flags.
inline constexpr uint8_t kLineFlags = kTagged | kImm;
constexpr size_t line_room(Op op, uint8_t flags) noexcept {
  return ring::kBodyBytes - payload_offset(op, flags);
}
inline constexpr size_t kLineBytes = line_room(Op::send, 0);
inline constexpr size_t kLineWriteBytes = line_room(Op::write, 0);
inline constexpr size_t kLineAtomicBytes = line_room(Op::atomic, 0);
inline constexpr uint32_t kMaxCells = cells_of(Op::atomic, kImm | kRaw, kMaxInline);
static_assert(kMaxCells >= cells_of(Op::write, kImm | kRaw, kMaxInline));

// A head that a sound peer might have written. Its flags are looked at one by one; its word is as
// wild as ever. Two words, as it travels in two registers: fields that are stored one by one and
// then loaded together make a processor wait until the stores have left it, some 4 ns each time.
class SoundHead {
 public:
  SoundHead() noexcept = default;

  Op op() const noexcept { return static_cast<Op>(first_ & 0xff); }
  uint8_t flags() const noexcept { return static_cast<uint8_t>(first_ >> 8); }
  bool has(uint8_t flag) const noexcept { return (flags() & flag) != 0; }
  // Of inline payload, which lies in the message's own cells.
  uint16_t len() const noexcept {
    APERTURE_DEBUG_ASSERT(has_inline_payload(op()));
    return static_cast<uint16_t>(first_ >> 16);
  }
  // What stands in place of the length where there is no payload.
  Wild<uint16_t> code() const noexcept {
    return Wild<uint16_t>(static_cast<uint16_t>(first_ >> 16));
  }
  Wild<uint64_t> word() const noexcept { return word_; }

 private:
  friend uint32_t read_head(const std::byte* body, SoundHead& out) noexcept;
  friend bool read_line(const std::byte* body, SoundHead& out) noexcept;
  explicit SoundHead(const std::byte* body) noexcept {
    uint64_t word;
    std::memcpy(&first_, body, sizeof first_);
    std::memcpy(&word, body + sizeof first_, sizeof word);
    first_ = copied_once(first_);
    word_ = Wild<uint64_t>(copied_once(word));
  }

  uint32_t first_ = 0;  // op, flags, len
  Wild<uint64_t> word_;
};
static_assert(sizeof(uint32_t) + sizeof(uint64_t) == kHeadBytes);

// The cells that the message takes; 0: no sound peer writes that.
inline uint32_t read_head(const std::byte* body, SoundHead& out) noexcept {
  out = SoundHead(body);
  return cells_of(out.op(), out.flags(), out.code().unchecked());
}
// Whether it is a message in one cell.
inline bool read_line(const std::byte* body, SoundHead& out) noexcept {
  static_assert(kImm << 2 == sizeof(uint64_t));  // what the immediate data takes, without a branch
  out = SoundHead(body);
  return out.op() == Op::send && (out.flags() & ~kLineFlags) == 0 &&
         out.len() + ((out.flags() & kImm) << 2) <= static_cast<int>(kLineBytes);
}

// Fixed fields of all operations but write_bytes with immediate data lie in the first cell.
template <typename Fields>
inline Loaded<Fields> load_fields(const std::byte* body) noexcept {
  static_assert(kHeadBytes + sizeof(Fields) <= ring::kBodyBytes);
  static_assert(sizeof(Loaded<Fields>) == sizeof(Fields));
  return load_once<Loaded<Fields>>(body + kHeadBytes);
}
template <typename Fields>
inline void store_fields(std::byte* body, const Fields& f) noexcept {
  static_assert(kHeadBytes + sizeof(Fields) <= ring::kBodyBytes);
  store_members(body + kHeadBytes, f);
}

// The second half of a raw key lies in the first cell too; 0 without kRaw.
static_assert(kHeadBytes + field_bytes(Op::write_bytes) + sizeof(uint64_t) <= ring::kBodyBytes);
inline Wild<uint64_t> load_secret(const std::byte* body, Op op, uint8_t flags) noexcept {
  uint64_t secret = 0;
  if ((flags & kRaw) != 0) [[unlikely]] {
    std::memcpy(&secret, body + kHeadBytes + field_bytes(op), sizeof secret);
    secret = copied_once(secret);
  }
  return Wild<uint64_t>(secret);
}
inline void store_secret(std::byte* body, Op op, uint8_t flags, uint64_t secret) noexcept {
  if ((flags & kRaw) != 0) [[unlikely]]
    std::memcpy(body + kHeadBytes + field_bytes(op), &secret, sizeof secret);
}

// A record: the head, the fields if it has any, and the second half of its key if it is flagged.
inline void store(std::byte* body, const Head& head) noexcept {
  const uint32_t first = head.op | uint32_t{head.flags} << 8 | uint32_t{head.len} << 16;
  std::memcpy(body, &first, sizeof first);
  std::memcpy(body + sizeof first, &head.word, sizeof head.word);
}
template <typename Fields>
inline void store(std::byte* body, const Head& head, const Fields& fields,
                  uint64_t secret = 0) noexcept {
  store(body, head);
  store_fields(body, fields);
  store_secret(body, static_cast<Op>(head.op), head.flags, secret);
}

}  // namespace aperture::wire
