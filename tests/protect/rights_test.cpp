// The words of protection: their numbers are fixed, each denial has its sentence.
#include "protect/rights.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

#include "protect/grant.hpp"

namespace aperture::protect {
namespace {

// These travel between versions: a change here breaks running peers.
static_assert(static_cast<int>(Denial::unknown_key) == 1);
static_assert(static_cast<int>(Denial::wrong_domain) == 2);
static_assert(static_cast<int>(Denial::closed) == 3);
static_assert(static_cast<int>(Denial::revoking) == 4);
static_assert(static_cast<int>(Denial::not_enabled) == 5);
static_assert(static_cast<int>(Denial::missing_right) == 6);
static_assert(static_cast<int>(Denial::out_of_range) == 7);
static_assert(static_cast<int>(Denial::not_backed) == 8);
static_assert(static_cast<int>(Rights::remote_atomic) == 16);
static_assert(static_cast<int>(Rights::bind_window) == 128);
static_assert(static_cast<int>(Rights::flush_global) == 256);
static_assert(static_cast<int>(Rights::flush_persistent) == 512);

// A Grant cannot be kept.
static_assert(!std::is_copy_constructible_v<Grant> && !std::is_move_constructible_v<Grant>);
static_assert(!std::is_copy_assignable_v<Grant> && !std::is_move_assignable_v<Grant>);
static_assert(!std::is_default_constructible_v<Grant>);
static_assert(!std::is_copy_constructible_v<Checked> && !std::is_move_constructible_v<Checked>);

TEST(Rights, includes_asks_for_every_bit) {
  const Rights both = Rights::remote_read | Rights::remote_write;
  EXPECT_TRUE(includes(both, Rights::remote_read));
  EXPECT_TRUE(includes(both, both));
  EXPECT_TRUE(includes(both, Rights::none));
  EXPECT_FALSE(includes(both, Rights::remote_atomic));
  EXPECT_FALSE(includes(Rights::remote_read, both));
  EXPECT_EQ(both & ~Rights::remote_read, Rights::remote_write);
}

TEST(Denial, every_byte_has_a_sentence_and_ours_differ) {
  std::set<std::string> seen;
  for (int i = 0; i < kDenials; ++i) {
    EXPECT_TRUE(seen.insert(sentence(static_cast<Denial>(i))).second) << i;
  }
  for (int i = kDenials; i < 256; ++i) {
    EXPECT_EQ(seen.count(sentence(static_cast<Denial>(i))), 0u);
  }
}

TEST(DescribeRights, names_them_within_the_buffer) {
  char text[96];
  describe_rights(Rights::remote_read | Rights::remote_atomic, text, sizeof text);
  EXPECT_STREQ(text, "remote read and remote atomic");
  describe_rights(Rights::none, text, sizeof text);
  EXPECT_STREQ(text, "nothing");
  describe_rights(Rights::remote_read, text, 7);
  EXPECT_STREQ(text, "remote");
  text[0] = 'x';
  describe_rights(Rights::remote_read, text, 0);
  EXPECT_EQ(text[0], 'x');
}

TEST(NewDomain, is_never_the_same_and_never_0) {
  std::set<DomainId> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(new_domain()).second);
  EXPECT_EQ(seen.count(0), 0u);
}

}  // namespace
}  // namespace aperture::protect
