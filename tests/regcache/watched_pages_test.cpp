// The bits of pages that are watched: where they lie does not matter.
#include "regcache/watched_pages.hpp"

#include <gtest/gtest.h>

namespace aperture::regcache {
namespace {

using Of = WatchedPages::Of;

class Watched : public testing::Test {
 protected:
  Watched() { EXPECT_TRUE(pages_.reserve()); }

  static Range pages(uint64_t first, uint64_t count) {
    return {first * page_size(), (first + count) * page_size()};
  }
  bool any(uint64_t first, uint64_t count, Of of = Of::pages) const {
    return pages_.any(pages(first, count), of);
  }

  WatchedPages pages_;
};

TEST(WatchedPages, without_tables_there_are_none) {
  WatchedPages pages;
  EXPECT_FALSE(pages.any({0, ~uint64_t{0}}, Of::pages));
  pages.clear();
}

TEST_F(Watched, are_those_that_were_added_and_no_others) {
  for (const uint64_t at : {uint64_t{64}, uint64_t{60}, uint64_t{1} << 20, (uint64_t{1} << 20) - 3,
                            (uint64_t{0x7fff} << 20) + 5}) {
    ASSERT_TRUE(pages_.add(pages(at, 7)));
    EXPECT_FALSE(any(at - 10, 10));
    EXPECT_TRUE(any(at - 10, 11));
    for (uint64_t page = at; page < at + 7; ++page) EXPECT_TRUE(any(page, 1)) << at;
    EXPECT_TRUE(any(at + 6, 100));
    EXPECT_FALSE(any(at + 7, 1000));
    EXPECT_TRUE(pages_.any({0, ~uint64_t{0}}, Of::pages));
    pages_.remove(pages(at, 7));
    EXPECT_FALSE(pages_.any({0, ~uint64_t{0}}, Of::pages));
  }
}

TEST_F(Watched, a_part_of_one_is_found_and_nothing_in_no_bytes) {
  ASSERT_TRUE(pages_.add(pages(100, 1)));
  const uint64_t at = pages(100, 1).begin;
  EXPECT_TRUE(pages_.any({at + 5, at + 6}, Of::pages));
  EXPECT_TRUE(pages_.any({at - 1, at + 1}, Of::pages));
  EXPECT_FALSE(pages_.any({at - 1, at}, Of::pages));
  EXPECT_FALSE(pages_.any({at + 5, at + 5}, Of::pages));
  EXPECT_FALSE(pages_.any({at + 5, at}, Of::pages)) << "past the end of all addresses";
}

TEST_F(Watched, many_at_once_span_tables) {
  const uint64_t many = uint64_t{3} << 20;
  ASSERT_TRUE(pages_.add(pages(1000, many)));
  EXPECT_TRUE(any(1000, 1));
  EXPECT_TRUE(any(1000 + many / 2, 1));
  EXPECT_TRUE(any(999 + many, 1));
  EXPECT_FALSE(any(1000 + many, 1));
  pages_.remove(pages(1000, many));
  EXPECT_FALSE(any(0, 2 * many));
}

// Blocks beside the memory, on its first and its last page, come and go as they like.
TEST_F(Watched, blocks_are_asked_for_by_pages_that_are_all_theirs) {
  ASSERT_TRUE(pages_.add(pages(10, 5)));
  EXPECT_FALSE(any(10, 1, Of::blocks));
  EXPECT_TRUE(any(10, 2, Of::blocks));
  EXPECT_TRUE(any(13, 1, Of::blocks));
  EXPECT_FALSE(any(14, 1, Of::blocks));
  EXPECT_TRUE(any(10, 1)) << "what is unmapped is another matter";
  pages_.remove(pages(10, 5));
  EXPECT_FALSE(any(0, 100, Of::blocks));
}

TEST_F(Watched, blocks_on_one_page_or_two_are_asked_for_by_each) {
  ASSERT_TRUE(pages_.add(pages(10, 1)));
  ASSERT_TRUE(pages_.add(pages(20, 2)));
  EXPECT_TRUE(any(10, 1, Of::blocks));
  EXPECT_TRUE(any(20, 1, Of::blocks));
  EXPECT_TRUE(any(21, 1, Of::blocks));
}

TEST_F(Watched, addresses_beyond_those_that_there_are_cannot_be) {
  EXPECT_EQ(
      pages_.add({WatchedPages::kEnd - page_size(), WatchedPages::kEnd + page_size()}).error(),
      Errc::not_supported);
  EXPECT_FALSE(pages_.any({WatchedPages::kEnd, ~uint64_t{0}}, Of::pages));
  EXPECT_TRUE(pages_.add({WatchedPages::kEnd - page_size(), WatchedPages::kEnd}));
  EXPECT_TRUE(pages_.any({WatchedPages::kEnd - 1, ~uint64_t{0}}, Of::pages));
}

TEST_F(Watched, none_are_left_once_cleared) {
  ASSERT_TRUE(pages_.add(pages(10, 5)));
  ASSERT_TRUE(pages_.add(pages(uint64_t{1} << 30, 5)));
  pages_.clear();
  EXPECT_FALSE(pages_.any({0, ~uint64_t{0}}, Of::pages));
  EXPECT_FALSE(pages_.any({0, ~uint64_t{0}}, Of::blocks));
}

}  // namespace
}  // namespace aperture::regcache
