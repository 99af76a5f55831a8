// Messages into the ring: see send_requester.hpp.
#include "qp/send_requester.hpp"

#include <cstring>

namespace aperture::qp {

using transport::Put;
using wire::Head;
using wire::Op;

namespace {

uint8_t flags_of(const SendWr& wr) noexcept {
  static_assert(kImmediate << 1 == wire::kImm && kOfGroup << 1 == (wire::kImm | wire::kGroup));
  return static_cast<uint8_t>((wr.tagged ? wire::kTagged : 0) | wr.has_imm << 1);
}

SendWr as_send_wr(const Wqe& wqe) noexcept {
  SendWr wr;
  wr.iov = wqe.iov.data();
  wr.iov_count = wqe.iov_count;
  wr.len = wqe.len;
  wr.tag = wqe.tag;
  wr.imm = wqe.imm;
  wr.context = wqe.context;
  wr.flags = wqe.flags;
  wr.tagged = wqe.tagged;
  wr.has_imm = wqe.has_imm;
  wr.completion = wqe.completion;
  wr.delivery = wqe.delivery;
  return wr;
}

}  // namespace

Status SendRequester::post(const SendWr& wr) noexcept {
  if (core_.may_begin(wr.fence)) [[likely]] {
    if (goes_unasked(wr)) {
      if ((wr.completion & kEntry) != 0 && !core_.port.tx_cq->has_room()) return Errc::again;
      const Put put = put_message(wr, flags_of(wr));
      if (put == Put::no_room) return Errc::again;
      if (put == Put::done) {
        complete(wr);
        return {};
      }
    }
  } else if (core_.state != QpState::connecting && core_.state != QpState::ready) {
    return Errc::again;  // the old connection is being wound up; the next call makes a new one
  }
  return enqueue(wr);
}

// Into the ring, and not offered first.
bool SendRequester::fits_now(uint64_t len) const noexcept {
  return len <= wire::kMaxInline || (len <= transport::kEagerBytes && !core_.peer_pressure);
}

bool SendRequester::goes_unasked(const SendWr& wr) const noexcept {
  return wr.delivery == 0 && fits_now(wr.len);
}

// no_memory: for the byte ring, so it has to be offered.
Put SendRequester::put_message(const SendWr& wr, uint8_t flags) noexcept {
  assert(core_.lane && wr.len <= transport::kEagerBytes);
  return wr.len <= wire::kMaxInline ? put_in_cells(wr, flags) : put_in_bytes(wr, flags);
}

Put SendRequester::put_in_cells(const SendWr& wr, uint8_t flags) noexcept {
  ring::ChannelTx& tx = core_.lane->request_tx;
  const auto len = static_cast<uint16_t>(wr.len);
  const uint32_t n_cells = wire::cells_of(Op::send, flags, len);
  if (!tx.room(n_cells)) return Put::no_room;
  std::byte* body = tx.cells.body();
  wire::store(body, Head::make(Op::send, flags, len, wr.tag));
  size_t at = wire::kHeadBytes;
  if (wr.has_imm) {
    std::memcpy(body + at, &wr.imm, sizeof wr.imm);
    at += sizeof wr.imm;
  }
  if (n_cells == 1 && wr.iov_count == 1) [[likely]] {
    if (wr.len == sizeof(uint64_t)) {
      std::memcpy(body + at, wr.iov[0].iov_base, sizeof(uint64_t));
    } else if (wr.len != 0) {  // an empty message may have no buffer
      std::memcpy(body + at, wr.iov[0].iov_base, wr.len);
    }
  } else {
    ring::BodyWriter cursor(tx.cells, at);
    each_iov_piece(wr.iov, wr.iov_count, 0, wr.len,
                   [&](const std::byte* piece, size_t n) { cursor.copy_in(piece, n); });
  }
  core_.lane.publish_request(n_cells);
  return Put::done;
}

Put SendRequester::put_in_bytes(const SendWr& wr, uint8_t flags) noexcept {
  ring::ChannelTx& tx = core_.lane->request_tx;
  const uint32_t n_cells = wire::cells_of(Op::send_bytes, flags, 0);
  if (!tx.room(n_cells)) return Put::no_room;
  uint64_t pos = 0;
  const Put put = core_.lane.payload().put_request_bytes(
      static_cast<uint32_t>(wr.len), pos, [&](std::byte* to) {
        // the room may be news, and with it came an answer that forbids to use it unasked; behind
        // an invalidation it is known already
        const bool known = (flags & wire::kInvalidates) != 0;
        if (!known && core_.lane->response_rx.cells.ready()) return false;
        gather(to, wr.iov, wr.iov_count, 0, wr.len);
        return true;
      });
  if (put == Put::no_source) return Put::no_room;
  if (put != Put::done) return put;
  std::byte* body = tx.cells.body();
  wire::store(body, Head::make(Op::send_bytes, flags, 0, wr.tag),
              wire::SendBytesFields{pos, wr.len});
  if (wr.has_imm) {
    std::memcpy(body + wire::kHeadBytes + sizeof(wire::SendBytesFields), &wr.imm, sizeof wr.imm);
  }
  core_.lane.publish_request(n_cells);
  return Put::done;
}

void SendRequester::complete(const SendWr& wr) noexcept {
  Port& port = core_.port;
  const Completion entry{.context = wr.context, .flags = wr.flags, .len = wr.len};
  if (wr.completion == kEntry) {
    port.tx_cq->push(entry);
  } else if (wr.completion > kEntry) [[unlikely]] {
    return told_of(wr).on_done(entry);
  }
  if (port.send_counter != nullptr) port.send_counter->add(1);
}

Status SendRequester::enqueue(const SendWr& wr) noexcept {
  if ((wr.completion & kEntry) != 0 && !core_.port.tx_cq->has_room()) return Errc::again;
  const bool begin_now = core_.may_begin(wr.fence);
  Wqe* wqe = core_.take_wqe(WqeKind::send, wr, begin_now);
  if (wqe == nullptr) return Errc::again;
  wqe->tagged = wr.tagged;
  wqe->has_imm = wr.has_imm;
  wqe->delivery = wr.delivery;
  wqe->tag = wr.tag;
  wqe->imm = wr.imm;
  core_.keep_local(*wqe, wr);
  if (!begin_now || !put_acknowledged(*wqe)) core_.enqueue(*wqe);
  core_.update_pending();
  return {};
}

bool SendRequester::put(Wqe& wqe) noexcept {
  const SendWr wr = as_send_wr(wqe);
  if (!goes_unasked(wr)) return put_acknowledged(wqe);
  const Put put = put_message(wr, flags_of(wr));
  if (put == Put::no_room) return false;
  if (put != Put::done) return put_acknowledged(wqe);
  pending_.complete(wqe);
  return true;
}

// True: it needs the send queue no longer.
bool SendRequester::put_acknowledged(Wqe& wqe) noexcept {
  const bool invalidates = is_invalidation(wqe);
  if (!invalidates && wqe.delivery != kDelivered) return offers_.put(wqe);
  if (invalidates && (wqe.in_ring || (wqe.delivery & kMatched) != 0)) {
    return put_invalidation_alone(wqe);
  }
  if (!fits_now(wqe.len)) return invalidates ? put_invalidation_alone(wqe) : offers_.put(wqe);
  const SendWr wr = as_send_wr(wqe);
  const auto flags = static_cast<uint8_t>(flags_of(wr) | (invalidates ? wire::kInvalidates : 0));
  if (invalidates) {
    // the two go together
    const bool in_cells = wqe.len <= wire::kMaxInline;
    const uint32_t n_cells = in_cells
                                 ? wire::cells_of(Op::send, flags, static_cast<uint16_t>(wqe.len))
                                 : wire::cells_of(Op::send_bytes, flags, 0);
    if (!responses_.room_for_piece(n_cells + 1)) return false;
    const auto len = static_cast<uint32_t>(wqe.len);
    if (!in_cells && !core_.lane.payload().has_room_for_request_bytes(len)) return false;
    // as in put_in_bytes(), and before the first of the two: the second cannot wait
    if (!in_cells && core_.lane->response_rx.cells.ready()) return false;
    if (!in_cells && !core_.lane->prepare_request_bytes()) return put_invalidation_alone(wqe);
    put_invalidation(wqe);
  }
  const Put put = put_message(invalidates ? as_send_wr(wqe) : wr, flags);
  assert(!invalidates || put == Put::done);
  if (put == Put::no_room) return false;
  if (put != Put::done) return offers_.put(wqe);
  wqe.end_pos = core_.lane->request_tx.cells.pos();
  pending_.add(wqe);
  return true;
}

// There is room for it: see Responses::room_for_piece().
void SendRequester::put_invalidation(Wqe& wqe) noexcept {
  wqe.through_ring = true;  // for its owner to execute
  wqe.range_at = 0;
  wqe.range_count = 1;
  wqe.ranges[0] = {0, 0, wqe.imm};
  wqe.imm = core_.shown(wqe.imm).key;  // what the message shows
  core_.note_piece(wqe, 1, wqe.ranges[0], 0).check_only = true;
  wire::store(core_.lane->request_tx.cells.body(), Head::make(Op::invalidate, 0, 0, wqe.imm));
  core_.lane.publish_request(1);
}

// Of a message that will be offered. True: it needs the send queue no longer.
bool SendRequester::put_invalidation_alone(Wqe& wqe) noexcept {
  if (!wqe.in_ring) {
    if (!responses_.room_for_piece(1)) return false;
    put_invalidation(wqe);
    wqe.end_pos = core_.lane->request_tx.cells.pos();
    return false;
  }
  if (pending_.done_through() < wqe.end_pos) responses_.learn_executed();
  if (pending_.done_through() < wqe.end_pos || core_.lane.broken()) return false;
  if (wqe.denial == protect::Denial::none) return offers_.put(wqe);
  pending_.complete(wqe);
  return true;
}

}  // namespace aperture::qp
