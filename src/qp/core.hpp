// What the parts of a queue pair share: its lane, where it stands, and its operations under way.
//
// Qp (qp.hpp) holds one by value, and each part refers to it. Guarded by the engine's lock. States:
// connecting (no lane yet: posts are queued), ready, draining (the lane is lost: what the peer had
// published is still executed), dead. An operation that could not finish at once is in one place:
// in `queue` (not all of it in the ring), in `pending` (waits until it is executed), with
// OfferSender, or, if it is a line (line.hpp), in `pieces` alone.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

#include "base/iov.hpp"
#include "base/list.hpp"
#include "protect/key_table.hpp"
#include "qp/port.hpp"
#include "qp/wqe.hpp"
#include "transport/inflight.hpp"
#include "transport/lane_end.hpp"
#include "transport/one_sided.hpp"
#include "wire/request.hpp"

namespace aperture::qp {

enum class QpState : uint8_t { connecting, ready, draining, dead };

// A request in the ring that may be refused, answered or claimed: a piece of an RMA operation, an
// invalidation, or a line, which has no WQE and is all that is known of its operation.
struct Piece {
  static constexpr uint8_t kWithImm = 1;
  static constexpr uint8_t kWithEntry = 2;  // in the completion queue

  uint64_t pos;
  uint8_t cells;
  uint8_t range_at;  // index of the range that it is a piece of
  WqeKind kind;
  bool check_only;  // no bytes move
  // Of a line; of others these are the WQE's.
  bool through_ring;  // it is for its owner to execute
  bool is_lost;       // its owner was gone when it was claimed
  protect::Denial denial;
  uint8_t with;

  Wqe* wqe;  // null: of a line
  RemoteRange range;
  union {
    uint64_t wqe_offset;
    void* context;  // of a line
  };
  uint64_t flags;  // of a line
};
static_assert(sizeof(Piece) == 64);  // each post stores one

inline bool is_for_owner(const Piece& piece) noexcept {
  return is_atomic(piece.kind) ||
         (piece.wqe != nullptr ? piece.wqe->through_ring : piece.through_ring);
}
// The WQE that a line would have had, where it takes the way of those that have one.
inline void describe(const Piece& line, Wqe& wqe) noexcept {
  assert(line.wqe == nullptr && !returns_data(line.kind));
  wqe.kind = line.kind;
  wqe.has_imm = (line.with & Piece::kWithImm) != 0;
  wqe.in_ring = true;
  wqe.through_ring = line.through_ring;
  wqe.denial = line.denial;
  wqe.len = line.range.len;
  wqe.context = line.context;
  wqe.flags = line.flags;
  wqe.ranges[0] = line.range;
  wqe.range_count = 1;
}

struct QpCore {
  static constexpr uint64_t kUnbounded = ~uint64_t{0};

  QpCore(Qp& owner, Port& its_port, const Address& peer, protect::DomainId its_domain) noexcept
      : qp(owner), port(its_port), domain(its_domain), remote(peer) {}
  QpCore(const QpCore&) = delete;
  QpCore& operator=(const QpCore&) = delete;

  // --- posting ---

  // Nothing of ours stands before an operation that is posted now.
  bool may_begin(bool fence) const noexcept {
    return state == QpState::ready && queue.empty() && !(fence && under_way());
  }
  // Something is in the ring and not known to be executed: what a fence waits for.
  bool under_way() const noexcept { return !pending.empty() || !pieces.empty() || offers_out > 0; }
  bool has_pending() const noexcept { return !queue.empty() || under_way(); }
  // What is asked before an operation on remote ranges is taken. Errors: no_key, again.
  [[gnu::always_inline]] Status may_post(const RemoteRange* ranges, size_t count,
                                         uint8_t completion) const noexcept {
    if (port.raw_keys != nullptr && !names_mapped_keys(ranges, count)) [[unlikely]]
      return Errc::no_key;
    if (state != QpState::ready && state != QpState::connecting) return Errc::again;
    if (port.tx_cq == nullptr ? (completion & kEntry) != 0 : !port.tx_cq->has_room())
      return Errc::again;
    return {};
  }
  // Somebody waits for `consumed` to grow, so that every poll has to look at it. What returns data
  // is done when that is here; for what nobody waits for, the look of a due poll will do, and the
  // peer's acknowledgements do not have to fight for their cache line.
  bool awaits_ack(WqeKind kind, bool completes) const noexcept {
    return !returns_data(kind) && (completes || port.counter_of(kind) != nullptr);
  }
  // A WQE for that work request, its CQ entry promised; null: there is none to be had now.
  template <typename Wr>
  Wqe* take_wqe(WqeKind kind, const Wr& wr, bool begin_now) noexcept {
    if (!begin_now && port.tx.queued >= port.tx.size) return nullptr;
    Wqe* wqe = port.tx.wqes.take();
    if (wqe == nullptr) return nullptr;
    assert(!wqe->linked() && wqe->atomic == nullptr);
    *static_cast<WqeProgress*>(wqe) = {};
    if (kind == WqeKind::send) *static_cast<OfferProgress*>(wqe) = {};
    wqe->kind = kind;
    wqe->tagged = false;
    wqe->has_imm = false;
    wqe->commit = false;
    wqe->reads_only = false;
    wqe->delivery = 0;
    wqe->inject = wr.inject;
    wqe->completion = wr.completion;
    wqe->fence = wr.fence;
    wqe->len = wr.len;
    wqe->context = wr.context;
    wqe->flags = wr.flags;
    // an error of what names remote ranges is told even where success is not
    wqe->reserved = kind == WqeKind::send ? wr.completion : uint8_t{port.tx_cq != nullptr};
    if ((wqe->reserved & kEntry) != 0) port.tx_cq->reserve();
    return wqe;
  }
  template <typename Wr>
  static void keep_local(Wqe& wqe, const Wr& wr) noexcept {
    assert(wr.iov_count <= wqe.iov.size());
    if (wr.inject) {
      gather(wqe.injected.data(), wr.iov, wr.iov_count, 0, wr.len);
      wqe.iov[0] = {wqe.injected.data(), wr.len};
      wqe.iov_count = 1;
    } else {
      copy_members(wr.iov, wr.iov_count, wqe.iov.data());
      wqe.iov_count = static_cast<uint8_t>(wr.iov_count);
    }
  }
  static void keep_ranges(Wqe& wqe, const RemoteRange* ranges, size_t count) noexcept {
    assert(count >= 1 && count <= wqe.ranges.size());
    copy_members(ranges, count, wqe.ranges.data());
    wqe.range_count = static_cast<uint8_t>(count);
  }
  void enqueue(Wqe& wqe) noexcept {
    queue.push_back(&wqe);
    ++port.tx.queued;
  }
  // To be called once `queued` operations have left the queue.
  void leave_queue() noexcept {
    assert(port.tx.queued > 0);
    --port.tx.queued;
  }

  // --- what is in the ring ---

  // The piece of `wqe` that is published next. There is a place for it: see Responses.
  Piece& note_piece(Wqe& wqe, uint32_t cells, const RemoteRange& range, uint64_t offset) noexcept {
    Piece& piece = pieces.note();
    piece.pos = lane->request_tx.cells.pos();
    static_assert(wire::kMaxCells <= UINT8_MAX);
    piece.cells = static_cast<uint8_t>(cells);
    piece.range_at = wqe.range_at;
    piece.kind = wqe.kind;
    piece.check_only = false;
    piece.wqe = &wqe;
    copy_members(&range, 1, &piece.range);
    piece.wqe_offset = offset;
    wqe.in_ring = true;
    return piece;
  }
  // How the owner knows the key of a range.
  ShownKey shown(uint64_t key) const noexcept {
    if (port.raw_keys == nullptr) [[likely]]
      return {key, 0, 0};
    return port.raw_keys->shown(key);
  }
  // The owner is to hear of it.
  bool tells(const Wqe& wqe) const noexcept {
    return wqe.has_imm ||
           one_sided.is_permitted(wqe.kind == WqeKind::read ? transport::kTellOfReads
                                                            : transport::kTellOfWrites);
  }

  // --- what is left to do ---

  // Nobody waits for anything that is pending: injected writes and the like.
  bool is_unhurried() const noexcept {
    return awaited == 0 && returning == 0 && queue.empty() && state == QpState::ready;
  }
  // Somebody waits for the end of an operation, which is told before what the peer has sent since:
  // it publishes what it has executed first, and acknowledgements of a NIC's come first, too.
  bool awaits_end() const noexcept { return awaited + offers_out != 0; }
  // The same, or it goes on only when the other side has executed more.
  bool awaits_executed() const noexcept {
    return !is_unhurried() || offers_out != 0 || !pieces.empty();
  }
  bool has_more_to_do() const noexcept {
    return awaited > 0 || !queue.empty() || offers_out > 0 || incoming > 0 || replies_waiting;
  }
  void update_pending() noexcept {
    if (!lane) return;
    if (has_more_to_do()) busy = true;
    lane.note_pending(has_pending() || incoming > 0);
  }
  // The peer broke the protocol: nothing more is taken from it.
  void break_protocol(const char* what) noexcept {
    lane.break_protocol(what);
    busy = true;
  }
  // The same where something of ours has failed that the peer waits for.
  void cease(Errc why) noexcept {
    if (!lane.broken()) broken_why = why;
    lane.cease();
    busy = true;
  }

  Qp& qp;  // as the sink above knows it
  Port& port;
  const protect::DomainId domain;  // the port's, beside the number: every access asks with both
  const Address remote;
  protect::EndpointId number = 0;  // 0: nobody has asked for it
  transport::LaneEnd lane;
  transport::Target target{lane};
  transport::OneSided one_sided{lane, target};
  transport::Inflight<Piece> pieces;
  QpState state = QpState::connecting;
  bool peer_pressure = false;           // the peer wants offers only
  Errc broken_why = Errc::protocol;     // why the lane is broken, if it is
  bool busy = true;                     // poll() has more to do than to look at the rings
  bool replies_waiting = false;         // responses that have found no room
  uint64_t unasked_bytes = kUnbounded;  // payload that it may still send without an offer
  size_t offers_in = 0;                 // messages of its offers whose last answer is not given
  List<Wqe> queue;                      // not all in the ring yet
  List<Wqe> pending;                    // in the ring, waiting to be executed
  size_t awaited = 0;                   // of these, those that somebody waits for: see Pending
  size_t returning = 0;                 // of these, those that return data
  size_t offers_out = 0;                // messages offered, whose end is not known
  size_t incoming = 0;                  // messages that are being received

 private:
  // In a domain with raw keys: handles that have been mapped.
  [[gnu::noinline]] bool names_mapped_keys(const RemoteRange* ranges, size_t count) const noexcept {
    return std::all_of(ranges, ranges + count,
                       [this](const RemoteRange& r) { return port.raw_keys->has(r.key); });
  }
};

}  // namespace aperture::qp
