// First contact within one process: everything that two listeners of it can do to each other.
#include <gtest/gtest.h>

#include "nic/side.hpp"

namespace aperture::nic::test {
namespace {

std::optional<uint64_t> receive_word(link::Lane& lane, ring::ChannelRx& rx, int timeout_ms = 3000) {
  const uint64_t until = now_ns() + static_cast<uint64_t>(timeout_ms) * 1'000'000;
  while (!rx.cells.ready()) {
    if (now_ns() > until) return std::nullopt;
  }
  uint64_t word;
  std::memcpy(&word, rx.cells.body(), sizeof word);
  rx.cells.advance(1);
  rx.publish_consumed();
  (void)lane;
  return word;
}

TEST(Contact, two_endpoints_get_one_lane_that_carries_both_ways) {
  Side a(11), b(22);
  ASSERT_NE(a.address().port, 0);
  a.connect(b);
  auto at_a = a.lane();
  auto at_b = b.lane();
  ASSERT_TRUE(at_a && at_b);
  EXPECT_EQ(at_a->remote, b.address());
  EXPECT_EQ(at_b->remote, a.address());
  EXPECT_EQ(at_a->remote_domain, 22u);
  EXPECT_EQ(at_b->remote_domain, 11u);
  EXPECT_FALSE(at_a->lost());
  send_word(*at_a, 0x1234);
  EXPECT_EQ(receive_word(*at_b, at_b->request_rx), 0x1234u);
  send_word(*at_b, 0x5678);
  EXPECT_EQ(receive_word(*at_a, at_a->request_rx), 0x5678u);
  at_a->ring_doorbell();
  EXPECT_TRUE(b.rung());
  EXPECT_FALSE(a.rung());
  at_b->ring_doorbell();
  EXPECT_TRUE(a.rung());
  contact().close_lane(std::move(at_a));
  contact().close_lane(std::move(at_b));
}

TEST(Contact, nobody_listening_is_refused) {
  Side a;
  Address nowhere;
  {
    Side gone;
    nowhere = gone.address();
  }
  a.connect(nowhere);
  EXPECT_EQ(a.failure(), Errc::refused);
}

}  // namespace
}  // namespace aperture::nic::test
