// What travels between two hosts once a lane is up: the contents of its rings, in frames.
//
// All integers are little-endian, reserved bytes zero; whatever is not exactly as drawn does not
// decode. The version is that of the hello. What decodes is still a stranger's word: the receiver
// compares it with its own rings. No I/O and no state: any thread.
//
//   cells   0      1         2       4     8
//           | kind | channel | count | crc | bodies, count of 60 bytes each |
//   bytes   0      1         2       4     8          16       20
//           | kind | channel | 0     | crc | position | length | payload, length bytes |
//   piece   0      1         2       4     8          16       20     80
//           | kind | channel | 0     | crc | position | length | body | payload, length bytes |
//   credit  0      1         2       4     8          16               24
//           | kind | channel | 0     | crc | consumed | bytes consumed |
//   close   0      1                 4     8
//           | kind | 0               | crc |
//
//   channel:  that of the lane's requests or responses which the sender produces (cells, bytes), or
//             consumes (credit)
//   body:     of the one cell that tells of this payload; it is published when all of that is there
//   count:    cells, in order, from the one behind the last; whole messages
//   position: in the byte ring, that of the payload's first byte: a multiple of 64, as the
//             length of bytes is; that of a piece is anything but 0
//   consumed: as in the words of the channel (ring/channel.hpp)
//   crc:      CRC32C of the header without these 4 bytes, then of the bodies, not of a payload
//   close:    the sender has given the lane back, and this was all of it
//
// Where both sides have agreed on one, each frame ends with a trailer of 8 bytes, behind its bodies
// or payload, which covers all of it and its number. There are no pieces then.
//
//   checksum  0     4
//             | crc | 0 |  CRC32C of number u64, header, bodies or payload
//   tag       0
//             | SipHash-2-4 under the sender's key |
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/errc.hpp"
#include "base/keyed_tag.hpp"
#include "base/wild.hpp"
#include "ring/cell.hpp"

namespace aperture::wire {

enum class FrameKind : uint8_t { cells = 1, bytes = 2, credit = 3, close = 4, piece = 5 };
enum class FrameChannel : uint8_t { requests = 0, responses = 1 };

// The index of that channel's, in what is kept for each.
constexpr size_t at(FrameChannel channel) noexcept {
  return static_cast<size_t>(channel);
}

// What each frame begins with.
inline constexpr size_t kFrameHeadBytes = 8;
inline constexpr size_t kCellsFrameBytes = kFrameHeadBytes;
inline constexpr size_t kBytesFrameBytes = 20;
inline constexpr size_t kPieceHeaderBytes = 20;
inline constexpr size_t kPieceFrameBytes = kPieceHeaderBytes + ring::kBodyBytes;
inline constexpr size_t kCreditFrameBytes = 24;
inline constexpr size_t kCloseFrameBytes = kFrameHeadBytes;
inline constexpr size_t kMaxFrameHeaderBytes = kCreditFrameBytes;
inline constexpr uint16_t kMaxFrameCells = 256;
inline constexpr size_t kMaxFrameBytes = kCellsFrameBytes + kMaxFrameCells * ring::kBodyBytes;
inline constexpr uint64_t kFrameGranule = 64;  // of positions and lengths
inline constexpr size_t kFrameTrailerBytes = sizeof(KeyedTag);

struct CellsFrame {
  FrameChannel channel = FrameChannel::requests;
  Wild<uint16_t> count;
};

struct BytesFrame {
  FrameChannel channel = FrameChannel::requests;
  Wild<uint64_t> position;
  Wild<uint32_t> length;
};

struct CreditFrame {
  FrameChannel channel = FrameChannel::requests;
  Wild<uint64_t> consumed;
  Wild<uint64_t> bytes_consumed;
};

// Payload and the record that tells of it.
struct PieceFrame {
  FrameChannel channel = FrameChannel::requests;
  Wild<uint64_t> position;
  Wild<uint32_t> length;
};

// `frame` is the header; for cells and a piece with the bodies behind it, which lie there already.
void encode(const CellsFrame& cells, std::span<std::byte> frame) noexcept;
void encode(const PieceFrame& piece, std::span<std::byte, kPieceFrameBytes> frame) noexcept;
void encode(const BytesFrame& bytes, std::span<std::byte, kBytesFrameBytes> frame) noexcept;
void encode(const CreditFrame& credit, std::span<std::byte, kCreditFrameBytes> frame) noexcept;
void encode_close(std::span<std::byte, kCloseFrameBytes> frame) noexcept;

// What a frame is that begins so, and how much of it is decoded in one piece: without payload and
// tag. Nothing of that is verified yet. Errors: protocol, of a kind or count that there is not.
struct FrameShape {
  FrameKind kind;
  size_t bytes;
};
Result<FrameShape> frame_shape(std::span<const std::byte, kFrameHeadBytes> head) noexcept;

// `frame` is as long as its shape says, and of that kind. Errors: protocol.
Result<CellsFrame> decode_cells(std::span<const std::byte> frame) noexcept;
Result<BytesFrame> decode_bytes(std::span<const std::byte> frame) noexcept;
Result<PieceFrame> decode_piece(std::span<const std::byte> frame) noexcept;
Result<CreditFrame> decode_credit(std::span<const std::byte> frame) noexcept;
Status decode_close(std::span<const std::byte> frame) noexcept;

// What the frames of one direction end with. A checksum tells what was damaged on its way, a tag
// also what somebody has made or changed who lacks the key, which is drawn anew for each lane.
struct FrameTrailer {
  enum class Kind : uint8_t { none, checksum, tag };
  Kind kind = Kind::none;
  TagKey key{};

  bool is_there() const noexcept { return kind != Kind::none; }
};

// `out` of one side is `in` of the other.
struct FrameTrailers {
  FrameTrailer out;
  FrameTrailer in;
};

// That of the frame with this number, counted from 0 in each direction, so that none can be left
// out, repeated or moved: its header, and its bodies or payload. There is one.
KeyedTag frame_trailer(const FrameTrailer& trailer, uint64_t number,
                       std::span<const std::byte> header, std::span<const std::byte> rest) noexcept;

}  // namespace aperture::wire
