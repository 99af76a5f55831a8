// The cell ring by itself: marks, laps, messages of several cells, and how far a writer may go.
#include "ring/cell.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace aperture::ring {
namespace {

constexpr uint32_t kLog2 = 3;
constexpr size_t kCells = 1u << kLog2;

class CellRing : public testing::Test {
 protected:
  std::unique_ptr<Cell[]> cells_{new Cell[kCells]{}};
  CellWriter writer_{cells_.get(), kLog2};
  CellReader reader_{cells_.get(), kLog2};

  void put(uint32_t value, uint32_t n_cells = 1) {
    for (uint32_t i = 0; i < n_cells; ++i) std::memcpy(writer_.body(i), &value, sizeof value);
    writer_.publish(n_cells);
  }
  uint32_t take(uint32_t n_cells = 1) {
    uint32_t value = 0;
    std::memcpy(&value, reader_.body(n_cells - 1), sizeof value);
    reader_.advance(n_cells);
    return value;
  }
};

TEST_F(CellRing, fresh_ring_is_empty) {
  EXPECT_FALSE(reader_.ready());
  EXPECT_TRUE(writer_.has_room(kCells));
  EXPECT_FALSE(writer_.has_room(kCells + 1));
}

TEST_F(CellRing, holds_as_many_as_it_has_cells_and_no_more) {
  for (uint32_t i = 0; i < kCells; ++i) {
    ASSERT_TRUE(writer_.has_room(1));
    put(i);
  }
  EXPECT_FALSE(writer_.has_room(1));
  for (uint32_t i = 0; i < kCells; ++i) {
    ASSERT_TRUE(reader_.ready());
    EXPECT_EQ(take(), i);
  }
  EXPECT_FALSE(reader_.ready());  // the marks of this lap say nothing about the next
  EXPECT_FALSE(writer_.has_room(1));
  writer_.grant(3);
  EXPECT_TRUE(writer_.has_room(3));
  EXPECT_FALSE(writer_.has_room(4));
}

TEST_F(CellRing, thousands_of_laps_with_messages_of_all_lengths) {
  uint32_t next = 0;
  uint32_t expected = 0;
  std::vector<uint32_t> lengths;
  for (uint32_t i = 0; i < 20000; ++i) {
    const uint32_t n = 1 + i * 7 % 5;
    while (!writer_.has_room(n)) {
      ASSERT_TRUE(reader_.ready());
      EXPECT_EQ(take(lengths[expected]), expected);
      ++expected;
      writer_.grant(reader_.pos());
    }
    lengths.push_back(n);
    put(next++, n);
  }
  for (; expected < next; ++expected) {
    ASSERT_TRUE(reader_.ready());
    EXPECT_EQ(take(lengths[expected]), expected);
  }
  EXPECT_FALSE(reader_.ready());
  EXPECT_EQ(reader_.pos(), writer_.pos());
}

TEST_F(CellRing, stale_marks_of_continuation_cells_are_no_messages) {
  // every cell carries a mark of its lap, and payload that looks like one
  for (int lap = 0; lap < 3; ++lap) {
    for (uint32_t i = 0; i < kCells / 4; ++i) {
      for (uint32_t c = 0; c < 4; ++c) {
        std::memset(writer_.body(c), lap + 2, kBodyBytes);
      }
      writer_.publish(4);
      ASSERT_TRUE(reader_.ready());
      reader_.advance(4);
      EXPECT_FALSE(reader_.ready());
      writer_.grant(reader_.pos());
    }
  }
}

TEST_F(CellRing, nonsense_about_what_was_consumed_is_ignored) {
  put(1);
  for (const uint64_t nonsense : {uint64_t{2}, uint64_t{100}, ~uint64_t{0}, uint64_t{1} << 63}) {
    writer_.grant(nonsense);
    EXPECT_TRUE(writer_.has_room(kCells - 1));
    EXPECT_FALSE(writer_.has_room(kCells));
  }
  writer_.grant(1);
  EXPECT_TRUE(writer_.has_room(kCells));
  writer_.grant(0);  // going back takes nothing away
  EXPECT_TRUE(writer_.has_room(kCells));
}

TEST_F(CellRing, reader_stays_in_the_ring_whatever_the_marks_say) {
  for (size_t i = 0; i < kCells; ++i) cells_[i].seq.store(1);
  for (uint32_t nth : {0u, 7u, 8u, 9u, 1000u, ~0u}) {
    const auto* body = reinterpret_cast<const Cell*>(reader_.body(nth) - offsetof(Cell, body));
    EXPECT_GE(body, cells_.get());
    EXPECT_LT(body, cells_.get() + kCells);
  }
  for (int i = 0; i < 100 && reader_.ready(); ++i) reader_.advance(5);
  EXPECT_FALSE(reader_.ready());  // a lap of false marks ends with the lap
}

TEST(CellMark, never_says_empty_and_differs_from_lap_to_lap) {
  EXPECT_EQ(mark_of(0, 3), 1u);
  EXPECT_EQ(mark_of(7, 3), 1u);
  EXPECT_EQ(mark_of(8, 3), 2u);
  EXPECT_NE(mark_of((uint64_t{1} << 35) - 1, 3), mark_of(uint64_t{1} << 35, 3));
}

TEST(BodyCursor, copies_over_the_joints_from_every_offset) {
  const std::unique_ptr<Cell[]> cells(new Cell[kCells]{});
  CellWriter writer(cells.get(), kLog2);
  const CellReader reader(cells.get(), kLog2);
  std::vector<std::byte> in(300);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7 + 1);
  for (size_t offset = 0; offset <= 130; ++offset) {
    for (const size_t len :
         {size_t{0}, size_t{1}, size_t{59}, size_t{60}, size_t{61}, size_t{300}}) {
      for (size_t i = 0; i < kCells; ++i) std::memset(cells[i].body, 0, kBodyBytes);
      BodyWriter(writer, offset).copy_in(in.data(), len);
      std::vector<std::byte> out(len + 1);
      BodyReader(reader, offset).copy_out(out.data(), len);
      EXPECT_TRUE(
          std::equal(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(len), in.begin()));
      EXPECT_EQ(out[len], std::byte{0});
      size_t written = 0;
      for (size_t i = 0; i < kCells; ++i) {
        for (const std::byte b : cells[i].body) written += b != std::byte{0};
        EXPECT_EQ(cells[i].seq.load(), 0u);  // a mark is never touched
      }
      EXPECT_LE(written, len);
    }
  }
}

TEST(BodyCursor, a_body_takes_as_many_cells_as_it_fills) {
  EXPECT_EQ(cells_for(0), 1u);
  EXPECT_EQ(cells_for(60), 1u);
  EXPECT_EQ(cells_for(61), 2u);
  EXPECT_EQ(cells_for(120), 2u);
  EXPECT_EQ(cells_for(121), 3u);
}

}  // namespace
}  // namespace aperture::ring
