// The codec of frames: see frame.hpp for the layouts.
#include "wire/frame.hpp"

#include <cassert>

#include "base/crc32c.hpp"
#include "wire/codec.hpp"

namespace aperture::wire {

// The fields of each frame. Found by their arguments, so not in a nameless namespace.

static void channel_field(auto& io, auto& channel) noexcept {
  io.one_of(1, channel, FrameChannel::requests, FrameChannel::responses);
}

static void fields(auto& io, Like<CellsFrame> auto& cells) noexcept {
  channel_field(io, cells.channel);
  io.number(2, cells.count, kMaxFrameCells);
}

static void fields(auto& io, Like<BytesFrame> auto& bytes) noexcept {
  channel_field(io, bytes.channel);
  io.zeros(2, 4);
  io.number(8, bytes.position);
  io.number(16, bytes.length);
}

static void fields(auto& io, Like<PieceFrame> auto& piece) noexcept {
  channel_field(io, piece.channel);
  io.zeros(2, 4);
  io.number(8, piece.position);
  io.number(16, piece.length);
}

static void fields(auto& io, Like<CreditFrame> auto& credit) noexcept {
  channel_field(io, credit.channel);
  io.zeros(2, 4);
  io.number(8, credit.consumed);
  io.number(16, credit.bytes_consumed);
}

namespace {

constexpr size_t kCrcAt = 4;

uint32_t crc_of(std::span<const std::byte> frame) noexcept {
  return crc32c(frame.subspan(kCrcAt + sizeof(uint32_t)), crc32c(frame.first(kCrcAt)));
}

template <typename Message>
void encode_as(FrameKind kind, const Message& message, std::span<std::byte> header,
               std::span<std::byte> frame) noexcept {
  std::fill(header.begin(), header.end(), std::byte{0});
  store<uint8_t>(header, 0, static_cast<uint8_t>(kind));
  write(message, header);
  store<uint32_t>(header, kCrcAt, crc_of(frame));
}

bool is_sound(FrameKind kind, size_t header_bytes, std::span<const std::byte> frame) noexcept {
  return frame.size() >= header_bytes && load<uint8_t>(frame, 0) == static_cast<uint8_t>(kind) &&
         load<uint32_t>(frame, kCrcAt) == crc_of(frame);
}

template <typename Message>
Result<Message> decode_as(FrameKind kind, size_t header_bytes,
                          std::span<const std::byte> frame) noexcept {
  if (!is_sound(kind, header_bytes, frame)) return Errc::protocol;
  return read<Message>(frame);
}

KeyedTag frame_tag(const TagKey& key, uint64_t number, std::span<const std::byte> header,
                   std::span<const std::byte> rest) noexcept {
  assert(header.size() <= kMaxFrameHeaderBytes);
  // what is hashed under this key is either this, 40 bytes at most, or empty or a multiple of 60 or
  // 64: the one never passes for the other
  std::array<std::byte, sizeof number + kMaxFrameHeaderBytes + sizeof(KeyedTag)> text;
  const KeyedTag inner = keyed_tag(key, rest);
  store<uint64_t>(text, 0, number);
  std::memcpy(&text[sizeof number], header.data(), header.size());
  std::memcpy(&text[sizeof number + header.size()], inner.data(), inner.size());
  return keyed_tag(key, std::span(text).first(sizeof number + header.size() + inner.size()));
}

KeyedTag frame_checksum(uint64_t number, std::span<const std::byte> header,
                        std::span<const std::byte> rest) noexcept {
  std::array<std::byte, sizeof number> first;
  store<uint64_t>(first, 0, number);
  KeyedTag sum{};
  store<uint32_t>(sum, 0, crc32c(rest, crc32c(header, crc32c(first))));
  return sum;
}

}  // namespace

void encode(const CellsFrame& cells, std::span<std::byte> frame) noexcept {
  assert(frame.size() == kCellsFrameBytes + cells.count.unchecked() * ring::kBodyBytes);
  encode_as(FrameKind::cells, cells, frame.first(kCellsFrameBytes), frame);
}

void encode(const PieceFrame& piece, std::span<std::byte, kPieceFrameBytes> frame) noexcept {
  encode_as(FrameKind::piece, piece, frame.first<kPieceHeaderBytes>(), frame);
}

void encode(const BytesFrame& bytes, std::span<std::byte, kBytesFrameBytes> frame) noexcept {
  encode_as(FrameKind::bytes, bytes, frame, frame);
}

void encode(const CreditFrame& credit, std::span<std::byte, kCreditFrameBytes> frame) noexcept {
  encode_as(FrameKind::credit, credit, frame, frame);
}

void encode_close(std::span<std::byte, kCloseFrameBytes> frame) noexcept {
  std::fill(frame.begin(), frame.end(), std::byte{0});
  store<uint8_t>(frame, 0, static_cast<uint8_t>(FrameKind::close));
  store<uint32_t>(frame, kCrcAt, crc_of(frame));
}

Result<FrameShape> frame_shape(std::span<const std::byte, kFrameHeadBytes> head) noexcept {
  const auto kind = static_cast<FrameKind>(load<uint8_t>(head, 0));
  const auto count = load<uint16_t>(head, 2);
  switch (kind) {
    case FrameKind::cells:
      if (count == 0 || count > kMaxFrameCells) return Errc::protocol;
      return FrameShape{kind, kCellsFrameBytes + count * ring::kBodyBytes};
    case FrameKind::bytes: return FrameShape{kind, kBytesFrameBytes};
    case FrameKind::piece: return FrameShape{kind, kPieceFrameBytes};
    case FrameKind::credit: return FrameShape{kind, kCreditFrameBytes};
    case FrameKind::close: return FrameShape{kind, kCloseFrameBytes};
  }
  return Errc::protocol;
}

Result<CellsFrame> decode_cells(std::span<const std::byte> frame) noexcept {
  auto cells = decode_as<CellsFrame>(FrameKind::cells, kCellsFrameBytes, frame);
  if (!cells.ok()) return cells;
  const size_t count = cells->count.unchecked();
  if (count == 0 || frame.size() != kCellsFrameBytes + count * ring::kBodyBytes)
    return Errc::protocol;
  return cells;
}

Result<BytesFrame> decode_bytes(std::span<const std::byte> frame) noexcept {
  if (frame.size() != kBytesFrameBytes) return Errc::protocol;
  auto bytes = decode_as<BytesFrame>(FrameKind::bytes, kBytesFrameBytes, frame);
  if (!bytes.ok()) return bytes;
  const uint32_t length = bytes->length.unchecked();
  const bool sound = length != 0 && length % kFrameGranule == 0 &&
                     bytes->position.unchecked() % kFrameGranule == 0;
  if (!sound) return Errc::protocol;
  return bytes;
}

Result<PieceFrame> decode_piece(std::span<const std::byte> frame) noexcept {
  if (frame.size() != kPieceFrameBytes) return Errc::protocol;
  auto piece = decode_as<PieceFrame>(FrameKind::piece, kPieceHeaderBytes, frame);
  if (!piece.ok()) return piece;
  const bool sound =
      piece->length.unchecked() != 0 && piece->position.unchecked() % kFrameGranule == 0;
  if (!sound) return Errc::protocol;
  return piece;
}

Result<CreditFrame> decode_credit(std::span<const std::byte> frame) noexcept {
  if (frame.size() != kCreditFrameBytes) return Errc::protocol;
  return decode_as<CreditFrame>(FrameKind::credit, kCreditFrameBytes, frame);
}

Status decode_close(std::span<const std::byte> frame) noexcept {
  if (frame.size() != kCloseFrameBytes) return Errc::protocol;
  Reader from(frame);
  from.zeros(1, kCrcAt);
  if (!from.sound() || !is_sound(FrameKind::close, kCloseFrameBytes, frame)) return Errc::protocol;
  return {};
}

KeyedTag frame_trailer(const FrameTrailer& trailer, uint64_t number,
                       std::span<const std::byte> header,
                       std::span<const std::byte> rest) noexcept {
  assert(trailer.is_there());
  return trailer.kind == FrameTrailer::Kind::tag ? frame_tag(trailer.key, number, header, rest)
                                                 : frame_checksum(number, header, rest);
}

}  // namespace aperture::wire
