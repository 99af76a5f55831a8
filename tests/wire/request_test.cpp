// Which messages lie in one cell: the quick answer agrees with the general one for every head.
#include "wire/request.hpp"

#include <gtest/gtest.h>

namespace aperture::wire {
namespace {

bool is_line(const Head& head) {
  std::byte body[kHeadBytes];
  store(body, head);
  SoundHead out;
  return read_line(body, out);
}

TEST(Request, a_head_is_read_as_it_was_written_in_the_order_of_the_wire) {
  std::byte body[kHeadBytes];
  store(body, Head::make(Op::nak, 0x91, 0x1234, 0x0102030405060708));
  const uint8_t expected[kHeadBytes] = {19, 0x91, 0x34, 0x12, 8, 7, 6, 5, 4, 3, 2, 1};
  EXPECT_EQ(std::memcmp(body, expected, sizeof expected), 0);
  SoundHead head;
  ASSERT_EQ(read_head(body, head), 1u);
  EXPECT_EQ(head.op(), Op::nak);
  EXPECT_EQ(head.flags(), 0x91);
  EXPECT_TRUE(head.has(0x90));
  EXPECT_FALSE(head.has(0x6e));
  EXPECT_EQ(head.code().unchecked(), 0x1234);
  EXPECT_EQ(head.word().unchecked(), 0x0102030405060708u);
}

TEST(Request, a_line_is_an_inline_send_in_one_cell_and_nothing_else) {
  for (unsigned op = 0; op < 256; ++op) {
    for (unsigned flags = 0; flags < 256; ++flags) {
      for (unsigned len = 0; len < 80; ++len) {
        const Head head = Head::make(static_cast<Op>(op), static_cast<uint8_t>(flags),
                                     static_cast<uint16_t>(len), ~uint64_t{0});
        const bool expected = head.op == static_cast<uint8_t>(Op::send) &&
                              (flags & ~unsigned{kTagged | kImm}) == 0 &&
                              cells_of(Op::send, head.flags, head.len) == 1;
        ASSERT_EQ(is_line(head), expected) << op << " " << flags << " " << len;
      }
    }
  }
}

TEST(Request, no_length_beyond_a_cell_is_taken_for_a_line) {
  for (unsigned len = 49; len < 65536; ++len) {
    ASSERT_FALSE(is_line(Head::make(Op::send, 0, static_cast<uint16_t>(len), 0))) << len;
  }
}

TEST(Request, a_raw_key_takes_eight_bytes_behind_the_fields_of_those_that_name_one) {
  for (unsigned op = 0; op < 256; ++op) {
    const Op o = static_cast<Op>(op);
    if (field_bytes(o) == SIZE_MAX) continue;
    const bool names = o == Op::write || o == Op::write_bytes || o == Op::read || o == Op::check ||
                       o == Op::commit || o == Op::atomic;
    for (unsigned flags = 0; flags < 256; ++flags) {
      const auto without = static_cast<uint8_t>(flags & ~unsigned{kRaw});
      const auto with = static_cast<uint8_t>(flags | kRaw);
      EXPECT_EQ(payload_offset(o, with), payload_offset(o, without) + (names ? 8 : 0));
      for (const uint16_t len : std::initializer_list<uint16_t>{0, 8, 24, 25, 32, 255, 256, 257}) {
        const uint32_t cells = cells_of(o, with, len);
        EXPECT_LE(cells, kMaxCells);
        EXPECT_EQ(cells == 0, cells_of(o, without, len) == 0);
        EXPECT_GE(cells, cells_of(o, without, len));
        if (!names) {
          EXPECT_EQ(cells, cells_of(o, without, len)) << op;
        }
      }
    }
  }
}

TEST(Request, a_secret_is_read_where_it_was_written_and_only_if_it_is_flagged) {
  for (const Op op : {Op::write, Op::write_bytes, Op::read, Op::check, Op::commit, Op::atomic}) {
    std::byte body[ring::kBodyBytes] = {};
    store_secret(body, op, 0, 0x0102030405060708);
    for (const std::byte b : body) EXPECT_EQ(b, std::byte{0});
    store_secret(body, op, kRaw, 0x0102030405060708);
    EXPECT_EQ(body[kHeadBytes + field_bytes(op)], std::byte{8});
    EXPECT_EQ(body[kHeadBytes + field_bytes(op) + 7], std::byte{1});
    EXPECT_EQ(load_secret(body, op, kRaw).unchecked(), 0x0102030405060708u);
    EXPECT_EQ(load_secret(body, op, kImm).unchecked(), 0u);
  }
}

}  // namespace
}  // namespace aperture::wire
