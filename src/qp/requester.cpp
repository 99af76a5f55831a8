// The requester: sends into the request ring, the send queue, and how it learns what became of it.
// What RMA puts into the ring: rma.cpp.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "base/barrier.hpp"
#include "base/iov.hpp"
#include "qp/qp.hpp"
#include "qp/tuning.hpp"

namespace aperture::qp {

using wire::Head;
using wire::Op;

namespace {

uint8_t send_flags(const SendWr& wr) noexcept {
  return static_cast<uint8_t>((wr.tagged ? wire::kTagged : 0) | (wr.has_imm ? wire::kImm : 0));
}

void store_imm(std::byte* body, size_t at, uint64_t imm) noexcept {
  std::memcpy(body + at, &imm, sizeof imm);
}

}  // namespace

Status Qp::send(const SendWr& wr) noexcept {
  if (state_ == QpState::ready && queue_.empty() && !(wr.fence && under_way())) [[likely]] {
    switch (put_send(wr)) {
      case Put::done: return {};
      case Put::no_room: return Errc::again;
      case Put::needs_wqe: break;
    }
  } else if (state_ != QpState::connecting && state_ != QpState::ready) {
    return Errc::again;  // the old connection is being wound up; the next call makes a new one
  }
  return queue_send(wr);
}

Qp::Put Qp::put_send(const SendWr& wr) noexcept {
  if (wr.delivery) return Put::needs_wqe;
  if (wr.completion && !port_.tx_cq->has_room()) return Put::no_room;
  if (wr.len <= wire::kMaxInline) {
    const uint32_t n = wire::cells_of(Op::send, send_flags(wr), static_cast<uint16_t>(wr.len));
    return put_send_inline(wr, n);
  }
  if (wr.len > kEagerBytes || peer_pressure_) return Put::needs_wqe;
  return put_send_bytes(wr);
}

Qp::Put Qp::put_send_inline(const SendWr& wr, uint32_t n_cells) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  if (!tx.room(n_cells)) return Put::no_room;
  const uint8_t flags = send_flags(wr);
  const Head head = Head::make(Op::send, flags, static_cast<uint16_t>(wr.len), wr.tag);
  std::byte* body = tx.cells.body();
  std::memcpy(body, &head, sizeof head);
  size_t at = wire::kHeadBytes;
  if (wr.has_imm) {
    store_imm(body, at, wr.imm);
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
  tx.cells.publish(n_cells);
  published_request();
  complete_send(wr);
  return Put::done;
}

Qp::Put Qp::put_send_bytes(const SendWr& wr) noexcept {
  ring::ChannelTx& tx = lane_->request_tx;
  const uint8_t flags = send_flags(wr);
  const uint32_t n_cells = wire::cells_of(Op::send_bytes, flags, 0);
  uint64_t pos = 0;
  if (!tx.room(n_cells)) return Put::no_room;
  if (!tx.reserve_bytes(static_cast<uint32_t>(wr.len), pos)) return Put::no_room;
  if (!lane_->prepare_request_bytes()) return Put::needs_wqe;
  gather(tx.bytes.at(pos), wr.iov, wr.iov_count, 0, wr.len);
  tx.bytes.commit(pos, static_cast<uint32_t>(wr.len));
  const Head head = Head::make(Op::send_bytes, flags, 0, wr.tag);
  std::byte* body = tx.cells.body();
  std::memcpy(body, &head, sizeof head);
  wire::store_fields(body, wire::SendBytesFields{pos, wr.len});
  if (wr.has_imm) store_imm(body, wire::kHeadBytes + sizeof(wire::SendBytesFields), wr.imm);
  tx.cells.publish(n_cells);
  published_request();
  complete_send(wr);
  return Put::done;
}

void Qp::complete_send(const SendWr& wr) noexcept {
  if (wr.completion) {
    port_.tx_cq->push({.context = wr.context, .flags = wr.flags, .len = wr.len});
  }
  if (port_.send_counter != nullptr) port_.send_counter->add(1);
}

Status Qp::queue_send(const SendWr& wr) noexcept {
  if (wr.completion && !port_.tx_cq->has_room()) return Errc::again;
  const bool begin_now = state_ == QpState::ready && queue_.empty() && !(wr.fence && under_way());
  if (!begin_now && port_.queued >= port_.tx_size) return Errc::again;
  Wqe* wqe = port_.wqes.take();
  if (wqe == nullptr) return Errc::again;
  *static_cast<ListHook*>(wqe) = {};
  wqe->kind = WqeKind::send;
  wqe->tagged = wr.tagged;
  wqe->has_imm = wr.has_imm;
  wqe->inject = wr.inject;
  wqe->completion = wr.completion;
  wqe->delivery = wr.delivery;
  wqe->fence = wr.fence;
  wqe->len = wr.len;
  wqe->tag = wr.tag;
  wqe->imm = wr.imm;
  wqe->context = wr.context;
  wqe->flags = wr.flags;
  wqe->done = 0;
  wqe->in_ring = false;
  wqe->denial = protect::Denial::none;
  wqe->error = Errc::ok;
  if (wr.inject) {
    gather(wqe->injected.data(), wr.iov, wr.iov_count, 0, wr.len);
    wqe->iov[0] = {wqe->injected.data(), wr.len};
    wqe->iov_count = 1;
  } else {
    std::copy_n(wr.iov, wr.iov_count, wqe->iov.begin());
    wqe->iov_count = static_cast<uint8_t>(wr.iov_count);
  }
  wqe->reserved = wr.completion;
  if (wqe->reserved) port_.tx_cq->reserve();
  if (begin_now && put_acknowledged(*wqe)) {
    update_pending();
    return {};
  }
  queue_.push_back(wqe);
  ++port_.queued;
  update_pending();
  return {};
}

SendWr Qp::as_send_wr(const Wqe& wqe) const noexcept {
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

// Puts as much of the operation into the ring as there is room for. True: it needs the send queue
// no longer (and may be gone).
bool Qp::start(Wqe& wqe) noexcept {
  const bool is_rma = wqe.kind != WqeKind::send;
  if (wqe.fence && under_way() && !(is_rma && wqe.in_ring)) return false;
  if (is_atomic(wqe.kind)) return put_waiting_atomic(wqe);
  if (is_rma) return put_rma(wqe);
  if (wqe.reserved) port_.tx_cq->unreserve();
  const Put put = put_send(as_send_wr(wqe));
  if (put == Put::done) {
    port_.wqes.give(&wqe);
    return true;
  }
  if (wqe.reserved) port_.tx_cq->reserve();
  return put == Put::needs_wqe && put_acknowledged(wqe);
}

void Qp::run_queue() noexcept {
  while (Wqe* wqe = queue_.front()) {
    // out of the list first: start() moves it to another one, or gives it back
    queue_.remove(wqe);
    if (!start(*wqe)) {
      queue_.push_front(wqe);
      return;
    }
    --port_.queued;
  }
}

// In a domain with raw keys: handles that have been mapped.
bool Qp::names_mapped_keys(const RemoteRange* ranges, size_t count) const noexcept {
  return std::all_of(ranges, ranges + count,
                     [this](const RemoteRange& r) { return port_.raw_keys->has(r.key); });
}

Status Qp::rma(WqeKind kind, const RmaWr& wr) noexcept {
  if (port_.raw_keys != nullptr && !names_mapped_keys(wr.ranges, wr.range_count)) [[unlikely]]
    return Errc::no_key;
  if (state_ != QpState::ready && state_ != QpState::connecting) return Errc::again;
  if (port_.tx_cq == nullptr ? wr.completion : !port_.tx_cq->has_room()) return Errc::again;
  const bool begin_now = state_ == QpState::ready && queue_.empty();
  if (!begin_now && port_.queued >= port_.tx_size) return Errc::again;
  if (begin_now && lane_->direct.allowed && !lane_->request_tx.consumer_hot())
    foresee_direct(wr.ranges[0].key);
  Wqe* wqe = port_.wqes.take();
  if (wqe == nullptr) return Errc::again;
  *static_cast<ListHook*>(wqe) = {};
  wqe->kind = kind;
  wqe->tagged = false;
  wqe->has_imm = wr.has_imm;
  wqe->inject = wr.inject;
  wqe->completion = wr.completion;
  wqe->delivery = 0;
  wqe->fence = wr.fence;
  wqe->commit = wr.commit;
  wqe->len = wr.len;
  wqe->imm = wr.imm;
  wqe->context = wr.context;
  wqe->flags = wr.flags;
  wqe->done = wqe->range_done = 0;
  wqe->range_at = wqe->checked = wqe->committed = wqe->region_at = 0;
  wqe->region = 0;
  wqe->imm_sent = wqe->in_ring = wqe->direct_done = false;
  wqe->through_ring = wr.commit;
  wqe->denial = protect::Denial::none;
  wqe->error = Errc::ok;
  std::copy_n(wr.ranges, wr.range_count, wqe->ranges.begin());
  wqe->range_count = static_cast<uint8_t>(wr.range_count);
  if (wr.inject) {
    gather(wqe->injected.data(), wr.iov, wr.iov_count, 0, wr.len);
    wqe->iov[0] = {wqe->injected.data(), wr.len};
    wqe->iov_count = 1;
  } else {
    std::copy_n(wr.iov, wr.iov_count, wqe->iov.begin());
    wqe->iov_count = static_cast<uint8_t>(wr.iov_count);
  }
  wqe->reserved = port_.tx_cq != nullptr;  // an error is told even where success is not
  if (wqe->reserved) port_.tx_cq->reserve();
  if (!begin_now || !start(*wqe)) {
    queue_.push_back(wqe);
    ++port_.queued;
  }
  update_pending();
  return {};
}

void Qp::published_request() noexcept {
  if (lane_->fence_sends) [[unlikely]]
    full_fence();
  if (lane_->request_tx.must_ring()) [[unlikely]]
    lane_->ring_doorbell();
}

void Qp::published_response() noexcept {
  if (lane_->fence_sends) [[unlikely]]
    full_fence();
  if (lane_->response_tx.must_ring()) [[unlikely]]
    lane_->ring_doorbell();
}

// Refusals and results were stored before `consumed`: all of them are taken first, or a refused
// operation would end as a success. They are a ring full at most.
void Qp::learn_executed() noexcept {
  const uint64_t consumed = lane_->request_tx.refresh();
  const ring::CellReader& responses = lane_->response_rx.cells;
  const uint64_t at_most = responses.pos() + lane_->response_tx.cells.capacity();
  while (!broken_ && responses.ready() && responses.pos() <= at_most) poll_responses();
  if (!broken_ && consumed > done_through_) retire(consumed);
}

void Qp::acknowledge() noexcept {
  learn_executed();
  if (!pending_.empty() || !queue_.empty()) claim_stalled_head();
}

void Qp::retire(uint64_t done_through) noexcept {
  done_through_ = done_through;
  while (piece_head_ != piece_tail_ && pieces_[piece_head_ % pieces_.size()].pos < done_through) {
    ++piece_head_;
  }
  while (Wqe* wqe = pending_.front()) {
    if (wqe->end_pos > done_through) break;
    retire_from_pending(*wqe);
    if (returns_data(wqe->kind) && wqe->denial == protect::Denial::none && wqe->error == Errc::ok &&
        wqe->done != wqe->len) {
      wqe->error = Errc::protocol;  // acknowledged without its data
    }
    complete(*wqe);
  }
}

void Qp::add_to_pending(Wqe& wqe) noexcept {
  pending_.push_back(&wqe);
  if (awaits_ack(wqe)) ++awaited_;
  if (returns_data(wqe.kind)) ++returning_;
}

void Qp::retire_from_pending(Wqe& wqe) noexcept {
  pending_.remove(&wqe);
  if (awaits_ack(wqe)) --awaited_;
  if (returns_data(wqe.kind)) --returning_;
}

void Qp::on_nak(uint64_t pos, uint16_t denial) noexcept {
  for (uint64_t i = piece_head_; i != piece_tail_; ++i) {
    const Piece& piece = pieces_[i % pieces_.size()];
    if (piece.pos != pos) continue;
    if (piece.wqe->denial == protect::Denial::none) {
      const unsigned why = denial & 0xffu;
      const bool known = why > 0 && why < protect::kDenials;
      piece.wqe->denial = known ? static_cast<protect::Denial>(why) : protect::Denial::unknown_key;
      if (is_atomic(piece.wqe->kind)) piece.wqe->range_at = static_cast<uint8_t>(denial >> 8);
    }
    return;
  }
  break_protocol("a refusal of a request that is not under way");
}

void Qp::complete(Wqe& wqe) noexcept {
  if (wqe.denial != protect::Denial::none && wqe.error == Errc::ok) {
    wqe.error = Errc::access_denied;
  }
  Counter* counter = port_.counter_of(wqe.kind);
  if (wqe.reserved) port_.tx_cq->unreserve();
  if (wqe.error == Errc::ok) {
    if (wqe.completion) {
      port_.tx_cq->push({.context = wqe.context, .flags = wqe.flags, .len = wqe.len});
    }
    if (counter != nullptr) counter->add(1);
  } else {
    CompletionError e;
    e.entry = {.context = wqe.context, .flags = wqe.flags, .len = 0};
    e.entry.tag = wqe.kind == WqeKind::send ? wqe.tag : 0;
    e.err = wqe.error;
    e.vendor = static_cast<uint32_t>(wqe.denial);
    explain(wqe, e);
    if (port_.tx_cq != nullptr) port_.tx_cq->push_error(std::move(e));
    if (counter != nullptr) counter->add_error(1);
  }
  if (wqe.atomic != nullptr) [[unlikely]]
    port_.atomics.give(std::exchange(wqe.atomic, nullptr));
  port_.wqes.give(&wqe);
}

Status Qp::cancel(void* context) noexcept {
  for (Wqe* wqe = queue_.front(); wqe != nullptr; wqe = queue_.after(wqe)) {
    if (wqe->context != context || wqe->in_ring || wqe->done != 0) continue;
    queue_.remove(wqe);
    --port_.queued;
    wqe->error = Errc::canceled;
    complete(*wqe);
    return {};
  }
  return Errc::no_entry;
}

}  // namespace aperture::qp
