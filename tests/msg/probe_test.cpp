// Looking at unexpected messages: FI_PEEK, with FI_CLAIM and FI_DISCARD. fi_tagged(3).
#include "msg/receiver.hpp"

namespace aperture::msg::test {
namespace {

using Action = Probe::Action;

class Peek : public testing::TestWithParam<LinkKind> {
 protected:
  Peek() : r_(scene(GetParam())) { r_.with_imm = true; }
  static Scene scene(LinkKind link) {
    Scene s;
    s.link = link;
    s.peers = 2;
    s.directed = true;
    s.cq_entries = 8;
    return s;
  }
  Status probe(Action action, uint64_t tag, uint64_t context, Guarded* into = nullptr,
               uint64_t ignore = 0, uint64_t source = qp::kAnySource) {
    iovec iov{};
    Probe p;
    p.action = action;
    p.match.tag = tag;
    p.match.ignore = ignore;
    p.match.source = source;
    p.match.tagged = true;
    p.match.context = reinterpret_cast<void*>(context);
    if (into != nullptr) {
      iov = {into->data(), into->size()};
      p.match.iov = &iov;
      p.match.iov_count = 1;
      p.match.len = into->size();
    }
    return r_.matcher->probe(p);
  }
  void expect_seen(uint64_t context, uint64_t tag, uint64_t len, uint64_t source = 0) {
    const auto c = r_.expect(context);
    EXPECT_EQ(c.tag, tag);
    EXPECT_EQ(c.len, len);
    EXPECT_EQ(c.imm, tag * 3);
    EXPECT_EQ(c.flags, 1u);
    EXPECT_EQ(c.source, source);
  }
  void expect_gone(uint64_t tag) {
    ASSERT_TRUE(probe(Action::peek, tag, 99));
    r_.expect_error(99, Errc::no_message);
  }

  Receiver r_;
};
INSTANTIATE_TEST_SUITE_P(links, Peek,
                         testing::Values(LinkKind::loopback, LinkKind::shm, LinkKind::direct),
                         [](const auto& link) { return name_of(link.param); });

TEST_P(Peek, sees_the_first_match_and_takes_nothing) {
  ASSERT_TRUE(probe(Action::peek, 1, 1));
  r_.expect_error(1, Errc::no_message);
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    const auto second = pattern(size + 1, 2);
    r_.deliver(1, data);
    r_.deliver(1, second);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(probe(Action::peek, 1, 5));
      expect_seen(5, 1, size);
    }
    ASSERT_TRUE(probe(Action::peek, 2, 6));
    r_.expect_error(6, Errc::no_message);
    ASSERT_TRUE(probe(Action::peek, 2, 6, nullptr, 3));
    expect_seen(6, 1, size);
    ASSERT_TRUE(probe(Action::peek, 1, 6, nullptr, 0, 1));
    r_.expect_error(6, Errc::no_message);
    Guarded into(size + 1);
    ASSERT_TRUE(r_.recv(1, into, 7));
    EXPECT_EQ(r_.expect(7).len, size);
    ASSERT_TRUE(r_.recv(1, into, 7));
    EXPECT_EQ(r_.expect(7).len, size + 1);
    expect_gone(1);
  }
}

TEST_P(Peek, claimed_message_waits_for_its_claim) {
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    const auto other = pattern(size + 1, 2);
    r_.deliver(1, data);
    r_.deliver(1, other, 1);
    ASSERT_TRUE(probe(Action::peek_claim, 1, 5));
    expect_seen(5, 1, size);
    // nobody else gets it
    ASSERT_TRUE(probe(Action::peek, 1, 6));
    expect_seen(6, 1, size + 1, 1);
    Guarded into(size + 1);
    ASSERT_TRUE(r_.recv(1, into, 7));
    EXPECT_EQ(r_.expect(7).source, 1u);
    expect_gone(1);
    EXPECT_EQ(probe(Action::claim, 1, 6, &into).error(), Errc::invalid);  // another context
    ASSERT_TRUE(probe(Action::claim, 1, 5, &into));
    const auto c = r_.expect(5);
    EXPECT_EQ(c.len, size);
    EXPECT_EQ(c.tag, 1u);
    EXPECT_TRUE(begins_with(into, data));
    EXPECT_EQ(probe(Action::claim, 1, 5, &into).error(), Errc::invalid);  // only once
    ASSERT_TRUE(r_.until([&] { return !r_.sender(0).qp->has_pending(); }));
  }
  EXPECT_EQ(r_.matcher->unexpected_payload_bytes(), 0u);
}

TEST_P(Peek, claimed_message_can_be_discarded) {
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    r_.deliver(1, data);
    ASSERT_TRUE(probe(Action::peek_claim, 1, 5));
    expect_seen(5, 1, size);
    ASSERT_TRUE(probe(Action::claim_discard, 1, 5));
    r_.expect(5);
    EXPECT_EQ(probe(Action::claim_discard, 1, 5).error(), Errc::invalid);
    expect_gone(1);
    ASSERT_TRUE(r_.until([&] { return !r_.sender(0).qp->has_pending(); }));
  }
  EXPECT_EQ(r_.matcher->unexpected_payload_bytes(), 0u);
}

TEST_P(Peek, discard_drops_the_first_match) {
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    const auto other = pattern(size + 1, 2);
    r_.deliver(1, data);
    r_.deliver(1, other);
    ASSERT_TRUE(probe(Action::peek_discard, 1, 5));
    expect_seen(5, 1, size);
    ASSERT_TRUE(probe(Action::peek_discard, 1, 6));
    expect_seen(6, 1, size + 1);
    ASSERT_TRUE(probe(Action::peek_discard, 1, 7));
    r_.expect_error(7, Errc::no_message);
    ASSERT_TRUE(r_.until([&] { return !r_.sender(0).qp->has_pending(); }));
  }
  EXPECT_EQ(r_.matcher->unexpected_payload_bytes(), 0u);
  EXPECT_EQ(r_.sender(0).port.wqes.out(), 0u);
}

TEST_P(Peek, claim_of_a_lost_peer_is_an_error_of_the_call) {
  const auto large = pattern(100000, 1);
  const auto small = pattern(8, 1);
  r_.deliver(1, large);
  r_.deliver(2, small);
  ASSERT_TRUE(probe(Action::peek_claim, 1, 5));
  ASSERT_TRUE(probe(Action::peek_claim, 2, 6));
  r_.expect(5);
  r_.expect(6);
  r_.matcher->on_lost(r_.qp_of(0), Errc::peer_lost);
  r_.qp_of(0).finish(Errc::peer_lost);
  Guarded into(100000);
  EXPECT_EQ(probe(Action::claim, 1, 5, &into).error(), Errc::invalid);
  ASSERT_TRUE(probe(Action::claim, 2, 6, &into));  // its payload had come
  r_.expect(6);
}

TEST_P(Peek, full_cq_is_again) {
  const auto data = pattern(8, 1);
  r_.deliver(1, data);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(probe(Action::peek, i % 2, 5));
  EXPECT_EQ(probe(Action::peek, 1, 5).error(), Errc::again);
  EXPECT_EQ(probe(Action::peek_claim, 1, 5).error(), Errc::again);
  EXPECT_EQ(probe(Action::peek_discard, 1, 5).error(), Errc::again);
}

}  // namespace
}  // namespace aperture::msg::test
