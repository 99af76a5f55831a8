// Frames checked and placed: see incoming.hpp.
#include "link/tcp/incoming.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace aperture::link::tcp {

using wire::FrameChannel;
using wire::FrameKind;

namespace {

// The longest frame fits behind the rest of another.
static_assert(LaneMemory::kBufferBytes >= 2 * (wire::kMaxFrameBytes + wire::kFrameTrailerBytes));

// Behind a piece there is often another: no more of it than this is taken into the buffer, from
// where it would have to be copied.
constexpr size_t kBehindPieceBytes = 256;

constexpr const char* kDamaged = "a damaged frame, or one with reserved bits";

}  // namespace

Incoming::Places Incoming::places(size_t limit) noexcept {
  assert(!broken_ && limit != 0);
  Places places{};
  const auto add = [&](std::byte* to, size_t n) {
    n = std::min(n, limit - places.bytes);
    if (n == 0) return;
    places.iov[places.count++] = {to, n};
    places.bytes += n;
  };
  const auto rest = payload_.subspan(placed_);
  assert(rest.empty() || here() == 0);
  make_room();
  add(rest.data(), rest.size());
  size_t room = buffer_.size() - end_;
  if (after_piece_ || is_piece_) room = std::min(room, kBehindPieceBytes);
  add(buffer_.data() + end_, room);
  return places;
}

// The rest of a frame is moved to the front where the longest one might not fit behind it.
void Incoming::make_room() noexcept {
  if (begin_ == 0) return;
  if (here() != 0) {
    if (buffer_.size() - begin_ >= wire::kMaxFrameBytes + wire::kFrameTrailerBytes) return;
    std::memmove(buffer_.data(), buffer_.data() + begin_, here());
  }
  end_ = here();
  begin_ = 0;
}

const char* Incoming::on_received(size_t n) noexcept {
  assert(!broken_);
  const size_t direct = std::min(n, payload_.size() - placed_);
  placed_ += direct;
  end_ += n - direct;
  assert(end_ <= buffer_.size());
  return parse();
}

const char* Incoming::parse() noexcept {
  const char* wrong = nullptr;
  for (bool again = true; again && wrong == nullptr;) wrong = take_next(again);
  broken_ = wrong != nullptr;
  return wrong;
}

// --- a payload that lands elsewhere ---

Landing Incoming::publish_landing() noexcept {
  assert(is_piece_fresh_ && placed_ == 0 && !is_landing_);
  is_piece_fresh_ = false;
  is_landing_ = true;
  ends_.filled[at(payload_channel_)].cells.publish(1);
  return {nullptr, payload_at_, payload_.size()};
}

iovec Incoming::place_behind_landing() noexcept {
  assert(is_landing_);
  // what waits here is copied out before anything is received
  begin_ = end_ = 0;
  return {buffer_.data(), kBehindPieceBytes};
}

const char* Incoming::on_landed(size_t behind) noexcept {
  assert(is_landing_ && begin_ == 0 && behind <= kBehindPieceBytes);
  end_ = behind;
  end_payload();
  return parse();
}

void Incoming::on_landed_in_part(size_t n) noexcept {
  assert(is_landing_ && here() == 0 && n < payload_.size());
  placed_ = n;
}

void Incoming::end_payload() noexcept {
  if (is_piece_ && !is_landing_) ends_.filled[at(payload_channel_)].cells.publish(1);
  payload_ = {};
  placed_ = 0;
  is_piece_ = is_piece_fresh_ = is_landing_ = false;
  ++frames_;
}

const char* Incoming::take_next(bool& again) noexcept {
  again = false;
  if (!payload_.empty()) {
    is_piece_fresh_ = false;
    take_payload(std::min(here(), payload_.size() - placed_));
    if (placed_ < payload_.size()) return nullptr;
    if (here() < trailer_bytes()) return nullptr;
    if (!has_right_trailer(payload_header_, payload_, waiting().data())) return wrong_trailer();
    begin_ += trailer_bytes();
    end_payload();
  }
  if (closed_) return here() != 0 ? "more after it had said that this was all" : nullptr;
  if (here() < wire::kFrameHeadBytes) return nullptr;
  const auto shape = wire::frame_shape(waiting().first<wire::kFrameHeadBytes>());
  if (!shape.ok()) return "a frame of a kind or length that there is not";
  const bool is_piece = shape.value().kind == FrameKind::piece;
  if (is_piece && trailer_.is_there()) return "a frame that has no tag or checksum";
  const bool trailer_follows = shape.value().kind != FrameKind::bytes;
  if (here() < shape.value().bytes + (trailer_follows ? trailer_bytes() : 0)) return nullptr;
  after_piece_ = is_piece;
  const char* const wrong = take_frame(shape.value());
  // of a piece's payload, nothing is taken before it was asked whether that may land
  again = missing_of_piece() == 0;
  return wrong;
}

const char* Incoming::take_frame(const wire::FrameShape& shape) noexcept {
  const auto frame = waiting().first(shape.bytes);
  if (shape.kind == FrameKind::bytes) {
    begin_ += frame.size();
    return begin_bytes(frame);
  }
  if (shape.kind == FrameKind::piece) {
    begin_ += frame.size();
    return begin_piece(frame);
  }
  const size_t header_bytes =
      shape.kind == FrameKind::cells ? wire::kCellsFrameBytes : frame.size();
  if (!has_right_trailer(frame.first(header_bytes), frame.subspan(header_bytes),
                         waiting().data() + frame.size())) {
    return wrong_trailer();
  }
  begin_ += frame.size() + trailer_bytes();
  ++frames_;
  switch (shape.kind) {
    case FrameKind::cells: return take_cells(frame);
    case FrameKind::credit: return take_credit(frame);
    default: return take_close(frame);
  }
}

bool Incoming::has_right_trailer(std::span<const std::byte> header, std::span<const std::byte> rest,
                                 const std::byte* trailer) const noexcept {
  if (!trailer_.is_there()) return true;
  KeyedTag got;
  std::memcpy(got.data(), trailer, got.size());
  return equal_in_constant_time(got, wire::frame_trailer(trailer_, frames_, header, rest));
}

const char* Incoming::wrong_trailer() const noexcept {
  return trailer_.kind == wire::FrameTrailer::Kind::tag
             ? "a frame whose tag is not made with this connection's key"
             : "a frame that does not have the checksum of its contents: damaged on its way";
}

// --- one frame ---

const char* Incoming::take_cells(std::span<const std::byte> frame) noexcept {
  const auto head = wire::decode_cells(frame);
  if (!head.ok()) return kDamaged;
  ring::ChannelTx& filled = ends_.filled[at(head.value().channel)];
  filled.refresh();
  uint16_t count = 0;
  const uint64_t free = filled.cells.free_cells();
  if (!head.value().count.bounded(static_cast<uint16_t>(free), count)) {
    return "more messages than there is room for";
  }
  const auto bodies = frame.subspan(wire::kCellsFrameBytes);
  for (uint32_t i = 0; i < count; ++i) {
    std::memcpy(filled.cells.body(i), &bodies[i * ring::kBodyBytes], ring::kBodyBytes);
  }
  filled.cells.publish(count);
  return nullptr;
}

// It begins where the last one has ended, or, the end of the ring skipped, at its beginning.
const char* Incoming::begin_bytes(std::span<const std::byte> frame) noexcept {
  assert(payload_.empty());
  const auto head = wire::decode_bytes(frame);
  if (!head.ok()) return kDamaged;
  const auto& [channel, position, length] = head.value();
  std::memcpy(payload_header_.data(), frame.data(), frame.size());
  return begin_payload(channel, position, length);
}

// Its record is put where the next message belongs, and published with the last of the payload.
const char* Incoming::begin_piece(std::span<const std::byte> frame) noexcept {
  assert(payload_.empty() && !trailer_.is_there());
  const auto head = wire::decode_piece(frame);
  if (!head.ok()) return kDamaged;
  const auto& [channel, position, length] = head.value();
  ring::ChannelTx& filled = ends_.filled[at(channel)];
  if (!filled.room(1)) return "more messages than there is room for";
  if (const char* wrong = begin_payload(channel, position, length); wrong != nullptr) return wrong;
  std::memcpy(filled.cells.body(), &frame[wire::kPieceHeaderBytes], ring::kBodyBytes);
  is_piece_ = is_piece_fresh_ = true;
  return nullptr;
}

const char* Incoming::begin_payload(FrameChannel channel, Wild<uint64_t> where,
                                    Wild<uint32_t> how_long) noexcept {
  ring::ChannelTx& filled = ends_.filled[at(channel)];
  filled.refresh();
  const uint64_t size = filled.bytes.size();
  const uint64_t end = filled.bytes.committed();
  const uint64_t next_lap = (end + size - 1) / size * size;
  // compared with our own, and equal to it from here on
  const uint64_t position = where.unchecked();
  if (position != end && position != next_lap) return "bytes that do not follow the last ones";
  uint32_t length = 0;
  if (!how_long.bounded(static_cast<uint32_t>(size - position % size), length)) {
    return "bytes beyond the end of their ring";
  }
  if (position + length > filled.bytes.granted()) return "bytes over some that were not read yet";
  payload_ = {filled.bytes.at(position), length};
  payload_at_ = position;
  payload_channel_ = channel;
  placed_ = 0;
  filled.bytes.commit(position, length);
  return nullptr;
}

// Of it, what has come into the buffer with its header.
void Incoming::take_payload(size_t n) noexcept {
  if (n == 0) return;
  std::memcpy(&payload_[placed_], waiting().data(), n);
  placed_ += n;
  begin_ += n;
}

const char* Incoming::take_credit(std::span<const std::byte> frame) noexcept {
  const auto credit = wire::decode_credit(frame);
  if (!credit.ok()) return kDamaged;
  const size_t channel = at(credit.value().channel);
  ring::ChannelRx& drained = ends_.drained[channel];
  ring::ChannelWords& words = drained.words();
  uint64_t consumed = 0;
  uint64_t bytes_consumed = 0;
  if (!credit.value().consumed.bounded(drained.cells.pos(), consumed) ||
      !credit.value().bytes_consumed.bounded(ends_.drained_bytes[channel], bytes_consumed)) {
    return "that it had taken more than it was sent";
  }
  // relaxed: stored here alone
  if (consumed < words.consumed.load(std::memory_order_relaxed) ||
      bytes_consumed < words.bytes_consumed.load(std::memory_order_relaxed)) {
    return "that it had taken less than before";
  }
  // SYNC POINT: channel-bytes-consumed, as in ChannelRx::publish_consumed()
  words.bytes_consumed.store(bytes_consumed, std::memory_order_release);
  // SYNC POINT: channel-consumed: the responses that were sent before it have been placed
  words.consumed.store(consumed, std::memory_order_release);
  return nullptr;
}

const char* Incoming::take_close(std::span<const std::byte> frame) noexcept {
  if (!wire::decode_close(frame)) return kDamaged;
  closed_ = true;
  return nullptr;
}

}  // namespace aperture::link::tcp
