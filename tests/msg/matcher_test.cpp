// Which receive a message goes to. fi_tagged(3), fi_msg(3).
#include "msg/receiver.hpp"

namespace aperture::msg::test {
namespace {

class Match : public testing::TestWithParam<LinkKind> {
 protected:
  Scene scene(size_t peers = 1) { return {.link = GetParam(), .peers = peers}; }
};
INSTANTIATE_TEST_SUITE_P(links, Match, kEachLink, link_name);
// With one sender.
class MatchOne : public Match {
 protected:
  Receiver r{scene()};
};
INSTANTIATE_TEST_SUITE_P(links, MatchOne, kEachLink, link_name);

TEST_P(MatchOne, posted_first_or_arrived_first_is_all_the_same) {
  for (const bool has_imm : {false, true}) {
    r.with_imm = has_imm;
    for (const bool tagged : {true, false}) {
      for (const size_t size : kWays) {
        for (const bool posted_first : {true, false}) {
          Guarded into(size);
          const auto data = pattern(size, 3);
          const auto post = [&] { ASSERT_TRUE(r.recv(9, into, 1, 0, qp::kAnySource, tagged)); };
          if (posted_first) post();
          r.deliver(9, data, 0, tagged);
          if (!posted_first) post();
          const auto c = r.expect(1);
          EXPECT_EQ(c.len, size);
          EXPECT_EQ(c.tag, 9u);
          EXPECT_EQ(c.source, 0u);
          EXPECT_EQ(c.buf, into.data());
          EXPECT_EQ(c.flags, has_imm ? 1u : 0u);
          EXPECT_EQ(c.imm, has_imm ? 27u : 0u);
          EXPECT_TRUE(begins_with(into, data));
        }
      }
    }
  }
  EXPECT_EQ(r.received.value(), 2u * 2 * 4 * 2);
  EXPECT_EQ(r.matcher->unexpected_bytes(), 0u);
}

TEST_P(MatchOne, first_posted_receive_that_matches_takes_it) {
  Guarded a(8), b(8), c(8), d(8);
  const auto data = pattern(8, 1);
  ASSERT_TRUE(r.recv(5, a, 1));
  ASSERT_TRUE(r.recv(6, b, 2));
  ASSERT_TRUE(r.recv(0, c, 3, ~uint64_t{0}));
  ASSERT_TRUE(r.recv(6, d, 4));
  r.deliver(6, data);
  r.expect(2);
  r.deliver(6, data);  // the wildcard stands before the second receive of tag 6
  r.expect(3);
  r.deliver(6, data);
  r.expect(4);
  r.deliver(5, data);
  r.expect(1);
}

TEST_P(MatchOne, receive_takes_the_oldest_message_that_matches) {
  std::vector<std::vector<std::byte>> data;
  for (unsigned i = 0; i < 8; ++i) data.push_back(pattern(kWays[i % 4], i));
  for (unsigned i = 0; i < 8; ++i) r.deliver(i % 2, data[i]);
  Guarded into(100000);
  for (const unsigned i : {1u, 3u, 0u, 2u}) {
    const auto c = r.receive(i % 2, into, i);
    EXPECT_EQ(c.len, data[i].size());
    EXPECT_TRUE(begins_with(into, {data[i].begin(), data[i].end()}));
  }
  for (const unsigned i : {4u, 5u, 6u, 7u}) {  // any tag: in order of arrival
    const auto c = r.receive(99, into, i, ~uint64_t{0});
    EXPECT_EQ(c.tag, i % 2);
    EXPECT_EQ(c.len, data[i].size());
  }
}

TEST_P(MatchOne, ignored_bits_do_not_count_and_all_others_do) {
  const auto data = pattern(8, 1);
  Guarded into(8);
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t mask = uint64_t{1} << bit;
    const uint64_t tag = 0x123456789abcdef0u;
    ASSERT_TRUE(r.recv(tag, into, 1, mask));
    r.deliver(tag ^ mask, data);
    EXPECT_EQ(r.expect(1).tag, tag ^ mask);
    ASSERT_TRUE(r.recv(tag, into, 2, ~mask));
    r.deliver(tag ^ mask, data);
    EXPECT_TRUE(r.cq().empty()) << bit;
    r.deliver(~tag ^ (~tag & mask) ^ (tag & mask), data);
    EXPECT_EQ(r.expect(2).context, reinterpret_cast<void*>(2));
    r.receive(tag ^ mask, into, 3);
  }
}

TEST_P(MatchOne, tagged_and_untagged_never_meet) {
  const auto data = pattern(8, 1);
  Guarded a(8), b(8);
  ASSERT_TRUE(r.recv(0, a, 1, ~uint64_t{0}, qp::kAnySource, true));
  ASSERT_TRUE(r.recv(0, b, 2, 0, qp::kAnySource, false));
  r.deliver(0, data, 0, false);
  r.expect(2);
  r.deliver(0, data, 0, false);  // unexpected
  r.deliver(0, data, 0, true);
  r.expect(1);
  EXPECT_TRUE(r.cq().empty());
}

TEST_P(Match, directed_receive_takes_only_its_source) {
  Receiver r({.link = GetParam(), .peers = 3, .directed = true});
  for (const size_t size : kWays) {
    std::vector<std::vector<std::byte>> data;
    for (unsigned i = 0; i < 3; ++i) data.push_back(pattern(size, i));
    Guarded from2(size), from0(size), any(size);
    ASSERT_TRUE(r.recv(1, from2, 2, 0, 2));
    ASSERT_TRUE(r.recv(1, from0, 1, 0, 0));
    ASSERT_TRUE(r.recv(1, any, 3));
    r.deliver(1, data[1], 1);
    EXPECT_EQ(r.expect(3).source, 1u);
    r.deliver(1, data[0], 0);
    EXPECT_EQ(r.expect(1).source, 0u);
    r.deliver(1, data[2], 2);
    EXPECT_EQ(r.expect(2).source, 2u);
    EXPECT_TRUE(begins_with(from2, data[2]));
    for (size_t i = 0; i < 3; ++i) r.deliver(1, data[i], i);  // and when they came before
    EXPECT_EQ(r.receive(1, from2, 4, 0, 2).source, 2u);
    EXPECT_TRUE(begins_with(from2, data[2]));
    EXPECT_EQ(r.receive(1, any, 5).source, 0u);
    EXPECT_EQ(r.receive(1, any, 6).source, 1u);
  }
}

TEST_P(Match, sender_that_is_in_no_table_has_no_source) {
  Receiver r({.link = GetParam(), .peers = 2, .directed = true});
  r.unknown_peer = 1;
  const auto data = pattern(8, 1);
  Guarded directed(8), any(8);
  ASSERT_TRUE(r.recv(1, directed, 1, 0, 0));
  ASSERT_TRUE(r.recv(1, any, 2));
  r.deliver(1, data, 1);
  EXPECT_EQ(r.expect(2).source, qp::kNoSource);
  EXPECT_TRUE(r.cq().empty());
}

TEST_P(MatchOne, message_longer_than_its_receive_is_cut_and_says_so) {
  r.with_imm = true;
  for (const size_t size : kWays) {
    for (const size_t room : {size_t{0}, size_t{1}, size - 1}) {
      for (const bool posted_first : {true, false}) {
        for (const bool completion : {true, false}) {
          Guarded into(room);
          const auto data = pattern(size, 3);
          const iovec iov = iov_of(into);
          RecvWr wr = recv_of(iov, 8);
          wr.tag = 4;
          wr.tagged = true;
          wr.completion = completion;
          const auto post = [&] { ASSERT_TRUE(r.matcher->recv(wr)); };
          if (posted_first) post();
          r.deliver(4, data);
          if (!posted_first) post();
          const auto e = r.expect_error(8, Errc::truncated);
          EXPECT_EQ(e.overflow, size - room);
          EXPECT_EQ(e.entry.len, room);
          EXPECT_EQ(e.entry.tag, 4u);
          EXPECT_EQ(e.entry.imm, 12u);
          EXPECT_TRUE(begins_with(into, data));
          ASSERT_TRUE(r.until([&] { return !r.sender().qp->has_pending(); }));
        }
      }
    }
  }
  EXPECT_EQ(r.received.value(), 0u);
  EXPECT_EQ(r.received.errors(), 4u * 3 * 2 * 2);
}

TEST_P(MatchOne, several_pieces_are_filled_in_order) {
  for (const size_t size : kWays) {
    for (const bool posted_first : {true, false}) {
      Guarded a(3), b(size), c(10);
      const iovec iov[4] = {{a.data(), 3}, {nullptr, 0}, {b.data(), size - 5}, {c.data(), 10}};
      const RecvWr wr{.iov = iov, .iov_count = 4, .len = size + 8, .tagged = true};
      const auto data = pattern(size, 3);
      const auto post = [&] { ASSERT_TRUE(r.matcher->recv(wr)); };
      if (posted_first) post();
      r.deliver(0, data);
      if (!posted_first) post();
      EXPECT_EQ(r.expect(0).len, size);
      EXPECT_TRUE(same_bytes(a.data(), data.data(), 3));
      EXPECT_TRUE(same_bytes(b.data(), data.data() + 3, size - 5));
      EXPECT_TRUE(same_bytes(c.data(), data.data() + size - 2, 2));
      EXPECT_EQ(c.data()[2], std::byte{0});
      EXPECT_TRUE(a.canaries_intact() && b.canaries_intact() && c.canaries_intact());
    }
  }
}

TEST_P(MatchOne, cancelled_receive_ends_once_and_takes_nothing) {
  Guarded a(8), b(8);
  ASSERT_TRUE(r.recv(1, a, 1));
  ASSERT_TRUE(r.recv(1, b, 2));
  ASSERT_TRUE(r.matcher->cancel(reinterpret_cast<void*>(1)));
  EXPECT_EQ(r.matcher->cancel(reinterpret_cast<void*>(1)).error(), Errc::no_entry);
  r.expect_error(1, Errc::canceled);
  r.deliver(1, pattern(8, 1));
  r.expect(2);
  EXPECT_TRUE(a.all(0));
  EXPECT_EQ(r.matcher->cancel(reinterpret_cast<void*>(2)).error(), Errc::no_entry);
}

TEST_P(MatchOne, receive_whose_bytes_are_on_their_way_cannot_be_cancelled) {
  Guarded into(1000000);
  const auto data = pattern(1000000, 1);
  r.deliver(1, data);
  ASSERT_TRUE(r.recv(1, into, 1));
  EXPECT_EQ(r.matcher->cancel(reinterpret_cast<void*>(1)).error(), Errc::no_entry);
  r.expect(1);
  EXPECT_TRUE(begins_with(into, data));
}

TEST_P(Match, full_cq_holds_messages_back_and_loses_none) {
  Receiver r({.link = GetParam(), .cq_entries = 4});
  for (const size_t size : kWays) {
    std::vector<std::unique_ptr<Guarded>> into;
    const auto data = pattern(size, 1);
    for (uint64_t i = 0; i < 20; ++i) {
      into.push_back(std::make_unique<Guarded>(size));
      ASSERT_TRUE(r.recv(1, *into.back(), i));
    }
    for (int i = 0; i < 20; ++i) r.deliver(1, data);
    EXPECT_LE(r.cq().size(), 4u);
    r.expect_each(20, is_offered(size));
    for (auto& memory : into) EXPECT_TRUE(begins_with(*memory, data));
    // the same with messages that came first: the receive itself says "again"
    for (int i = 0; i < 8; ++i) r.deliver(1, data);
    uint64_t posted = 0;
    uint64_t count = 0;
    std::vector<bool> seen(8);
    const auto expect_next = [&] {
      r.expect_one_of(seen, is_offered(size) ? seen.size() : count);
      ++count;
    };
    ASSERT_TRUE(r.until([&] {
      if (posted < 8) {
        const Status st = r.recv(1, *into[posted], posted);
        EXPECT_TRUE(st.ok() || st.error() == Errc::again);
        if (st) {
          ++posted;
        } else {
          expect_next();
        }
      }
      if (posted == 8 && count < 8) expect_next();
      return count == 8;
    }));
  }
}

TEST_P(Match, errors_in_a_full_cq_displace_nothing) {
  Receiver r({.link = GetParam(), .cq_entries = 4});
  Guarded big(100000);
  const auto data = pattern(100000, 1);
  Guarded small(8);
  // four large messages under way have been promised the four entries
  for (uint64_t i = 0; i < 4; ++i) r.deliver(1, data);
  std::vector<std::unique_ptr<Guarded>> into;
  for (uint64_t i = 0; i < 4; ++i) {
    into.push_back(std::make_unique<Guarded>(100000));
    ASSERT_TRUE(r.recv(1, *into.back(), i));
  }
  for (uint64_t i = 100; i < 106; ++i) {
    ASSERT_TRUE(r.recv(2, small, i));
    ASSERT_TRUE(r.matcher->cancel(reinterpret_cast<void*>(i)));
  }
  ASSERT_TRUE(r.until([&] { return r.cq().size() == 10; }));
  for (uint64_t i = 100; i < 106; ++i) r.expect_error(i, Errc::canceled);
  r.expect_each(4, true);
  for (auto& memory : into) EXPECT_TRUE(begins_with(*memory, data));
}

TEST_P(MatchOne, receive_without_a_completion_is_silent_and_counted) {
  for (const size_t size : kWays) {
    Guarded into(size);
    const iovec iov = iov_of(into);
    RecvWr wr = recv_of(iov, 0);
    wr.tagged = true;
    wr.completion = false;
    const uint64_t before = r.received.value();
    ASSERT_TRUE(r.matcher->recv(wr));
    const auto data = pattern(size, 2);
    r.deliver(0, data);
    ASSERT_TRUE(r.until([&] { return r.received.value() == before + 1; }));
    EXPECT_TRUE(begins_with(into, data));
    EXPECT_TRUE(r.cq().empty());
  }
}

// 100,000 messages of one tag before the one that is waited for, from one peer and from three.
TEST_P(Match, flood_of_unexpected_messages_does_not_hide_the_one_wanted) {
  for (const size_t peers : {1u, 3u}) {
    Receiver r(scene(peers));
    const auto data = pattern(64, 1);
    const auto last = pattern(8, 2);
    constexpr uint64_t kFlood = 100'000;
    std::vector<uint64_t> sent(peers, 0);
    ASSERT_TRUE(r.until([&] {
      bool all = true;
      for (size_t i = 0; i < peers; ++i) {
        while (sent[i] < kFlood / peers && r.send(1, data, i)) ++sent[i];
        all = all && sent[i] == kFlood / peers;
      }
      return all;
    }));
    r.deliver(2, last, peers - 1);
    Guarded into(8);
    r.receive(2, into, 7);
    EXPECT_TRUE(begins_with(into, last));
    Guarded each(64);
    for (uint64_t i = 0; i < kFlood / peers * peers; ++i) {
      r.receive(1, each, i);
    }
    ASSERT_TRUE(r.recv(1, each, 1));
    EXPECT_TRUE(r.cq().empty());
  }
}

TEST_P(Match, unexpected_payload_is_bounded_by_asking_for_offers) {
  Receiver r(scene(3));
  const auto data = pattern(16 * 1024, 1);
  uint64_t sent = 0;
  constexpr uint64_t kMessages = 3000;  // 48 MiB
  ASSERT_TRUE(r.until([&] {
    for (size_t i = 0; i < 3 && sent < kMessages; ++i) {
      if (r.send(sent, data, i)) ++sent;
    }
    return sent == kMessages;
  }));
  ASSERT_TRUE(r.until([&] {
    return !r.sender(0).qp->requester().has_queued() && !r.sender(1).qp->requester().has_queued() &&
           !r.sender(2).qp->requester().has_queued();
  }));
  r.poll(100);
  EXPECT_TRUE(r.matcher->under_pressure());
  EXPECT_EQ(r.pressure_told, 1);
  EXPECT_LE(r.matcher->unexpected_bytes(), MatchCore::kPressureBytes + 3 * 512 * 1024);
  for (uint64_t i = 0; i < kMessages; ++i) {
    Guarded into(16 * 1024);
    r.receive(i, into, i);
    ASSERT_TRUE(begins_with(into, data)) << i;
  }
  EXPECT_FALSE(r.matcher->under_pressure());
  EXPECT_EQ(r.pressure_told, 0);
  EXPECT_EQ(r.matcher->unexpected_bytes(), 0u);
  r.poll(100);
  r.deliver(1, data);  // payload travels unasked again
  EXPECT_EQ(r.matcher->unexpected_bytes(), sizeof(Unexpected) + data.size());
  EXPECT_FALSE(r.sender().qp->has_pending());
}

// Small messages travel as before when their senders are asked to offer the others.
TEST(EarlyMessages, take_no_more_memory_than_they_may) {
  Receiver r({.link = LinkKind::shm});
  const auto data = pattern(wire::kMaxInline, 1);
  const uint64_t each = sizeof(Unexpected) + data.size();
  const uint64_t room = UnexpectedMessages::kMostBytes / each;
  const uint64_t most = 2 * room;
  uint64_t sent = 0;
  const auto send_all = [&] {
    for (int idle = 0; idle < 10; ++idle) {
      for (; sent < most && r.send(sent, data); ++sent) idle = -1;
      r.poll();
    }
  };
  const auto is_full = [&] {
    const uint64_t taken = r.matcher->unexpected_bytes();
    return taken <= UnexpectedMessages::kMostBytes && taken > UnexpectedMessages::kMostBytes - each;
  };
  send_all();
  EXPECT_TRUE(is_full());
  EXPECT_TRUE(r.matcher->under_pressure());
  EXPECT_GE(sent, room);
  EXPECT_LT(sent, room + 1024) << "the others wait in the rings";
  // what is wanted makes room for what waits
  Guarded into(data.size());
  for (uint64_t i = 0; i < 2000; ++i) {
    r.receive(i, into, i);
    ASSERT_TRUE(begins_with(into, data)) << i;
  }
  send_all();
  EXPECT_TRUE(is_full());
  EXPECT_GE(sent, room + 2000);
  r.receive(2000, into, 2000);
  EXPECT_TRUE(begins_with(into, data));
}

TEST_P(Match, lost_peer_takes_its_offers_along_and_ends_receives_that_name_it) {
  Receiver r({.link = GetParam(), .peers = 2, .directed = true});
  const auto large = pattern(100000, 1);
  const auto small = pattern(5000, 2);
  r.deliver(1, large, 0);  // offered
  r.deliver(2, small, 0);  // its payload is here already
  r.deliver(3, large, 1);
  Guarded a(100000), b(100000), c(100000);
  ASSERT_TRUE(r.recv(9, a, 10, 0, 0));
  ASSERT_TRUE(r.recv(9, b, 11, 0, 1));
  ASSERT_TRUE(r.recv(9, c, 12));
  r.lose(0);
  r.expect_error(10, Errc::peer_lost);
  EXPECT_TRUE(r.cq().empty());
  ASSERT_TRUE(r.recv(1, a, 20));
  EXPECT_TRUE(r.cq().empty());  // the offer is gone
  r.receive(2, a, 21);
  EXPECT_TRUE(begins_with(a, small));
  r.receive(3, b, 22);
  EXPECT_TRUE(begins_with(b, large));
}

TEST_P(MatchOne, peer_lost_in_the_middle_of_a_large_message_ends_the_receive_once) {
  const auto large = pattern(4000000, 1);
  r.deliver(1, large);
  Guarded into(4000000);
  ASSERT_TRUE(r.recv(1, into, 5));
  r.qp_of(0).ending().lose(Errc::peer_lost);
  r.lose(0);
  r.expect_error(5, Errc::peer_lost);
  EXPECT_TRUE(r.cq().empty());
  EXPECT_EQ(r.received.errors(), 1u);
  EXPECT_TRUE(into.canaries_intact());
}

TEST_P(MatchOne, cancel_all_ends_what_is_posted) {
  Guarded into(8);
  for (uint64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(r.recv(i, into, i, 0, qp::kAnySource, i % 2 == 0));
  }
  r.matcher->cancel_all(Errc::canceled);
  ASSERT_EQ(r.cq().size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(r.cq().pop_error().err, Errc::canceled);
}

}  // namespace
}  // namespace aperture::msg::test
