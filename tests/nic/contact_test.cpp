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

// Takes in what both sides are told until each has exactly one lane that is up, and gives dead ones
// back.
void settle(Side& side, std::unique_ptr<link::Lane>& up) {
  while (!up || !side.silent(0)) {
    auto t = side.next();
    ASSERT_TRUE(t.has_value()) << "no lane came";
    ASSERT_NE(t->what, Told::What::failed) << describe(t->why);
    if (t->what == Told::What::up) {
      ASSERT_FALSE(up) << "a second lane while one is up";
      up = std::move(t->lane);
    } else {
      ASSERT_EQ(t->which, up.get());
      EXPECT_TRUE(up->lost());
      contact().close_lane(std::move(up));
    }
  }
}

TEST(Contact, crossing_connects_end_with_one_lane) {
  uint64_t slowest_ns = 0;
  for (int i = 0; i < 1000; ++i) {
    Side a(1), b(2);
    const uint64_t began = now_ns();
    a.connect(b);
    b.connect(a);
    std::unique_ptr<link::Lane> at_a, at_b;
    settle(a, at_a);
    settle(b, at_b);
    if (HasFatalFailure()) return;
    slowest_ns = std::max(slowest_ns, now_ns() - began);
    send_word(*at_a, static_cast<uint64_t>(i));
    ASSERT_EQ(receive_word(*at_b, at_b->request_rx), static_cast<uint64_t>(i));
    send_word(*at_b, ~static_cast<uint64_t>(i));
    ASSERT_EQ(receive_word(*at_a, at_a->request_rx), ~static_cast<uint64_t>(i));
    contact().close_lane(std::move(at_a));
    contact().close_lane(std::move(at_b));
  }
  std::printf("slowest crossing: %.3f ms\n", static_cast<double>(slowest_ns) / 1e6);
}

TEST(Contact, closing_tells_the_other_side_and_what_was_sent_stays_readable) {
  Side a, b;
  a.connect(b);
  auto at_a = a.lane();
  auto at_b = b.lane();
  ASSERT_TRUE(at_a && at_b);
  send_word(*at_a, 77);
  contact().close_lane(std::move(at_a));
  auto down = b.next();
  ASSERT_TRUE(down);
  EXPECT_EQ(down->what, Told::What::down);
  EXPECT_EQ(down->which, at_b.get());
  EXPECT_EQ(down->why, Errc::shut_down);
  EXPECT_TRUE(at_b->lost());
  EXPECT_EQ(receive_word(*at_b, at_b->request_rx), 77u);
  contact().close_lane(std::move(at_b));
  EXPECT_TRUE(a.silent(20));
}

TEST(Contact, asking_again_changes_nothing) {
  Side a, b;
  for (int i = 0; i < 10; ++i) a.connect(b);
  auto at_a = a.lane();
  auto at_b = b.lane();
  a.connect(b);
  b.connect(a);
  EXPECT_TRUE(a.silent(50));
  EXPECT_TRUE(b.silent(0));
  contact().close_lane(std::move(at_a));
  contact().close_lane(std::move(at_b));
}

TEST(Contact, a_lane_can_be_had_again_after_it_was_closed) {
  Side a, b;
  for (int i = 0; i < 200; ++i) {
    a.connect(b);
    auto at_a = a.lane();
    auto at_b = b.lane();
    ASSERT_TRUE(at_a && at_b) << i;
    // a lane used before must not show what was sent in its last life
    ASSERT_FALSE(at_b->request_rx.cells.ready());
    send_word(*at_a, 1);
    contact().close_lane(std::move(at_a));
    auto down = b.next();
    ASSERT_TRUE(down && down->what == Told::What::down);
    contact().close_lane(std::move(at_b));
  }
}

TEST(Contact, its_own_address_is_not_for_connecting) {
  Side a;
  a.connect(a);
  EXPECT_EQ(a.failure(), Errc::invalid);
}

TEST(Contact, an_address_in_use_is_refused) {
  Side a;
  Side b(1, a.address());
  EXPECT_EQ(b.listen_error(), Errc::addr_in_use);
}

TEST(Contact, an_address_of_nobody_here_is_refused) {
  Side a(1, Address::v4(0xc0000201, 0));  // 192.0.2.1, for documentation
  EXPECT_EQ(a.listen_error(), Errc::addr_not_avail);
}

TEST(Contact, a_wildcard_listener_is_reached_by_an_address_of_the_host) {
  Side any(5, Address::v4(0, 0));
  Side b(6);
  ASSERT_EQ(any.listen_error(), Errc::ok);
  b.connect(loopback_v4(any.address().port));
  auto at_b = b.lane();
  auto at_any = any.lane();
  ASSERT_TRUE(at_b && at_any);
  EXPECT_EQ(at_any->remote, b.address());
  contact().close_lane(std::move(at_b));
  contact().close_lane(std::move(at_any));
}

TEST(Contact, works_over_ipv6) {
  Address localhost;
  localhost.ip[15] = 1;
  Side a(1, localhost), b(2, localhost);
  if (a.listen_error() != Errc::ok) GTEST_SKIP() << "no IPv6 here";
  a.connect(b);
  auto at_a = a.lane();
  auto at_b = b.lane();
  ASSERT_TRUE(at_a && at_b);
  EXPECT_EQ(at_b->remote, a.address());
  contact().close_lane(std::move(at_a));
  contact().close_lane(std::move(at_b));
}

TEST(Contact, unlisten_ends_connects_under_way_in_silence) {
  for (int i = 0; i < 50; ++i) {
    Side b;
    Side a;
    a.connect(b);
    a.stop();
  }
  const auto c = contact().census();
  EXPECT_EQ(c.listeners, 0u);
  EXPECT_EQ(c.connectors, 0u);
}

TEST(Contact, many_pairs_share_the_segments_of_their_processes) {
  constexpr int kSides = 40;
  Side hub(1);
  std::vector<std::unique_ptr<Side>> spokes;
  std::vector<std::unique_ptr<link::Lane>> lanes;
  for (int i = 0; i < kSides; ++i) {
    spokes.push_back(std::make_unique<Side>(static_cast<uint32_t>(100 + i)));
    spokes.back()->connect(hub);
  }
  for (int i = 0; i < kSides; ++i) {
    lanes.push_back(hub.lane());
    lanes.push_back(spokes[i]->lane());
    ASSERT_TRUE(lanes[2 * i] && lanes[2 * i + 1]);
  }
  EXPECT_LE(contact().census().peers, 2u) << "both ends of one connection, in one process";
  for (auto& lane : lanes) contact().close_lane(std::move(lane));
}

TEST(Contact, direct_copies_within_one_process_are_allowed) {
  Side a, b;
  a.connect(b);
  auto at_a = a.lane();
  auto at_b = b.lane();
  ASSERT_TRUE(at_a && at_b);
  EXPECT_TRUE(at_a->direct.allowed);
  EXPECT_TRUE(at_b->direct.allowed);
  EXPECT_EQ(at_a->direct.pid, ::getpid());
  EXPECT_NE(at_a->direct.keys, nullptr);
  EXPECT_NE(at_a->direct.slots, nullptr);
  contact().close_lane(std::move(at_a));
  contact().close_lane(std::move(at_b));
}

}  // namespace
}  // namespace aperture::nic::test
