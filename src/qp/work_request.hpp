// Work requests: what a door posts. Plain values; the callee copies what it needs (iovs too, not
// the buffers, unless `inject` is set).
#pragma once

#include <sys/uio.h>

#include <cassert>
#include <cstddef>
#include <cstdint>

#include "qp/completion.hpp"
#include "transport/atomic_op.hpp"

namespace aperture::qp {

inline constexpr uint64_t kAnySource = ~uint64_t{0};
// Whoever comes by the authorization key of that number (Address::key), in the table or not.
inline constexpr uint64_t kSourcesByKey = ~uint64_t{0xff};
constexpr uint64_t sources_by_key(uint8_t key) noexcept {
  return kSourcesByKey | key;
}
constexpr bool is_by_key(uint64_t source) noexcept {
  return source >= kSourcesByKey && source != kAnySource;
}

// Who hears that an operation is over, where that is neither a completion queue nor a counter. With
// the engine's lock, in the middle of its progress or of a post: what follows from it is noted, and
// done in a later poll.
class Told {
 public:
  virtual void on_done(const Completion& entry) noexcept = 0;
  virtual void on_failed(CompletionError&& error) noexcept = 0;

  // Of what it sends or writes: how many bytes of its buffers are there, which may be more with
  // each poll. What is late is shown to no peer, and waited for without a ring.
  struct Filled {
    uint64_t bytes = ~uint64_t{0};
    bool is_late = false;     // they were not all there when it was posted
    bool has_failed = false;  // and there will be no more
    bool covers(uint64_t end) const noexcept { return end <= bytes; }
  };
  virtual Filled filled() const noexcept { return {}; }
  // So many bytes of a long message, or of what it reads, are in its buffers, from the first on.
  // Advice: not each is told of, and of some operations none.
  virtual void on_arrived(uint64_t /*through*/) noexcept {}

 protected:
  ~Told() = default;
};

// What becomes of an operation's success: nothing but the count, an entry in the queue as well, or
// its `context` is a Told, which hears of an error too, and nothing is counted. Bit 0 asks for an
// entry.
inline constexpr uint8_t kCounted = 0;
inline constexpr uint8_t kEntry = 1;
inline constexpr uint8_t kTold = 2;
template <typename Operation>
Told& told_of(const Operation& operation) noexcept {
  assert(operation.completion == kTold && operation.context != nullptr);
  return *static_cast<Told*>(operation.context);
}
// Told::filled() of any.
template <typename Operation>
Told::Filled filled_of(const Operation& operation) noexcept {
  return operation.completion == kTold ? told_of(operation).filled() : Told::Filled{};
}

// SendWr::delivery: when it completes beyond having been sent.
inline constexpr uint8_t kDelivered = 1;  // in its buffer, or kept for the receive that will come
inline constexpr uint8_t kMatched = 2;    // in its buffer, or dropped by the application there
// Beside one of these: only once the peer's memory window of key `imm` is invalidated; has_imm.
inline constexpr uint8_t kInvalidating = 4;

// SendWr::has_imm. Shifted by one they are the flags of the wire.
inline constexpr uint8_t kImmediate = 1;
inline constexpr uint8_t kOfGroup = 65;  // `imm` is a group's key: see wire::kGroup

struct SendWr {
  const iovec* iov = nullptr;
  size_t iov_count = 0;
  uint64_t len = 0;   // sum of the iov
  uint64_t dest = 0;  // address-table index
  uint64_t tag = 0;
  uint64_t imm = 0;
  void* context = nullptr;
  uint64_t flags = 0;  // Completion::flags of the completion; the door's word
  bool tagged = false;
  uint8_t has_imm = 0;          // 0, kImmediate or kOfGroup
  bool inject = false;          // len <= kInjectBytes; the buffer is free when the call returns
  uint8_t completion = kEntry;  // kCounted, kEntry or kTold (errors are entries, or told)
  uint8_t delivery = 0;  // 0, kDelivered or kMatched, the latter two with kInvalidating or not
  bool fence = false;    // after everything posted before it to that peer
};

// A line, a message for the hot path: at most what fits in a cell, without fence and delivery wish.
struct LineWr {
  const void* bytes;
  size_t len;
  uint64_t tag;
  uint64_t imm;
  void* context;
  uint64_t flags;
  uint8_t wire_flags;  // wire::kTagged, wire::kImm
  bool completion;
};

// The same for an operation on one remote range.
struct LineRmaWr {
  uint64_t addr;
  uint64_t len;
  uint64_t key;
  uint64_t imm;
  void* context;
  uint64_t flags;
  bool has_imm;  // of a write
  bool completion;
};

struct RecvWr {
  const iovec* iov = nullptr;
  size_t iov_count = 0;
  uint64_t len = 0;
  uint64_t source = kAnySource;  // address-table index, or a key's (directed receive)
  uint64_t tag = 0;
  uint64_t ignore = 0;
  void* context = nullptr;
  uint64_t flags = 0;
  bool tagged = false;
  uint8_t completion = kEntry;
};

// One remote range of an RMA operation.
struct RemoteRange {
  uint64_t addr = 0;
  uint64_t len = 0;
  uint64_t key = 0;
};

// What a call has just described is copied member by member: in larger loads it would have to wait
// for the stores that described it, and for those before them, which may be a line's way from
// another core (bench/stalls).
inline void copy_members(const RemoteRange* from, size_t count, RemoteRange* to) noexcept {
  for (size_t i = 0; i < count; ++i) {
    to[i].addr = from[i].addr;
    to[i].len = from[i].len;
    to[i].key = from[i].key;
  }
}
inline void copy_members(const iovec* from, size_t count, iovec* to) noexcept {
  for (size_t i = 0; i < count; ++i) {
    to[i].iov_base = from[i].iov_base;
    to[i].iov_len = from[i].iov_len;
  }
}

struct RmaWr {
  const iovec* iov = nullptr;
  size_t iov_count = 0;
  uint64_t len = 0;  // of the iov; equals the sum of the ranges
  const RemoteRange* ranges = nullptr;
  size_t range_count = 0;  // 1..kRmaIovLimit
  uint64_t dest = 0;
  uint64_t imm = 0;
  void* context = nullptr;
  uint64_t flags = 0;
  bool has_imm = false;  // write only
  bool inject = false;   // write only
  bool commit = false;   // write only: persistent when it completes
  uint8_t completion = kEntry;
  bool fence = false;  // after everything posted before it to that peer
};

// An atomic on the elements of one or more remote ranges. Lengths are bytes, whole elements each;
// each array that travels is as long as the ranges together.
struct AtomicWr {
  transport::AtomicKind kind = transport::AtomicKind::base;
  transport::AtomicOp op = transport::AtomicOp::sum;  // one that is offered for that kind and type
  transport::AtomicType type = transport::AtomicType::uint64;
  uint64_t len = 0;                // of the ranges, 1..kAtomicBytes
  const iovec* operand = nullptr;  // unused by AtomicOp::read
  size_t operand_count = 0;
  const iovec* compare = nullptr;  // of AtomicKind::compare
  size_t compare_count = 0;
  const iovec* result = nullptr;  // of all kinds but base: takes the former values
  size_t result_count = 0;
  const RemoteRange* ranges = nullptr;
  size_t range_count = 0;  // 1..kRmaIovLimit
  uint64_t dest = 0;
  void* context = nullptr;
  uint64_t flags = 0;
  bool inject = false;  // len <= kInjectBytes; operands are free when the call returns
  uint8_t completion = kEntry;
  bool fence = false;  // after everything posted before it to that peer
};

}  // namespace aperture::qp
