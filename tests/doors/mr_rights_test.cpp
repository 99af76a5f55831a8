// What each access flag of a region allows and all that it does not, remotely; and what of a region
// that was closed: fi_mr(3), "access" and fi_close. (What the flags allow locally is in
// descriptor_test.cpp.)
#include "doors/mr_target.hpp"

namespace aperture::doors::mr {
namespace {

constexpr uint64_t kFlags[] = {FI_SEND,  FI_RECV,        FI_READ,
                               FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE};

class Rights : public Regions {};
INSTANTIATE_TEST_SUITE_P(reach, Rights, every_reach(), reach_name);

TEST_P(Rights, each_combination_allows_what_it_says_and_nothing_else) {
  open(options_of(0));
  for (unsigned set = 0; set < 1u << std::size(kFlags); ++set) {
    uint64_t access = 0;
    for (size_t i = 0; i < std::size(kFlags); ++i) access |= (set >> i & 1) != 0 ? kFlags[i] : 0;
    SCOPED_TRACE(access);
    target->fill({0, 64}, 3);
    const Remote r = registered(1, {{0, 64}}, access);
    const auto needs = [&](uint64_t rights) { return (access & rights) == rights ? 0 : FI_EACCES; };
    EXPECT_EQ(read(r, 0, 64), needs(kGet));
    EXPECT_EQ(fetch(r, 0, FI_ATOMIC_READ), needs(kGet)) << "it only reads";
    EXPECT_EQ(fetch(r, 0, FI_SUM), needs(kGet | kPut)) << "it tells what was there";
    EXPECT_EQ(compare(r, 0), needs(kGet | kPut));
    if ((access & kPut) == 0) {
      EXPECT_TRUE(target->holds({0, 64}, 3));
    }
    EXPECT_EQ(add(r, 0), needs(kPut));
    EXPECT_EQ(write(r, 0, 64), needs(kPut));
    EXPECT_EQ(write(r, 0, 0), needs(kPut)) << "also of no bytes";
    EXPECT_EQ(read(r, 0, 0), needs(kGet));
    if ((access & kPut) == 0) {
      EXPECT_TRUE(target->holds({0, 64}, 3));
    }
    ASSERT_EQ(target->close(1), 0);
  }
  alive();
}

TEST_P(Rights, of_long_accesses_are_the_same) {
  open(options_of(FI_MR_VIRT_ADDR), 100);
  target->fill({0, 100 * kPage}, 3);
  ASSERT_EQ(target->reg(1, {{0, 100 * kPage}}, FI_REMOTE_READ), 0);
  EXPECT_EQ(write(target->remote(), 0, 100 * kPage), FI_EACCES);
  EXPECT_EQ(read(target->remote(), 0, 100 * kPage), 0);
  EXPECT_TRUE(got_is(3));
  ASSERT_EQ(target->reg(2, {{0, 100 * kPage}}, FI_REMOTE_WRITE), 0);
  EXPECT_EQ(read(target->remote(), 0, 100 * kPage), FI_EACCES);
  EXPECT_TRUE(target->holds({0, 100 * kPage}, 3)) << "reading changes nothing";
  EXPECT_EQ(write(target->remote(), 0, 100 * kPage, 4), 0);
  EXPECT_TRUE(target->holds({0, 100 * kPage}, 4));
}

TEST_P(Rights, one_memory_may_have_several_regions_with_their_own) {
  open(options_of(0));
  const Remote reading = registered(1, {{0, kPage}}, FI_REMOTE_READ);
  const Remote writing = registered(2, {{0, kPage}}, FI_REMOTE_WRITE);
  EXPECT_EQ(write(reading, 0, 8), FI_EACCES);
  EXPECT_EQ(write(writing, 0, 8, 6), 0);
  EXPECT_EQ(read(reading, 0, 8), 0);
  EXPECT_TRUE(got_is(6));
  ASSERT_EQ(target->close(2), 0);
  EXPECT_EQ(write(writing, 0, 8), FI_EACCES);
  EXPECT_EQ(read(reading, 0, 8), 0);
}

// A million of them are in tests/protect/drawn_keys_test.cpp; here is what they do to who guesses
// and to who does not.
TEST_P(Rights, hostile_6_guesses_are_counted_and_harm_only_who_guesses) {
  Options options = options_of(FI_MR_PROV_KEY);
  options.counters = true;
  open(options);
  target->fill({0, kPage}, 3);
  const Remote right = registered(1, {{0, kPage}});
  Node other(options);
  const std::vector<uint8_t> name = target->open_sibling(options);
  const fi_addr_t from_other = other.insert(name);
  const uint64_t before = fi_cntr_readerr(node->tx_cntr());
  constexpr uint64_t kGuesses = 200;
  for (uint64_t i = 0; i < kGuesses; ++i) {
    Remote guess = right;
    guess.key = i % 2 == 0 ? seed_of(i) : right.key + (i % 4 == 1 ? i : 0 - i);
    EXPECT_EQ(i % 3 == 0 ? read(guess, 0, 8) : write(guess, 0, 8), FI_EACCES);
  }
  EXPECT_EQ(fi_cntr_readerr(node->tx_cntr()), before + kGuesses);
  EXPECT_EQ(fi_cntr_readerr(other.tx_cntr()), 0u);
  EXPECT_TRUE(target->holds({0, kPage}, 3));
  uint64_t word = 7;
  ASSERT_EQ(other.run(fi_write, &word, 8, nullptr, from_other, right.base, right.key), 0)
      << "others are served as before";
  allowed(right, 0, kPage);
}

TEST_P(Rights, end_with_fi_close_and_both_endpoints_live) {
  for (const int mode : {0, FI_MR_VIRT_ADDR | FI_MR_PROV_KEY, FI_MR_MMU_NOTIFY}) {
    open(options_of(mode));
    target->fill({0, 2 * kPage}, 3);
    const Remote two = registered(1, {{0, kPage}, {kPage, kPage}});
    const Remote one = registered(2, {{0, kPage}});
    ASSERT_EQ(target->close(1), 0);
    refused(two, 0, 8);
    refused(two, 0, 2 * kPage);
    EXPECT_TRUE(target->holds({0, 2 * kPage}, 3));
    allowed(one, 0, kPage);
    ASSERT_EQ(target->close(2), 0);
    refused(one, 0, 8);
    ASSERT_EQ(target->reg(3, {{0, kPage}}), 0);
    refused(one, 0, 8);
    allowed(target->remote(), 0, kPage);
    alive();
    node.reset();
    target.reset();
  }
}

}  // namespace
}  // namespace aperture::doors::mr
