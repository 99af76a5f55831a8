// Memory windows of the libfabric door (aperture_fi_window(3)): what they give, to whom, and that
// it ends. The numbers are those of the list of hostile inputs.
#include "doors/window.hpp"

#include <set>

namespace aperture::doors::mr {
namespace {

INSTANTIATE_TEST_SUITE_P(reach, Windows, every_reach(), reach_name);

TEST_P(Windows, grant_what_their_region_does_not) {
  for (const int mode : {0, kBasicMr}) {
    open_with_region(mode);
    refused(region, 0, 8);
    const Remote w = bind(1, {64, kPage}, kBoth);
    EXPECT_NE(w.key, region.key);
    allowed(w, 0, kPage);
    allowed(w, kPage - 8, 8);
    refused(w, kPage - 4, 8);
    refused(w, kPage, 8);
    refused(w, ~uint64_t{0}, 8);
    refused(region, 0, 8);
    ASSERT_EQ(target->invalidate(1), 0);
    refused(w, 0, 8);
    EXPECT_EQ(write(w, 0, 0), FI_EACCES) << "no bytes, and no key either";
    alive();
  }
}

TEST_P(Windows, begin_where_they_are_bound) {
  for (const int mode : {0, kBasicMr}) {
    for (const uint64_t flags : {uint64_t{0}, kFromZero}) {
      open_with_region(mode);
      target->fill({0, 4 * kPage}, 7);
      const Remote w = bind(1, {100, 50}, kBoth, flags);
      ASSERT_EQ(read(w, 0, 50), 0);
      EXPECT_TRUE(got_is(7, kPage + 100));
      ASSERT_EQ(write(w, 10, 8, 9), 0);
      EXPECT_TRUE(target->holds({kPage + 110, 8}, 9));
      EXPECT_TRUE(target->holds({0, kPage + 110}, 7));
      EXPECT_TRUE(target->holds({kPage + 118, kPage}, 7, kPage + 118));
      EXPECT_EQ(read(w, 0, 51), FI_EACCES);
      EXPECT_EQ(write(w, ~uint64_t{0}, 1), FI_EACCES) << "one byte before";
    }
  }
}

TEST_P(Windows, give_only_the_rights_that_they_were_bound_with) {
  open_with_region();
  const Remote readable = bind(1, {0, kPage}, kGet);
  EXPECT_EQ(read(readable, 0, 8), 0);
  EXPECT_EQ(write(readable, 0, 8), FI_EACCES);
  EXPECT_EQ(add(readable, 0), FI_EACCES);
  const Remote writable = bind(2, {0, kPage}, kPut);
  EXPECT_EQ(write(writable, 0, 8), 0);
  EXPECT_EQ(read(writable, 0, 8), FI_EACCES);
}

TEST_P(Windows, cover_parts_of_several_buffers) {
  for (const int mode : {0, kBasicMr}) {
    open(options_of(mode));
    ASSERT_EQ(target->reg(1, {{0, 100}, {kPage, 100}, {2 * kPage, 100}}, kLocal), 0);
    const Remote w = bind(1, {90, 120}, kBoth);  // 10, 100 and 10 of them
    ASSERT_EQ(write(w, 0, 120, 3), 0);
    EXPECT_TRUE(target->holds({90, 10}, 3));
    EXPECT_TRUE(target->holds({kPage, 100}, 3, 10));
    EXPECT_TRUE(target->holds({2 * kPage, 10}, 3, 110));
    EXPECT_EQ(write(w, 1, 120), FI_EACCES);
  }
}

// 20 and 22: no key of the past is good for anything, however often a window is bound.
TEST_P(Windows, have_a_new_key_with_each_bind) {
  open_with_region();
  std::set<uint64_t> keys;
  std::vector<Remote> past;
  for (int i = 0; i < 300; ++i) {
    const Remote w = bind(1, {0, 64}, kBoth, i % 2 == 0 ? 0 : kToEndpoint);
    EXPECT_TRUE(keys.insert(w.key).second) << "given before";
    ASSERT_EQ(target->invalidate(1), 0);
    past.push_back(w);
  }
  const Remote now = bind(1, {0, 64}, kBoth);
  allowed(now, 0, 64);
  for (const Remote& w : past) EXPECT_EQ(write(w, 0, 8), FI_EACCES);
}

// 23
TEST_P(Windows, keep_their_region_open) {
  open_with_region();
  const Remote w = bind(1, {0, 64}, kBoth);
  bind(2, {0, 64}, kGet, kToEndpoint);
  EXPECT_EQ(target->close(1), -FI_EBUSY);
  allowed(w, 0, 64);
  ASSERT_EQ(target->invalidate(1), 0);
  EXPECT_EQ(target->close(1), -FI_EBUSY) << "the second is bound still";
  ASSERT_EQ(target->close_window(2), 0);
  EXPECT_EQ(target->close(1), 0);
}

TEST_P(Windows, are_bound_to_one_thing_at_a_time) {
  open_with_region();
  for (const uint64_t whom : {uint64_t{0}, kToEndpoint, kToEndpoint | kToPeer}) {
    const Remote w = bind(1, {0, 64}, kBoth, whom);
    EXPECT_EQ(target->bind_window(1, 1, {64, 64}, kBoth), -FI_EBUSY);
    allowed(w, 0, 64);
    EXPECT_EQ(target->invalidate(1), 0);
    EXPECT_EQ(target->invalidate(1), -FI_EOPBADSTATE) << "it is bound to nothing";
  }
}

TEST_P(Windows, end_when_they_are_closed) {
  open_with_region();
  for (const uint64_t whom : {uint64_t{0}, kToEndpoint, kToEndpoint | kToPeer}) {
    const Remote w = bind(1, {0, 64}, kBoth, whom);
    allowed(w, 0, 64);
    ASSERT_EQ(target->close_window(1), 0);
    refused(w, 0, 8);
  }
}

// 19
TEST_P(Windows, of_an_endpoint_are_reached_through_it_only) {
  open_with_region();
  const std::vector<uint8_t> sibling = target->open_sibling(options_of(0));
  const Remote of_first = bind(1, {0, 64}, kBoth, kToEndpoint);
  const Remote of_sibling = bind(2, {0, 64}, kBoth, kToSibling);
  const Remote of_all = bind(3, {0, 64}, kBoth);
  allowed(of_first, 0, 64);
  refused(of_sibling, 0, 8);
  allowed(of_all, 0, 64);
  reach(sibling);
  refused(of_first, 0, 8);
  allowed(of_sibling, 0, 64);
  allowed(of_all, 0, 64);
}

// 21: what is bound to an endpoint that is closed is reached by nobody, and ends as any other.
TEST_P(Windows, of_an_endpoint_that_is_closed_are_reached_by_nobody) {
  open_with_region();
  reach(target->open_sibling(options_of(0)));
  const Remote w = bind(1, {0, 64}, kBoth, kToSibling);
  allowed(w, 0, 64);
  target->close_endpoint(true);
  reach(target->open_sibling(options_of(0)));
  refused(w, 0, 8);
  EXPECT_EQ(target->close(1), -FI_EBUSY);
  EXPECT_EQ(target->invalidate(1), 0);
  EXPECT_EQ(target->close(1), 0);
}

// 19 and 29: the key alone does not help another peer.
TEST_P(Windows, of_a_peer_are_reached_by_it_only) {
  open_with_region();
  const Remote w = bind(1, {0, 64}, kBoth, kToEndpoint | kToPeer);
  const Remote large = bind(2, {0, 2 * kPage}, kBoth, kToEndpoint | kToPeer);
  allowed(w, 0, 64);
  allowed(large, 0, 2 * kPage);
  Other other(*this);
  refused(w, 0, 8);
  refused(large, 0, 2 * kPage);
  other.back();
  allowed(w, 0, 64);
}

// 21: a connection that is made anew, even from the same process, is another one.
TEST_P(Windows, of_a_peer_end_with_its_connection) {
  open_with_region();
  const Remote w = bind(1, {0, 64}, kBoth, kToEndpoint | kToPeer);
  allowed(w, 0, 64);
  const std::vector<uint8_t> there = target_name();
  node->close_endpoint();
  node = std::make_unique<Node>(progressing(options_of(0)));
  reach(there);
  refused(w, 0, 8);
  EXPECT_EQ(target->invalidate(1), 0);
}

// Revocation: what is under way when invalidate() is called has landed when it returns, or never.
TEST_P(Windows, let_nothing_land_once_they_are_invalidated) {
  open_with_region();
  constexpr size_t kWrites = 24;
  std::vector<uint8_t> bytes(2 * kPage, 0xee);
  for (int round = 0; round < 30; ++round) {
    const uint64_t to_whom[] = {0, kToEndpoint, kToEndpoint | kToPeer};
    const Remote w = bind(1, {0, 2 * kPage}, kBoth, to_whom[round % 3]);
    Op ops[kWrites];
    const size_t len = round % 2 == 0 ? 8 : bytes.size();
    for (Op& op : ops) {
      ASSERT_EQ(node->post(fi_write, bytes.data(), len, nullptr, to, w.base, w.key, &op), 0);
    }
    ASSERT_EQ(target->invalidate(1), 0);
    target->fill({kPage, 2 * kPage}, 1000u + static_cast<unsigned>(round));
    for (Op& op : ops) {
      const int err = node->wait(&op).err;
      EXPECT_TRUE(err == 0 || err == FI_EACCES) << err;
    }
    EXPECT_TRUE(target->holds({kPage, 2 * kPage}, 1000u + static_cast<unsigned>(round)));
    refused(w, 0, 8);
  }
}

// 1 and 3: a key says nothing about the next.
TEST_P(Windows, have_keys_that_cannot_be_guessed) {
  open_with_region();
  std::set<uint64_t> gaps;
  uint64_t before = 0;
  for (int i = 0; i < 64; ++i) {
    const Remote w = bind(1, {0, 64}, kBoth);
    EXPECT_TRUE(gaps.insert(w.key - before).second);
    EXPECT_EQ(write({w.base, w.key + 1, w.size, {}}, 0, 8), FI_EACCES);
    before = w.key;
    ASSERT_EQ(target->invalidate(1), 0);
  }
}

TEST_P(Windows, work_where_regions_belong_to_endpoints) {
  open(options_of(FI_MR_ENDPOINT));
  const std::vector<uint8_t> sibling = target->open_sibling(options_of(FI_MR_ENDPOINT));
  ASSERT_EQ(target->reg(1, {{kPage, kPage}}, kLocal), 0);
  EXPECT_EQ(target->bind_window(1, 1, {0, 64}, kBoth), -FI_EOPBADSTATE) << "not enabled";
  ASSERT_EQ(target->bind_endpoint(1), 0);
  ASSERT_EQ(target->enable(1), 0);
  EXPECT_EQ(target->bind_window(1, 1, {0, 64}, kBoth, kToSibling), -FI_EINVAL);
  const Remote w = bind(1, {0, 64}, kBoth);
  allowed(w, 0, 64);
  reach(sibling);
  refused(w, 0, 8);
}

// Through a closed endpoint the region is not reached any more, nor through a window of it.
TEST_P(Windows, are_not_bound_once_the_endpoint_of_their_region_is_closed) {
  for (const int mode : {0, FI_MR_ENDPOINT}) {
    open(options_of(mode));
    target->open_sibling(options_of(mode));
    ASSERT_EQ(target->reg(1, {{kPage, kPage}}, kLocal), 0);
    ASSERT_EQ(target->bind_endpoint(1, true), 0);
    ASSERT_EQ(target->enable(1), 0);
    target->close_endpoint(true);
    for (const uint64_t whom : {uint64_t{0}, kToEndpoint})
      EXPECT_EQ(target->bind_window(1, 1, {0, 64}, kBoth, whom), -FI_EOPBADSTATE) << whom;
    EXPECT_EQ(target->bind_endpoint(1), -FI_EINVAL) << "it had one";
    EXPECT_EQ(target->close(1), 0);
  }
}

TEST_P(Windows, come_after_the_endpoint_of_their_region) {
  open_with_region();
  const std::vector<uint8_t> sibling = target->open_sibling(options_of(0));
  const Remote before = bind(1, {0, 64}, kBoth);
  EXPECT_EQ(target->bind_endpoint(1), -FI_EBUSY) << "any endpoint leads to the window";
  allowed(before, 0, 64);
  ASSERT_EQ(target->invalidate(1), 0);
  ASSERT_EQ(target->bind_endpoint(1), 0);
  const Remote w = bind(1, {0, 64}, kBoth);
  allowed(w, 0, 64);
  reach(sibling);
  refused(w, 0, 8);
}

TEST_P(Windows, know_the_pages_of_a_refresh) {
  open(options_of(FI_MR_MMU_NOTIFY));
  ASSERT_EQ(target->reg(1, {{0, 4 * kPage}}, kLocal), 0);
  target->unmap(2);
  const Remote before = bind(1, {kPage, 2 * kPage}, kBoth);
  target->map(2);
  EXPECT_EQ(write(before, 0, kPage), 0);
  EXPECT_EQ(write(before, kPage, 8), FI_EACCES) << "it was not there when the window was bound";
  ASSERT_EQ(target->refresh(1, {{kPage / 2, 3 * kPage}}), 0);
  EXPECT_EQ(write(before, kPage, 8), 0);
}

}  // namespace
}  // namespace aperture::doors::mr
