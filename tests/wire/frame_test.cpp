// Frames lie as drawn, come back as they went, and nothing else decodes.
#include "wire/frame.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace aperture::wire {
namespace {

using Bytes = std::vector<std::byte>;

Bytes some_cells(uint16_t count, FrameChannel channel = FrameChannel::responses) {
  Bytes frame(kCellsFrameBytes + count * ring::kBodyBytes);
  for (size_t i = kCellsFrameBytes; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(i);
  encode(CellsFrame{channel, Wild(count)}, frame);
  return frame;
}

Bytes some_bytes(uint64_t position = 0x1122334455667780, uint32_t length = 0x10040) {
  Bytes frame(kBytesFrameBytes);
  encode(BytesFrame{FrameChannel::responses, Wild(position), Wild(length)},
         std::span(frame).first<kBytesFrameBytes>());
  return frame;
}

Bytes some_piece(uint64_t position = 0x1122334455667780, uint32_t length = 0x10041) {
  Bytes frame(kPieceFrameBytes);
  for (size_t i = kPieceHeaderBytes; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(i);
  encode(PieceFrame{FrameChannel::responses, Wild(position), Wild(length)},
         std::span(frame).first<kPieceFrameBytes>());
  return frame;
}

Bytes some_credit() {
  Bytes frame(kCreditFrameBytes);
  encode(CreditFrame{FrameChannel::responses, Wild(uint64_t{0x0102030405060708}),
                     Wild(uint64_t{0x1112131415161718})},
         std::span(frame).first<kCreditFrameBytes>());
  return frame;
}

Bytes some_close() {
  Bytes frame(kCloseFrameBytes);
  encode_close(std::span(frame).first<kCloseFrameBytes>());
  return frame;
}

bool decodes(const Bytes& frame) {
  if (frame.size() < kFrameHeadBytes) return false;
  const auto shape = frame_shape(std::span(frame).first<kFrameHeadBytes>());
  if (!shape.ok() || shape.value().bytes != frame.size()) return false;
  switch (shape.value().kind) {
    case FrameKind::cells: return decode_cells(frame).ok();
    case FrameKind::bytes: return decode_bytes(frame).ok();
    case FrameKind::credit: return decode_credit(frame).ok();
    case FrameKind::close: return decode_close(frame).ok();
    case FrameKind::piece: return decode_piece(frame).ok();
  }
  return false;
}

void expect_at(const Bytes& frame, size_t at, std::initializer_list<uint8_t> bytes) {
  for (const uint8_t each : bytes) EXPECT_EQ(frame[at++], std::byte{each}) << at - 1;
}

TEST(Frame, lies_as_drawn) {
  const Bytes cells = some_cells(2);
  expect_at(cells, 0, {1, 1, 2, 0});
  expect_at(cells, 8, {8, 9, 10});
  EXPECT_EQ(cells.size(), 128u);
  const Bytes bytes = some_bytes();
  expect_at(bytes, 0, {2, 1, 0, 0});
  expect_at(bytes, 8, {0x80, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x40, 0, 1, 0});
  const Bytes credit = some_credit();
  expect_at(credit, 0, {3, 1, 0, 0});
  expect_at(credit, 8, {8, 7, 6, 5, 4, 3, 2, 1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11});
  expect_at(some_close(), 0, {4, 0, 0, 0});
  const Bytes piece = some_piece();
  expect_at(piece, 0, {5, 1, 0, 0});
  expect_at(piece, 8, {0x80, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x41, 0, 1, 0});
  expect_at(piece, 20, {20, 21, 22});
  EXPECT_EQ(piece.size(), 80u);
}

TEST(Frame, comes_back_as_it_went) {
  for (const auto channel : {FrameChannel::requests, FrameChannel::responses}) {
    for (const uint16_t count : {uint16_t{1}, uint16_t{17}, kMaxFrameCells}) {
      const auto cells = decode_cells(some_cells(count, channel));
      ASSERT_TRUE(cells.ok());
      EXPECT_EQ(cells.value().channel, channel);
      EXPECT_EQ(cells.value().count.unchecked(), count);
    }
  }
  const auto bytes = decode_bytes(some_bytes());
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes.value().channel, FrameChannel::responses);
  EXPECT_EQ(bytes.value().position.unchecked(), 0x1122334455667780u);
  EXPECT_EQ(bytes.value().length.unchecked(), 0x10040u);
  const auto piece = decode_piece(some_piece());
  ASSERT_TRUE(piece.ok());
  EXPECT_EQ(piece.value().channel, FrameChannel::responses);
  EXPECT_EQ(piece.value().position.unchecked(), 0x1122334455667780u);
  EXPECT_EQ(piece.value().length.unchecked(), 0x10041u);
  const auto credit = decode_credit(some_credit());
  ASSERT_TRUE(credit.ok());
  EXPECT_EQ(credit.value().channel, FrameChannel::responses);
  EXPECT_EQ(credit.value().consumed.unchecked(), 0x0102030405060708u);
  EXPECT_EQ(credit.value().bytes_consumed.unchecked(), 0x1112131415161718u);
  EXPECT_TRUE(decode_close(some_close()).ok());
}

TEST(Frame, hostile_24_of_no_length_or_of_too_much_does_not_decode) {
  std::array<std::byte, kFrameHeadBytes> head{};
  head[0] = std::byte{1};
  EXPECT_FALSE(frame_shape(head).ok()) << "no cells";
  head[2] = std::byte{1};
  head[3] = std::byte{1};
  EXPECT_FALSE(frame_shape(head).ok()) << "257 cells";
  EXPECT_EQ(decode_bytes(some_bytes(0, 0)).error(), Errc::protocol);
  EXPECT_EQ(decode_bytes(some_bytes(0, 63)).error(), Errc::protocol);
  EXPECT_EQ(decode_bytes(some_bytes(1, 64)).error(), Errc::protocol);
  EXPECT_TRUE(decode_bytes(some_bytes(64, 64)).ok());
  EXPECT_EQ(decode_piece(some_piece(0, 0)).error(), Errc::protocol);
  EXPECT_EQ(decode_piece(some_piece(63, 64)).error(), Errc::protocol);
  EXPECT_TRUE(decode_piece(some_piece(64, 1)).ok());
  for (Bytes frame : {some_cells(1), some_bytes(), some_credit(), some_close(), some_piece()}) {
    EXPECT_TRUE(decodes(frame));
    frame.push_back({});
    EXPECT_FALSE(decodes(frame));
    EXPECT_FALSE(decode_cells(frame).ok() || decode_bytes(frame).ok() ||
                 decode_credit(frame).ok() || decode_close(frame).ok() || decode_piece(frame).ok());
    frame.pop_back();
    while (!frame.empty()) {
      frame.pop_back();
      EXPECT_FALSE(decodes(frame)) << frame.size();
    }
  }
}

TEST(Frame, hostile_25_of_no_known_kind_or_channel_does_not_decode) {
  for (unsigned kind = 0; kind < 256; ++kind) {
    std::array<std::byte, kFrameHeadBytes> head{};
    head[0] = static_cast<std::byte>(kind);
    head[2] = std::byte{1};
    EXPECT_EQ(frame_shape(head).ok(), kind >= 1 && kind <= 5) << kind;
  }
  Bytes frame = some_credit();
  encode(CreditFrame{static_cast<FrameChannel>(2), {}, {}},
         std::span(frame).first<kCreditFrameBytes>());
  EXPECT_EQ(decode_credit(frame).error(), Errc::protocol);
}

TEST(Frame, hostile_25_and_26_each_bit_counts) {
  for (Bytes frame : {some_cells(2), some_bytes(), some_credit(), some_close(), some_piece()}) {
    for (std::byte& each : frame) {
      for (int bit = 0; bit < 8; ++bit) {
        each ^= std::byte{1} << bit;
        EXPECT_FALSE(decodes(frame)) << &each - frame.data();
        each ^= std::byte{1} << bit;
      }
    }
  }
}

TEST(Frame, trailer_is_that_of_one_frame_at_one_place) {
  for (const auto kind : {FrameTrailer::Kind::checksum, FrameTrailer::Kind::tag}) {
    const FrameTrailer of{kind, {}};
    const Bytes header = some_bytes();
    Bytes payload(64, std::byte{5});
    const KeyedTag trailer = frame_trailer(of, 7, header, payload);
    EXPECT_EQ(trailer, frame_trailer(of, 7, header, payload));
    EXPECT_NE(trailer, frame_trailer(of, 8, header, payload));
    EXPECT_NE(trailer, frame_trailer(of, 7, some_bytes(0), payload));
    payload[63] ^= std::byte{1};
    EXPECT_NE(trailer, frame_trailer(of, 7, header, payload));
  }
}

TEST(Frame, tag_is_that_of_one_key_and_a_checksum_of_all_bytes_is_followed_by_zeros) {
  FrameTrailer tag{FrameTrailer::Kind::tag, {}};
  const KeyedTag of_no_key = frame_trailer(tag, 7, some_credit(), {});
  tag.key[0] = std::byte{1};
  EXPECT_NE(of_no_key, frame_trailer(tag, 7, some_credit(), {}));
  // the CRC32C of "123456789" is 0xe3069283: the number, then the header
  Bytes header{std::byte{'9'}};
  const KeyedTag sum =
      frame_trailer({FrameTrailer::Kind::checksum, {}}, 0x3837363534333231, header, {});
  const KeyedTag expected{std::byte{0x83}, std::byte{0x92}, std::byte{0x06}, std::byte{0xe3}};
  EXPECT_EQ(sum, expected);
}

}  // namespace
}  // namespace aperture::wire
