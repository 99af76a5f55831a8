// One buffer for many messages: places, the release, and its ends. fi_msg(3), fi_endpoint(3),
// FI_MULTI_RECV.
#include "msg/receiver.hpp"

namespace aperture::msg::test {
namespace {

constexpr uint64_t kRelease = 1u << 16;
constexpr uint64_t kRecv = 1u << 10;

class MultiRecv : public testing::TestWithParam<LinkKind> {
 protected:
  static Scene scene(size_t peers = 1, size_t cq_entries = 1024, bool directed = false) {
    return {.link = GetParam(), .peers = peers, .cq_entries = cq_entries, .directed = directed};
  }
  static Status post(Receiver& r, Guarded& into, uint64_t context, uint64_t least_room,
                     bool completion = true, uint64_t source = qp::kAnySource) {
    r.qp_of().port().release_flag = kRelease;
    const iovec iov = iov_of(into);
    RecvWr wr = recv_of(iov, context);
    wr.flags = kRecv;
    wr.completion = completion;
    wr.source = source;
    return r.matcher->recv_multi(wr, least_room);
  }
  // A receiver with one buffer posted, of context 1.
  struct Buffered : Receiver {
    Buffered(const Scene& scene, size_t size, uint64_t least_room) : Receiver(scene), into(size) {
      EXPECT_TRUE(post(*this, into, 1, least_room));
    }
    Guarded into;
  };
  static void send(Receiver& r, const std::vector<std::byte>& data, size_t i = 0) {
    r.deliver(0, data, i, false);
  }
  static void expect_at(const qp::Completion& c, Guarded& into, size_t at,
                        const std::vector<std::byte>& data) {
    EXPECT_EQ(c.buf, into.data() + at);
    EXPECT_EQ(c.len, data.size());
    EXPECT_TRUE(same_bytes(into.data() + at, data.data(), data.size()));
    EXPECT_TRUE(into.canaries_intact());
  }
};
INSTANTIATE_TEST_SUITE_P(links, MultiRecv, kEachLink, link_name);

TEST_P(MultiRecv, messages_of_every_size_lie_one_behind_the_other) {
  Receiver r(scene());
  Guarded into(400000);
  ASSERT_TRUE(post(r, into, 7, 1000));
  size_t at = 0;
  for (unsigned i = 0; i < 8; ++i) {
    const auto data = pattern(kWays[i % 4] + i, i);
    send(r, data);
    const auto c = r.expect(7);
    EXPECT_EQ(c.flags, kRecv);
    expect_at(c, into, at, data);
    at += data.size();
  }
  EXPECT_EQ(r.received.value(), 8u);
  EXPECT_EQ(r.received.errors(), 0u);
  EXPECT_TRUE(r.cq().empty());
}

TEST_P(MultiRecv, the_last_message_that_leaves_too_little_releases_the_buffer) {
  for (const size_t size : kWays) {
    SCOPED_TRACE(size);
    Receiver r(scene());
    Guarded into(3 * size + 10), next(3 * size);
    ASSERT_TRUE(post(r, into, 1, 11));
    ASSERT_TRUE(post(r, next, 2, 1));
    const auto data = pattern(size, 3);
    for (int i = 0; i < 3; ++i) {
      send(r, data);
      const auto c = r.expect(1);
      EXPECT_EQ(c.flags, i == 2 ? kRecv | kRelease : kRecv);
      expect_at(c, into, size * i, data);
    }
    send(r, data);
    expect_at(r.expect(2), next, 0, data);
    EXPECT_TRUE(r.cq().empty());
  }
}

TEST_P(MultiRecv, exactly_the_least_room_left_keeps_the_buffer) {
  Buffered r(scene(), 200, 100);
  const auto data = pattern(100, 3);
  send(r, data);
  EXPECT_EQ(r.expect(1).flags, kRecv);
  send(r, data);
  const auto c = r.expect(1);
  EXPECT_EQ(c.flags, kRecv | kRelease);
  expect_at(c, r.into, 100, data);
}

TEST_P(MultiRecv, a_least_room_of_0_releases_the_full_buffer) {
  Buffered r(scene(), 16, 0);
  const auto data = pattern(8, 3);
  send(r, data);
  EXPECT_EQ(r.expect(1).flags, kRecv);
  send(r, {});
  EXPECT_EQ(r.expect(1).flags, kRecv);
  send(r, data);
  EXPECT_EQ(r.expect(1).flags, kRecv | kRelease);
}

TEST_P(MultiRecv, a_message_larger_than_what_is_left_is_truncated_and_releases_the_buffer) {
  for (const size_t size : kWays) {
    SCOPED_TRACE(size);
    Buffered r(scene(), size + 5, 5);
    const auto data = pattern(size, 3);
    send(r, data);
    EXPECT_EQ(r.expect(1).flags, kRecv);
    send(r, data);
    const CompletionError e = r.expect_error(1, Errc::truncated);
    EXPECT_EQ(e.entry.flags, kRecv | kRelease);
    EXPECT_EQ(e.entry.len, 5u);
    EXPECT_EQ(e.overflow, size - 5);
    EXPECT_EQ(e.entry.buf, r.into.data() + size);
    EXPECT_TRUE(same_bytes(r.into.data() + size, data.data(), 5));
    EXPECT_TRUE(r.into.canaries_intact());
    EXPECT_EQ(r.received.value(), 1u);
    EXPECT_EQ(r.received.errors(), 1u);
    send(r, data);  // unexpected now
    EXPECT_TRUE(r.cq().empty());
  }
}

TEST_P(MultiRecv, large_messages_at_once_release_the_buffer_when_the_last_is_in_place) {
  constexpr size_t kEach = 300000;
  Buffered r(scene(2), 4 * kEach + 10, 11);
  std::vector<std::vector<std::byte>> data;
  for (unsigned i = 0; i < 4; ++i) data.push_back(pattern(kEach, i));
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = i % 2;
    ASSERT_TRUE(r.until([&] { return r.send(0, data[i], from, false).ok(); }));
  }
  bool seen[4] = {};
  for (int n = 0; n < 4; ++n) {
    const auto c = r.expect(1);
    EXPECT_EQ(c.flags, n == 3 ? kRecv | kRelease : kRecv) << n;
    const auto at = static_cast<size_t>(static_cast<std::byte*>(c.buf) - r.into.data());
    ASSERT_EQ(at % kEach, 0u);
    bool known = false;
    for (unsigned i = 0; i < 4; ++i) {
      if (seen[i] || !same_bytes(r.into.data() + at, data[i].data(), kEach)) continue;
      seen[i] = known = true;
      EXPECT_EQ(c.source, i % 2);
      break;
    }
    EXPECT_TRUE(known) << n;
  }
  EXPECT_TRUE(r.into.canaries_intact());
}

TEST_P(MultiRecv, suppressed_successes_leave_the_release_alone) {
  for (const size_t size : kWays) {
    SCOPED_TRACE(size);
    Receiver r(scene());
    Guarded into(2 * size);
    ASSERT_TRUE(post(r, into, 1, 1, false));
    const auto data = pattern(size, 3);
    send(r, data);
    ASSERT_TRUE(r.until([&] { return r.received.value() == 1; }));
    EXPECT_TRUE(r.cq().empty());
    send(r, data);
    const auto c = r.expect(1);
    EXPECT_EQ(c.flags, kRelease);
    EXPECT_EQ(c.len, 0u);
    EXPECT_EQ(r.received.value(), 2u);
    EXPECT_TRUE(same_bytes(into.data() + size, data.data(), size));
    EXPECT_TRUE(r.cq().empty());
  }
}

TEST_P(MultiRecv, unexpected_messages_go_in_first_in_the_order_they_came) {
  Receiver r(scene());
  std::vector<std::vector<std::byte>> data;
  for (unsigned i = 0; i < 6; ++i) data.push_back(pattern(kWays[i % 4], i));
  for (unsigned i = 0; i < 4; ++i) send(r, data[i]);
  Guarded into(200000);
  ASSERT_TRUE(post(r, into, 1, 1));
  send(r, data[4]);
  send(r, data[5]);
  std::vector<qp::Completion> got;
  for (int i = 0; i < 6; ++i) got.push_back(r.expect(1));
  size_t at = 0;
  for (unsigned i = 0; i < 6; at += data[i++].size()) {
    bool found = false;
    for (const auto& c : got) found = found || c.buf == into.data() + at;
    EXPECT_TRUE(found) << i;
    EXPECT_TRUE(same_bytes(into.data() + at, data[i].data(), data[i].size())) << i;
  }
  EXPECT_EQ(r.matcher->unexpected_bytes(), 0u);
}

TEST_P(MultiRecv, more_unexpected_messages_than_the_queue_holds_all_go_in) {
  Receiver r(scene(1, 4));
  for (unsigned i = 0; i < 40; ++i) send(r, pattern(8, i));
  Guarded into(8 * 30), rest(8 * 20);
  ASSERT_TRUE(post(r, into, 1, 1));
  for (unsigned i = 0; i < 30; ++i) {
    const auto c = r.expect(1);
    EXPECT_EQ(c.flags, i == 29 ? kRecv | kRelease : kRecv);
    expect_at(c, into, 8 * i, pattern(8, i));
  }
  ASSERT_TRUE(post(r, rest, 2, 1));
  for (unsigned i = 0; i < 10; ++i) expect_at(r.expect(2), rest, 8 * i, pattern(8, 30 + i));
  EXPECT_TRUE(r.cq().empty());
}

TEST_P(MultiRecv, a_full_queue_holds_messages_back_and_loses_none) {
  Buffered r(scene(1, 4), 8 * 100, 1);
  for (unsigned i = 0; i < 100; ++i) {
    const auto data = pattern(8, i);
    ASSERT_TRUE(r.send(0, data, 0, false));
  }
  r.poll(30);
  EXPECT_LE(r.cq().size(), 4u);
  for (unsigned i = 0; i < 100; ++i) {
    const auto c = r.expect(1);
    EXPECT_EQ((c.flags & kRelease) != 0, i == 99);
    expect_at(c, r.into, 8 * i, pattern(8, i));
  }
}

TEST_P(MultiRecv, cancel_releases_an_idle_buffer_with_one_error) {
  Buffered r(scene(), 100, 1);
  send(r, pattern(8, 1));
  r.expect(1);
  ASSERT_TRUE(r.matcher->cancel(reinterpret_cast<void*>(1)));
  const CompletionError e = r.expect_error(1, Errc::canceled);
  EXPECT_EQ(e.entry.flags, kRecv | kRelease);
  EXPECT_EQ(e.entry.buf, r.into.data());
  EXPECT_EQ(r.received.value(), 1u);
  EXPECT_EQ(r.received.errors(), 1u);
  EXPECT_EQ(r.matcher->cancel(reinterpret_cast<void*>(1)).error(), Errc::no_entry);
  EXPECT_TRUE(r.cq().empty());
}

TEST_P(MultiRecv, cancel_waits_for_the_messages_under_way) {
  constexpr size_t kEach = 500000;
  Buffered r(scene(), 3 * kEach, 1);
  const auto first = pattern(kEach, 1);
  const auto second = pattern(kEach, 2);
  ASSERT_TRUE(r.send(0, first, 0, false));
  ASSERT_TRUE(r.send(0, second, 0, false));
  r.move();
  r.qp_of().poll(1);  // both matched, nothing has come yet
  ASSERT_TRUE(r.matcher->cancel(reinterpret_cast<void*>(1)));
  EXPECT_TRUE(r.cq().empty());
  expect_at(r.expect(1), r.into, 0, first);
  const auto c = r.expect(1);
  EXPECT_EQ(c.flags, kRecv);
  expect_at(c, r.into, kEach, second);
  EXPECT_EQ(r.expect_error(1, Errc::canceled).entry.flags, kRecv | kRelease);
  EXPECT_TRUE(r.cq().empty());
}

TEST_P(MultiRecv, a_lost_peer_fails_its_messages_and_the_buffer_lives_on) {
  constexpr size_t kEach = 500000;
  Buffered r(scene(2), 2 * kEach, 1);
  const auto lost = pattern(kEach, 1);
  ASSERT_TRUE(r.send(0, lost, 0, false));
  r.move();
  r.qp_of(0).poll(1);
  r.lose(0);
  EXPECT_EQ(r.expect_error(1, Errc::peer_lost).entry.flags, kRecv);
  const auto data = pattern(8, 2);
  send(r, data, 1);
  const auto c = r.expect(1);
  EXPECT_EQ(c.source, 1u);
  expect_at(c, r.into, kEach, data);
}

TEST_P(MultiRecv, the_last_message_may_fail_and_then_its_error_releases_the_buffer) {
  Receiver r(scene(2));
  constexpr size_t kEach = 500000;
  for (const bool completion : {true, false}) {
    Guarded into(kEach);
    ASSERT_TRUE(post(r, into, 1, 1, completion));
    const size_t peer = completion ? 0 : 1;
    const auto lost = pattern(kEach, 1);
    ASSERT_TRUE(r.send(0, lost, peer, false));
    r.move();
    r.qp_of(peer).poll(1);
    r.qp_of(peer).finish(Errc::peer_lost);
    EXPECT_EQ(r.expect_error(1, Errc::peer_lost).entry.flags, kRecv | kRelease);
    EXPECT_TRUE(r.cq().empty());
    EXPECT_EQ(r.matcher->cancel(reinterpret_cast<void*>(1)).error(), Errc::no_entry);
  }
}

TEST_P(MultiRecv, a_directed_buffer_takes_messages_of_its_peer_only_and_ends_with_it) {
  Receiver r(scene(2, 1024, true));
  Guarded into(100), any(100);
  send(r, pattern(8, 9), 0);  // unexpected
  ASSERT_TRUE(post(r, into, 1, 1, true, 1));
  EXPECT_TRUE(r.cq().empty());
  const auto data = pattern(8, 1);
  send(r, data, 1);
  expect_at(r.expect(1), into, 0, data);
  send(r, data, 0);
  EXPECT_TRUE(r.cq().empty());
  ASSERT_TRUE(post(r, any, 2, 1));
  expect_at(r.expect(2), any, 0, pattern(8, 9));
  expect_at(r.expect(2), any, 8, data);
  r.matcher->on_lost(r.qp_of(1), Errc::peer_lost);
  EXPECT_EQ(r.expect_error(1, Errc::peer_lost).entry.flags, kRecv | kRelease);
  send(r, data, 0);
  expect_at(r.expect(2), any, 16, data);
}

TEST_P(MultiRecv, single_receives_before_it_have_their_turn_first) {
  Receiver r(scene());
  Guarded one(8), many(100), later(8);
  ASSERT_TRUE(r.recv(0, one, 1, 0, qp::kAnySource, false));
  ASSERT_TRUE(post(r, many, 2, 1));
  ASSERT_TRUE(r.recv(0, later, 3, 0, qp::kAnySource, false));
  const auto data = pattern(8, 1);
  for (int i = 0; i < 12; ++i) send(r, data);
  r.expect(1);
  for (int i = 0; i < 11; ++i) r.expect(2);
  EXPECT_TRUE(r.cq().empty());
}

TEST_P(MultiRecv, two_buffers_are_no_single_one) {
  Receiver r(scene());
  Guarded into(100);
  const iovec iov[2] = {{into.data(), 50}, {into.data() + 50, 50}};
  const RecvWr wr{.iov = iov, .iov_count = 2, .len = 100};
  EXPECT_EQ(r.matcher->recv_multi(wr, 1).error(), Errc::invalid);
}

TEST_P(MultiRecv, the_end_of_the_endpoint_cancels_it) {
  Buffered r(scene(), 100, 1);
  r.matcher->cancel_all(Errc::canceled);
  EXPECT_EQ(r.expect_error(1, Errc::canceled).entry.flags, kRecv | kRelease);
  EXPECT_TRUE(r.cq().empty());
}

}  // namespace
}  // namespace aperture::msg::test
