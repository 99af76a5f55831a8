// A WQE: one accepted operation, from the post that could not finish it at once to its completion.
//
// Sends whose payload fits in the ring now never have one. Taken from the endpoint's pool; in one
// list at a time: the send queue (not begun or begun and not all in the ring), then `pending`
// (waits for the other side's acknowledgement) or the table of offered messages.
#pragma once

#include <array>
#include <cstdint>

#include "base/list.hpp"
#include "protect/rights.hpp"
#include "qp/limits.hpp"
#include "qp/work_request.hpp"

namespace aperture::qp {

enum class WqeKind : uint8_t { send, write, read, atomic, fetch };

constexpr bool is_atomic(WqeKind kind) noexcept {
  return kind == WqeKind::atomic || kind == WqeKind::fetch;
}
// Ends only with its data: `done` has reached `len`.
constexpr bool returns_data(WqeKind kind) noexcept {
  return kind == WqeKind::read || kind == WqeKind::fetch;
}

// What an atomic that could not go into the ring at once keeps of its work request. Its first
// operand is in the WQE's `injected` if it was injected; the WQE's iov is the result's.
struct WaitingAtomic {
  transport::AtomicKind kind;
  transport::AtomicOp op;
  transport::AtomicType type;
  uint8_t operand_count;
  uint8_t compare_count;
  std::array<iovec, kIovLimit> operand;
  std::array<iovec, kIovLimit> compare;
  std::array<std::byte, kInjectBytes> injected_compare;
};

// How far it has got: all of it begins anew with each post.
struct WqeProgress {
  uint64_t done = 0;        // bytes put into the ring, copied directly, or received
  uint64_t end_pos = 0;     // request position after its last cell
  uint64_t range_done = 0;  // of ranges[range_at]
  uint8_t range_at = 0;
  uint8_t checked = 0;        // ranges whose check is in the ring
  uint8_t committed = 0;      // ranges whose commit is in the ring
  uint8_t region_at = 0;      // which range `region` is of
  uint64_t region = 0;        // generation that the direct path has met there; 0: none yet
  bool imm_sent = false;      // the immediate data is in the ring
  bool through_ring = false;  // it is for its owner to execute
  bool direct_done = false;   // copied directly; its notice has found no room yet
  bool in_ring = false;       // at least one piece went through the ring
  protect::Denial denial = protect::Denial::none;
  Errc error = Errc::ok;
};

// The same of a message that was offered.
struct OfferProgress {
  uint32_t id = 0;          // of the message
  uint32_t claim = 0;       // its claim word
  uint64_t receive_id = 0;  // of the receiver, once granted
  uint64_t granted = 0;     // bytes the receiver wants
  uint64_t pushed = 0;      // of those, sent by us
  uint64_t next_chunk = 0;  // none before it is pushed any more
  bool granted_set = false;
  bool preview = false;   // what is granted is looked at, and granted again afterwards
  uint64_t chunk_at = 0;  // where in the chunk under way; chunk_end == 0: none
  uint64_t chunk_end = 0;
};

// And what was asked.
struct Wqe : ListHook, WqeProgress, OfferProgress {
  WqeKind kind = WqeKind::send;
  bool tagged = false;
  uint8_t has_imm = 0;  // as in SendWr
  bool inject = false;
  uint8_t completion = kEntry;  // as in SendWr
  uint8_t delivery = 0;         // as in SendWr
  bool fence = false;
  bool commit = false;      // a write that is to be persistent
  bool reads_only = false;  // of a fetch: the target is not changed
  uint8_t reserved = 0;     // bit 0: a CQ entry is promised
  uint8_t iov_count = 0;
  uint8_t range_count = 0;
  uint64_t len = 0;
  uint64_t tag = 0;
  uint64_t imm = 0;
  void* context = nullptr;
  uint64_t flags = 0;
  WaitingAtomic* atomic = nullptr;  // of an atomic that has had to wait

  std::array<iovec, kIovLimit> iov;
  std::array<RemoteRange, kRmaIovLimit> ranges;
  std::array<std::byte, kInjectBytes> injected;
};

// Of a read: bytes that were asked for through the ring, or read directly.
inline uint64_t asked_of(const Wqe& wqe) noexcept {
  uint64_t asked = wqe.range_done;
  for (size_t i = 0; i < wqe.range_at; ++i) asked += wqe.ranges[i].len;
  return asked;
}
// Of a write: whether its bytes are there up to `end`. False: not yet, or it has failed.
inline bool is_filled(Wqe& wqe, uint64_t end) noexcept {
  const Told::Filled filled = filled_of(wqe);
  if (filled.covers(end)) return true;
  if (filled.has_failed) wqe.error = Errc::bad_buffer;
  return false;
}
// What it asks of the regions that it names.
inline protect::Rights need_of(const Wqe& wqe) noexcept {
  using transport::AtomicKind;
  using transport::AtomicOp;
  switch (wqe.kind) {
    case WqeKind::write: return protect::Rights::remote_write;
    case WqeKind::atomic: return transport::rights_for(AtomicKind::base, AtomicOp::write);
    case WqeKind::fetch:
      return transport::rights_for(AtomicKind::fetch,
                                   wqe.reads_only ? AtomicOp::read : AtomicOp::write);
    default: return protect::Rights::remote_read;
  }
}
// A send that invalidates a memory window of the peer first; its key is ranges[0].key once that is
// in the ring.
inline bool is_invalidation(const Wqe& wqe) noexcept {
  return wqe.kind == WqeKind::send && (wqe.delivery & kInvalidating) != 0;
}

}  // namespace aperture::qp
