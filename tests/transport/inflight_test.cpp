// The book of pieces under way: places, order, and what retiring leaves.
#include "transport/inflight.hpp"

#include <gtest/gtest.h>

namespace aperture::transport {
namespace {

struct Piece {
  uint64_t pos = 0;
  uint32_t cells = 1;
};

TEST(Inflight, pieces_are_retired_up_to_what_was_executed_and_no_further) {
  Inflight<Piece> book;
  ASSERT_TRUE(book.begin(8));
  for (uint64_t pos = 0; pos < 6; pos += 2) book.note({pos, 2});
  book.retire_through(2);
  EXPECT_EQ(book.oldest().pos, 2u);
  EXPECT_EQ(book.newest().pos, 4u);
  EXPECT_EQ(book.done_through(), 2u);
  book.retire_through(6);
  EXPECT_TRUE(book.empty());
}

TEST(Inflight, a_full_book_says_so_and_has_a_place_again_when_the_oldest_is_retired) {
  Inflight<Piece> book;
  ASSERT_TRUE(book.begin(4));
  for (uint64_t pos = 0; pos < 4; ++pos) {
    ASSERT_TRUE(book.has_place());
    book.note({pos});
  }
  EXPECT_FALSE(book.has_place());
  book.retire_through(1);
  ASSERT_TRUE(book.has_place());
  book.note({4});
  EXPECT_EQ(book.oldest().pos, 1u);
  EXPECT_EQ(book.newest().pos, 4u);
}

TEST(Inflight, the_first_that_matches_is_found_in_the_order_of_the_ring) {
  Inflight<Piece> book;
  ASSERT_TRUE(book.begin(4));
  for (uint64_t pos = 10; pos < 13; ++pos) book.note({pos});
  Piece* found = book.find([](const Piece& p) { return p.pos >= 11; });
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->pos, 11u);
  EXPECT_EQ(book.find([](const Piece& p) { return p.pos == 99; }), nullptr);
}

TEST(Inflight, a_new_lane_begins_with_an_empty_book) {
  Inflight<Piece> book;
  ASSERT_TRUE(book.begin(4));
  book.note({0});
  book.retire_through(1);
  ASSERT_TRUE(book.begin(8));
  EXPECT_TRUE(book.empty());
  EXPECT_EQ(book.done_through(), 0u);
  EXPECT_EQ(book.capacity(), 8u);
}

}  // namespace
}  // namespace aperture::transport
