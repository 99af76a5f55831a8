// Frames of what was published: see outgoing.hpp.
#include "link/tcp/outgoing.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/guarded_copy.hpp"
#include "base/invariant.hpp"
#include "link/tcp/lane_memory.hpp"

namespace aperture::link::tcp {

using wire::FrameChannel;

namespace {

// A batch at its largest: all cells of both rings, and four runs of bytes that are copied.
constexpr size_t kMostHeaders = 8 * wire::kPieceFrameBytes +
                                4 * (wire::kBytesFrameBytes + wire::kFrameTrailerBytes) +
                                2 * (wire::kCellsFrameBytes + wire::kFrameTrailerBytes) +
                                2 * (wire::kCreditFrameBytes + wire::kFrameTrailerBytes);
constexpr size_t kMostCells =
    (size_t{1} << LaneMemory::kRequestCellsLog2) + (size_t{1} << LaneMemory::kResponseCellsLog2);

static_assert(kMostHeaders + kMostCells * ring::kBodyBytes + 4 * 2048 <= LaneMemory::kBufferBytes);

}  // namespace

std::span<const iovec> Outgoing::pieces() const noexcept {
  assert(first_piece_ <= pieces_end_);
  return std::span(pieces_).subspan(first_piece_, pieces_end_ - first_piece_);
}

void Outgoing::on_taken(size_t n) noexcept {
  while (n != 0) {
    assert(first_piece_ < pieces_end_);
    iovec& piece = pieces_[first_piece_];
    const size_t of_it = std::min(n, piece.iov_len);
    piece.iov_base = static_cast<std::byte*>(piece.iov_base) + of_it;
    piece.iov_len -= of_it;
    n -= of_it;
    if (piece.iov_len == 0) ++first_piece_;
  }
}

void Outgoing::begin() noexcept {
  assert(!is_under_way());
  first_piece_ = pieces_end_ = 0;
  carried_ = 0;
  filled_ = 0;
}

std::span<std::byte> Outgoing::take_buffer(size_t n) noexcept {
  assert(n <= buffer_.size() - filled_);
  const auto part = buffer_.subspan(filled_, n);
  filled_ += n;
  add_piece(part.data(), n);
  return part;
}

void Outgoing::add_piece(const std::byte* from, size_t n) noexcept {
  if (pieces_end_ != 0) {
    iovec& last = pieces_[pieces_end_ - 1];
    if (static_cast<std::byte*>(last.iov_base) + last.iov_len == from) {
      last.iov_len += n;
      return;
    }
  }
  assert(pieces_end_ < kMostPieces);
  pieces_[pieces_end_++] = {const_cast<std::byte*>(from), n};
}

bool Outgoing::gather(Lane& lane) noexcept {
  begin();
  add_bytes(FrameChannel::responses, lane.response_tx.bytes);
  add_cells(FrameChannel::responses, lane.response_tx);
  add_bytes(FrameChannel::requests, lane.request_tx.bytes);
  add_cells(FrameChannel::requests, lane.request_tx);
  add_credit(FrameChannel::requests);
  add_credit(FrameChannel::responses);
  return is_under_way();
}

void Outgoing::gather_close() noexcept {
  begin();
  const auto frame = take_buffer(wire::kCloseFrameBytes).first<wire::kCloseFrameBytes>();
  wire::encode_close(frame);
  add_trailer(frame, {});
}

// Its place was reserved behind everything of which frames are made by now.
void Outgoing::add_piece_frame(ring::ChannelTx& tx, FrameChannel channel, uint64_t position,
                               std::span<const std::byte> payload) noexcept {
  assert(!trailer_.is_there() && !payload.empty());
  assert(tx.cells.pos() == ends_.drained[at(channel)].cells.pos());
  const auto frame = take_buffer(wire::kPieceFrameBytes).first<wire::kPieceFrameBytes>();
  std::memcpy(&frame[wire::kPieceHeaderBytes], tx.cells.body(), ring::kBodyBytes);
  wire::encode(
      wire::PieceFrame{channel, Wild(position), Wild(static_cast<uint32_t>(payload.size()))},
      frame);
  assert(pieces_end_ < kMostPieces);
  assert(carried_ < kMostCarried);
  payloads_[carried_++] = {pieces_end_, tx.bytes.at(position) + payload.size()};
  pieces_[pieces_end_++] = {const_cast<std::byte*>(payload.data()), payload.size()};
  ++frames_;
  // the caller publishes the record and commits its bytes
  ends_.drained[at(channel)].cells.advance(1);
  ends_.drained_bytes[at(channel)] = ring::ByteReader::after(position, payload.size());
}

bool Outgoing::copy_payload_left() noexcept {
  for (size_t i = 0; i < carried_; ++i) {
    iovec& left = pieces_[payloads_[i].piece];
    std::byte* const to = payloads_[i].end - left.iov_len;
    if (payloads_[i].piece >= first_piece_ && !guarded_copy(to, left.iov_base, left.iov_len))
      return false;
    left.iov_base = to;
  }
  carried_ = 0;
  return true;
}

bool Outgoing::has_published(Lane& lane) const noexcept {
  const auto& drained = ends_.drained;
  return lane.request_tx.cells.pos() != drained[at(FrameChannel::requests)].cells.pos() ||
         lane.response_tx.cells.pos() != drained[at(FrameChannel::responses)].cells.pos();
}

bool Outgoing::has_urgent(Lane& lane) const noexcept {
  return is_under_way() || has_published(lane) ||
         owes_much(FrameChannel::requests, lane.request_rx) ||
         owes_much(FrameChannel::responses, lane.response_rx);
}

bool Outgoing::owes_much(FrameChannel channel, const ring::ChannelRx& rx) const noexcept {
  const Told& told = told_[at(channel)];
  const uint64_t cells = rx.cells.pos() - rx.unpublished() - told.consumed;
  return cells >= ends_.filled[at(channel)].cells.capacity() / 4 ||
         (cells != 0 && rx.freed_bytes() - told.bytes_consumed >= rx.bytes.size() / 4);
}

// --- one channel ---

// Two runs at most, since no more than a ring full can be under way: one to where the end of the
// ring was reached or skipped, and one from its beginning.
void Outgoing::add_bytes(FrameChannel channel, ring::ByteWriter& ring) noexcept {
  uint64_t& sent = ends_.drained_bytes[at(channel)];
  const uint64_t committed = ring.committed();
  assert(committed >= sent && committed - sent <= ring.size());
  while (sent != committed) {
    const uint64_t ring_end = (sent / ring.size() + 1) * ring.size();
    uint64_t to = std::min(committed, ring_end);
    if (const uint64_t skipped = ring.skipped_from(); skipped >= sent && skipped < to) {
      if (skipped == sent) {
        sent = ring_end;
        continue;
      }
      to = skipped;
    }
    add_run(channel, sent, {ring.at(sent), to - sent});
    sent = to;
  }
}

void Outgoing::add_run(FrameChannel channel, uint64_t position,
                       std::span<const std::byte> run) noexcept {
  const auto header = take_buffer(wire::kBytesFrameBytes).first<wire::kBytesFrameBytes>();
  wire::encode(wire::BytesFrame{channel, Wild(position), Wild(static_cast<uint32_t>(run.size()))},
               header);
  if (run.size() <= kCopiedBytes) {
    std::memcpy(take_buffer(run.size()).data(), run.data(), run.size());
  } else {
    add_piece(run.data(), run.size());
  }
  add_trailer(header, run);
}

// Whatever was published are whole messages: the position grows by one at a time.
void Outgoing::add_cells(FrameChannel channel, const ring::ChannelTx& tx) noexcept {
  ring::CellReader& cells = ends_.drained[at(channel)].cells;
  assert(tx.cells.pos() >= cells.pos());
  const uint64_t count = tx.cells.pos() - cells.pos();
  if (count == 0) return;
  assert(count <= tx.cells.capacity());
  APERTURE_DEBUG_ASSERT(cells.ready());
  const auto frame = take_buffer(wire::kCellsFrameBytes + count * ring::kBodyBytes);
  const auto bodies = frame.subspan(wire::kCellsFrameBytes);
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(&bodies[i * ring::kBodyBytes], cells.body(i), ring::kBodyBytes);
  }
  cells.advance(static_cast<uint32_t>(count));
  wire::encode(wire::CellsFrame{channel, Wild(static_cast<uint16_t>(count))}, frame);
  add_trailer(frame.first(wire::kCellsFrameBytes), bodies);
}

// A position that makes no sense comes from a record of the other side's: refresh() passes it by,
// so that what we say stays sound.
void Outgoing::add_credit(FrameChannel channel) noexcept {
  ring::ChannelTx& filled = ends_.filled[at(channel)];
  const uint64_t consumed = filled.refresh();
  Told& told = told_[at(channel)];
  if (consumed == told.consumed) return;
  const uint64_t bytes_consumed = filled.bytes.granted() - filled.bytes.size();
  assert(consumed > told.consumed && bytes_consumed >= told.bytes_consumed);
  told = {consumed, bytes_consumed};
  const auto frame = take_buffer(wire::kCreditFrameBytes).first<wire::kCreditFrameBytes>();
  wire::encode(wire::CreditFrame{channel, Wild(consumed), Wild(bytes_consumed)}, frame);
  add_trailer(frame, {});
}

void Outgoing::add_trailer(std::span<const std::byte> header,
                           std::span<const std::byte> rest) noexcept {
  const uint64_t number = frames_++;
  if (!trailer_.is_there()) return;
  const KeyedTag trailer = wire::frame_trailer(trailer_, number, header, rest);
  std::memcpy(take_buffer(trailer.size()).data(), trailer.data(), trailer.size());
}

}  // namespace aperture::link::tcp
