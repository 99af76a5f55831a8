// Atomic operations on memory of this process: which there are, on which types, and how one is
// carried out on an array of elements. man 3 fi_atomic, "Atomic Data Types", "Atomic Operations".
//
// Each element is atomic by itself. Up to 16 bytes it is so with everything in this process that
// uses CPU atomics on the same memory: an instruction where there is one, else a compare-exchange
// loop. Wider elements, and those of 16 bytes where the CPU cannot, are atomic with one another
// under a striped lock of the process. No state but that lock; any thread. The numbers travel
// between processes: fixed for ever, new ones at the end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "protect/rights.hpp"

namespace aperture::transport {

enum class AtomicOp : uint8_t {
  min = 0,
  max = 1,
  sum = 2,
  prod = 3,
  lor = 4,
  land = 5,
  bor = 6,
  band = 7,
  lxor = 8,
  bxor = 9,
  read = 10,
  write = 11,
  cswap = 12,
  cswap_ne = 13,
  cswap_le = 14,
  cswap_lt = 15,
  cswap_ge = 16,
  cswap_gt = 17,
  mswap = 18,
  diff = 19,
};
inline constexpr unsigned kAtomicOps = 20;

enum class AtomicType : uint8_t {
  int8 = 0,
  uint8 = 1,
  int16 = 2,
  uint16 = 3,
  int32 = 4,
  uint32 = 5,
  int64 = 6,
  uint64 = 7,
  float32 = 8,
  float64 = 9,
  complex32 = 10,  // two float32
  complex64 = 11,
  long_double = 12,
  long_double_complex = 13,
  int128 = 14,
  uint128 = 15,
  float16 = 16,
  bfloat16 = 17,
  float8_e4m3 = 18,
  float8_e5m2 = 19,
};
inline constexpr unsigned kAtomicTypes = 20;

enum class AtomicKind : uint8_t {
  base = 0,     // changes the target
  fetch = 1,    // and hands its former value back
  compare = 2,  // compares with a second operand first, and hands the former value back
};
inline constexpr unsigned kAtomicKinds = 3;

// The bytes of the target that one operation may cover: both operands and the results of as many
// fit in the byte rings at once, so that it is one request and one answer.
inline constexpr uint64_t kAtomicBytes = 8192;

// By its number. Asked for each atomic that is posted, where a call costs as much as the answer.
struct AtomicTypeFacts {
  uint8_t bytes;      // of one element
  uint8_t alignment;  // what an element's address must be a multiple of
  uint32_t ops;       // bit n: the operation of that number
};
extern const std::array<AtomicTypeFacts, kAtomicTypes> kAtomicTypeFacts;

// Bytes of one element; 0 for a number that is no type.
inline size_t atomic_size(AtomicType type) noexcept {
  const auto at = static_cast<size_t>(type);
  return at < kAtomicTypes ? kAtomicTypeFacts[at].bytes : 0;
}
// What an element's address must be a multiple of.
inline size_t atomic_alignment(AtomicType type) noexcept {
  const auto at = static_cast<size_t>(type);
  return at < kAtomicTypes ? kAtomicTypeFacts[at].alignment : 1;
}
constexpr bool is_compare(AtomicOp op) noexcept {
  return op >= AtomicOp::cswap && op <= AtomicOp::mswap;
}
// Whether that kind of operation does that to that type. Any numbers may be asked about.
inline bool atomic_offered(AtomicKind kind, AtomicOp op, AtomicType type) noexcept {
  const auto at = static_cast<size_t>(type);
  const auto nth = static_cast<unsigned>(op);
  if (at >= kAtomicTypes || nth >= kAtomicOps || ((kAtomicTypeFacts[at].ops >> nth) & 1) == 0)
    return false;
  switch (kind) {
    case AtomicKind::base: return !is_compare(op) && op != AtomicOp::read;
    case AtomicKind::fetch: return !is_compare(op);
    case AtomicKind::compare: return is_compare(op);
  }
  return false;
}

inline bool has_operand(AtomicOp op) noexcept {
  return op != AtomicOp::read;
}
// Operand arrays that travel with a request of that kind.
inline unsigned operands_of(AtomicKind kind, AtomicOp op) noexcept {
  return !has_operand(op) ? 0 : kind == AtomicKind::compare ? 2 : 1;
}

// What the region must grant: to change it, and to be told what it held.
inline protect::Rights rights_for(AtomicKind kind, AtomicOp op) noexcept {
  using protect::Rights;
  if (op == AtomicOp::read) return Rights::remote_read;
  const Rights change = Rights::remote_write | Rights::remote_atomic;
  return kind == AtomicKind::base ? change : change | Rights::remote_read;
}

// Carries out an operation that is offered on `count` elements at `target`, which is aligned. The
// others need no alignment; operand and compare may be null where there is none, and result where
// the former values are not wanted.
void execute_atomic(AtomicOp op, AtomicType type, std::byte* target, const std::byte* operand,
                    const std::byte* compare, std::byte* result, size_t count) noexcept;

}  // namespace aperture::transport
