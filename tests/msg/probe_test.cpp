// Looking at unexpected messages: FI_PEEK, with FI_CLAIM and FI_DISCARD. fi_tagged(3).
#include "msg/receiver.hpp"

namespace aperture::msg::test {
namespace {

using Action = Probe::Action;

class Peek : public testing::TestWithParam<LinkKind> {
 protected:
  Peek() : r_({.link = GetParam(), .peers = 2, .cq_entries = 8, .directed = true}) {
    r_.with_imm = true;
  }
  Status probe(Action action, uint64_t tag, uint64_t context, Guarded* into = nullptr,
               uint64_t ignore = 0, uint64_t source = qp::kAnySource) {
    const iovec iov = into != nullptr ? iov_of(*into) : iovec{};
    Probe p;
    p.action = action;
    p.match = recv_of(iov, context);
    p.match.iov_count = into != nullptr ? 1 : 0;
    p.match.tag = tag;
    p.match.ignore = ignore;
    p.match.source = source;
    p.match.tagged = true;
    return r_.matcher->probe(p);
  }
  // What the last probe found.
  void expect_seen(uint64_t context, uint64_t tag, uint64_t len, uint64_t source = 0) {
    const auto c = r_.expect(context);
    EXPECT_EQ(c.tag, tag);
    EXPECT_EQ(c.len, len);
    EXPECT_EQ(c.imm, tag * 3);
    EXPECT_EQ(c.flags, 1u);
    EXPECT_EQ(c.source, source);
  }
  void expect_to_see(Action action, uint64_t context, uint64_t tag, uint64_t len,
                     uint64_t source = 0) {
    ASSERT_TRUE(probe(action, tag, context));
    expect_seen(context, tag, len, source);
  }
  void expect_gone(uint64_t tag, Action action = Action::peek) {
    ASSERT_TRUE(probe(action, tag, 99));
    r_.expect_error(99, Errc::no_message);
  }

  Receiver r_;
};
INSTANTIATE_TEST_SUITE_P(links, Peek, kEachLink, link_name);

TEST_P(Peek, sees_the_first_match_and_takes_nothing) {
  expect_gone(1);
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    const auto second = pattern(size + 1, 2);
    r_.deliver(1, data);
    r_.deliver(1, second);
    for (int i = 0; i < 3; ++i) {
      expect_to_see(Action::peek, 5, 1, size);
    }
    expect_gone(2);
    ASSERT_TRUE(probe(Action::peek, 2, 6, nullptr, 3));
    expect_seen(6, 1, size);
    ASSERT_TRUE(probe(Action::peek, 1, 6, nullptr, 0, 1));
    r_.expect_error(6, Errc::no_message);
    Guarded into(size + 1);
    EXPECT_EQ(r_.receive(1, into, 7).len, size);
    EXPECT_EQ(r_.receive(1, into, 7).len, size + 1);
    expect_gone(1);
  }
}

TEST_P(Peek, claimed_message_waits_for_its_claim) {
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    const auto other = pattern(size + 1, 2);
    r_.deliver(1, data);
    r_.deliver(1, other, 1);
    expect_to_see(Action::peek_claim, 5, 1, size);
    // nobody else gets it
    expect_to_see(Action::peek, 6, 1, size + 1, 1);
    Guarded into(size + 1);
    EXPECT_EQ(r_.receive(1, into, 7).source, 1u);
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
  EXPECT_EQ(r_.matcher->unexpected_bytes(), 0u);
}

TEST_P(Peek, claimed_message_can_be_discarded) {
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    r_.deliver(1, data);
    expect_to_see(Action::peek_claim, 5, 1, size);
    ASSERT_TRUE(probe(Action::claim_discard, 1, 5));
    r_.expect(5);
    EXPECT_EQ(probe(Action::claim_discard, 1, 5).error(), Errc::invalid);
    expect_gone(1);
    ASSERT_TRUE(r_.until([&] { return !r_.sender(0).qp->has_pending(); }));
  }
  EXPECT_EQ(r_.matcher->unexpected_bytes(), 0u);
}

TEST_P(Peek, discard_drops_the_first_match) {
  for (const size_t size : kWays) {
    const auto data = pattern(size, 1);
    const auto other = pattern(size + 1, 2);
    r_.deliver(1, data);
    r_.deliver(1, other);
    expect_to_see(Action::peek_discard, 5, 1, size);
    expect_to_see(Action::peek_discard, 6, 1, size + 1);
    expect_gone(1, Action::peek_discard);
    ASSERT_TRUE(r_.until([&] { return !r_.sender(0).qp->has_pending(); }));
  }
  EXPECT_EQ(r_.matcher->unexpected_bytes(), 0u);
  EXPECT_EQ(r_.sender(0).port.tx.wqes.out(), 0u);
}

TEST_P(Peek, claim_of_a_lost_peer_ends_in_error) {
  const auto large = pattern(100000, 1);
  const auto small = pattern(8, 1);
  r_.deliver(1, large);
  r_.deliver(2, small);
  ASSERT_TRUE(probe(Action::peek_claim, 1, 5));
  ASSERT_TRUE(probe(Action::peek_claim, 2, 6));
  r_.expect(5);
  r_.expect(6);
  r_.lose(0);
  Guarded into(100000);
  ASSERT_TRUE(probe(Action::claim, 1, 5, &into));
  ASSERT_TRUE(r_.cq().error_first());
  const qp::CompletionError lost = r_.cq().pop_error();
  EXPECT_EQ(lost.err, Errc::peer_lost);
  EXPECT_EQ(lost.entry.tag, 1u);
  EXPECT_EQ(probe(Action::claim, 1, 5, &into).error(), Errc::invalid) << "it is over";
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
