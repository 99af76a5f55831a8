// Messages that are shown, and then claimed or discarded: order, scarce memory, and the ends of
// peers.
#include "msg/receiver.hpp"

namespace aperture::msg {
namespace {

using namespace test;  // NOLINT: what those tests have, these have

constexpr uint64_t kPlainFlag = 0x100, kTagFlag = 0x200, kMore = 0x400, kClaimed = 0x800;
constexpr size_t kLimit = 200000, kLeast = 100;

class Shows : public testing::TestWithParam<LinkKind> {
 protected:
  explicit Shows(size_t peers = 2) : r({.link = GetParam(), .peers = peers}) {
    rule.limit = kLimit;
    rule.least = kLeast;
    rule.plain_flags = kPlainFlag;
    rule.tagged_flags = kTagFlag;
    rule.more_flag = kMore;
    rule.claim_flag = kClaimed;
    rule.receiver = this;
    EXPECT_TRUE(r.matcher->show_messages(rule));
  }
  ~Shows() override { EXPECT_EQ(r.matcher->unexpected_bytes(), 0u); }

  qp::Completion next() {
    EXPECT_TRUE(r.until([&] { return !r.cq().empty(); }));
    return qp::test::take(r.cq());
  }
  Status end(const qp::Completion& shown, Probe::Action action, Guarded* into, uint64_t context) {
    static_cast<RecvContext*>(shown.context)->context = reinterpret_cast<void*>(context);
    iovec iov{};
    Probe p;
    p.action = action;
    if (into != nullptr) {
      iov = iov_of(*into);
      p.match = recv_of(iov, 0);
    }
    p.match.context = shown.context;
    return r.matcher->probe(p);
  }
  // In two pieces, which only its sender can push: a receiver pulls from one alone, by itself when
  // it is let wait.
  Status send_to_push(uint64_t tag, const std::vector<std::byte>& data) {
    const size_t half = data.size() / 2;
    auto* const from = const_cast<std::byte*>(data.data());
    const iovec iov[2] = {{from, half}, {from + half, data.size() - half}};
    SendWr wr = send_of(iov[0], tag);
    wr.iov = iov;
    wr.iov_count = 2;
    wr.len = data.size();
    wr.completion = qp::kCounted;
    return r.sender(0).qp->requester().send(wr);
  }
  void discard(const qp::Completion& shown) {
    ASSERT_TRUE(end(shown, Probe::Action::claim_discard, nullptr, 99));
    r.expect(99);
  }
  void claim(const qp::Completion& shown, const std::vector<std::byte>& data) {
    Guarded into(data.size());
    ASSERT_TRUE(end(shown, Probe::Action::claim, &into, 77));
    const qp::Completion c = r.expect(77);
    EXPECT_EQ(c.len, data.size());
    EXPECT_TRUE(begins_with(into, data));
    EXPECT_TRUE(into.canaries_intact());
  }
  static bool is_at(const void* where, const std::vector<std::byte>& data, size_t n) {
    return same_bytes(static_cast<const std::byte*>(where), data.data(), n);
  }

  BufferedRule rule;
  Receiver r;
};
INSTANTIATE_TEST_SUITE_P(links, Shows, kEachLink, link_name);

TEST_P(Shows, a_short_message_waits_for_a_long_one_of_its_peer_and_for_no_other) {
  const auto long_one = pattern(kLimit, 1), short_one = pattern(8, 2);
  ASSERT_TRUE(r.until([&] { return send_to_push(1, long_one).ok(); }));
  ASSERT_TRUE(r.until([&] { return r.send(2, short_one, 0, false).ok(); }));
  for (int i = 0; i < 50; ++i) r.qp_of(0).poll(0);  // its sender pushes nothing yet
  EXPECT_TRUE(r.cq().empty());
  ASSERT_TRUE(r.send(3, short_one, 1, false));
  for (int i = 0; i < 50 && r.cq().empty(); ++i) r.qp_of(1).poll(0);
  const qp::Completion other = next();
  EXPECT_EQ(other.source, 1u);
  const qp::Completion first = next(), second = next();
  EXPECT_EQ(first.len, kLimit);
  EXPECT_EQ(first.flags, kPlainFlag);
  EXPECT_TRUE(is_at(first.buf, long_one, kLimit));
  EXPECT_EQ(second.len, 8u);
  EXPECT_EQ(second.source, 0u);
  EXPECT_EQ(static_cast<RecvContext*>(second.context)->receiver, this);
  claim(second, short_one);
  claim(first, long_one);
  discard(other);
}

TEST_P(Shows, while_memory_is_scarce_long_messages_by_their_first_bytes_only) {
  const auto data = pattern(kLimit, 3);
  std::vector<qp::Completion> shown;
  bool scarce = false;
  while (!scarce || shown.size() < 3) {
    ASSERT_LT(shown.size(), 2 * MatchCore::kPressureBytes / kLimit);
    ASSERT_TRUE(r.until([&] { return r.send(1, data, 0, false).ok(); }));
    scarce = r.matcher->under_pressure();
    shown.push_back(next());
    EXPECT_EQ(shown.back().flags, scarce ? kPlainFlag | kMore : kPlainFlag);
    ASSERT_TRUE(is_at(shown.back().buf, data, scarce ? kLeast : kLimit));
  }
  claim(shown.back(), data);
  shown.pop_back();
  for (const qp::Completion& s : shown) discard(s);
  EXPECT_FALSE(r.matcher->under_pressure());
  ASSERT_TRUE(r.until([&] { return r.send(1, data, 0, false).ok(); }));
  const qp::Completion whole = next();
  EXPECT_EQ(whole.flags, kPlainFlag);
  discard(whole);
}

TEST_P(Shows, of_a_peer_that_is_lost_in_the_middle_one_error) {
  const auto data = pattern(kLimit, 4), small = pattern(8, 5);
  ASSERT_TRUE(r.until([&] { return send_to_push(1, data).ok(); }));
  ASSERT_TRUE(r.until([&] { return r.send(2, small, 0, false).ok(); }));
  for (int i = 0; i < 50; ++i) {
    r.move();
    r.qp_of(0).poll(0);
  }
  EXPECT_TRUE(r.cq().empty());
  r.lose(0);
  ASSERT_FALSE(r.cq().empty());
  ASSERT_TRUE(r.cq().error_first());
  const CompletionError e = r.cq().pop_error();
  EXPECT_EQ(e.err, Errc::peer_lost);
  EXPECT_EQ(e.entry.flags, kPlainFlag);
  EXPECT_EQ(e.entry.source, 0u);
  const qp::Completion behind = next();
  EXPECT_TRUE(is_at(behind.buf, small, 8)) << "what was here is shown";
  claim(behind, small);
}

TEST_P(Shows, a_tag_that_is_posted_takes_one_message_here_or_to_come) {
  const auto data = pattern(1000, 6);
  const auto post = [&](uint64_t tag, uint64_t context) {
    Probe p;
    p.action = Probe::Action::show;
    p.match.tagged = true;
    p.match.tag = tag;
    p.match.context = reinterpret_cast<void*>(context);
    ASSERT_TRUE(r.matcher->probe(p));
  };
  r.deliver(5, data);
  EXPECT_TRUE(r.cq().empty());
  post(5, 50);
  post(6, 60);
  const qp::Completion here = next();
  r.deliver(6, data);
  const qp::Completion came = next();
  r.deliver(6, data);
  EXPECT_TRUE(r.cq().empty());
  EXPECT_EQ(here.flags, kTagFlag);
  EXPECT_EQ(here.tag, 5u);
  EXPECT_EQ(came.tag, 6u);
  EXPECT_EQ(static_cast<RecvContext*>(here.context)->context, reinterpret_cast<void*>(50));
  EXPECT_EQ(static_cast<RecvContext*>(here.context)->receiver, nullptr);
  claim(here, data);
  discard(came);
  post(6, 61);
  discard(next());
}

TEST(ShowsTo, a_full_queue_no_message_until_there_is_room) {
  BufferedRule rule;
  rule.limit = 100;
  Receiver r({.cq_entries = 4});
  ASSERT_TRUE(r.matcher->show_messages(rule));
  const auto data = pattern(8, 1);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(r.send(i, data, 0, false));
  r.poll(50);
  EXPECT_EQ(r.cq().size(), 4u);
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(r.until([&] { return !r.cq().empty(); }));
    EXPECT_EQ(qp::test::take(r.cq()).tag, i);
  }
}

TEST_P(Shows, only_what_has_been_shown_can_be_claimed) {
  const auto data = pattern(kLimit, 7);
  Guarded into(kLimit);
  qp::Completion nobody;
  RecvContext stray{};
  nobody.context = &stray;
  EXPECT_EQ(end(nobody, Probe::Action::claim, &into, 1).error(), Errc::invalid);
  ASSERT_TRUE(r.until([&] { return r.send(1, data, 0, false).ok(); }));
  const qp::Completion shown = next();
  discard(shown);
  EXPECT_EQ(end(shown, Probe::Action::claim, &into, 1).error(), Errc::invalid) << "twice";
  EXPECT_EQ(r.matcher->cancel(nullptr).error(), Errc::no_entry) << "what shows them stays";
  ASSERT_TRUE(r.until([&] { return r.send(1, data, 0, false).ok(); }));
  discard(next());
}

}  // namespace
}  // namespace aperture::msg
