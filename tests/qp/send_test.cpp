// Sends over each path: inline in cells, through the byte ring, offered; with every decoration, and
// with queues that are full.
#include "qp/line.hpp"
#include "qp/pair.hpp"

namespace aperture::qp::test {
namespace {

class Send : public OnePair<LinkKind> {
 protected:
  Send() : OnePair(GetParam()) {}
  // So many messages have come to side b, and each is there as a whole.
  bool arrived(size_t n) {
    return pair_.until([&] { return b().sink.messages.size() == n && b().sink.all_done(); });
  }
};

INSTANTIATE_TEST_SUITE_P(links, Send, kEachLink, link_name);

// hostile 37: what a peer sends takes no more of a poll for being long.
TEST_P(Send, hostile_37_a_poll_takes_fewer_long_messages_than_short_ones) {
  for (const size_t size : {size_t{300}, size_t{transport::kEagerBytes}}) {
    SCOPED_TRACE(size);
    Pair pair(GetParam());
    pair.attach();
    const auto data = pattern(size, 1);
    for (uint64_t i = 0; i < 12; ++i) ASSERT_TRUE(pair.a->send(iov_of(data), i));
    pair.b->poll();
    EXPECT_EQ(pair.b->sink.messages.size(), size == 300 ? 12u : transport::kPollBytes / size);
    ASSERT_TRUE(pair.until([&] { return pair.b->sink.messages.size() == 12; }));
  }
}

const size_t kSizes[] = {0,      1,      7,      8,       9,      47,    48,    49,
                         59,     60,     61,     108,     109,    255,   256,   257,
                         4096,   16383,  16384,  16385,   32768,  65536, 65537, 131072,
                         262144, 524288, 524289, 1000003, 4194304};

TEST_P(Send, every_size_arrives_once_and_unchanged) {
  pair_.attach();
  uint64_t n = 0;
  for (const size_t size : kSizes) {
    for (const bool has_imm : {false, true}) {
      const auto data = pattern(size, static_cast<unsigned>(n));
      const iovec iov = iov_of(data);
      SendWr wr = send_of(iov, n + 1);
      wr.tagged = n % 3 == 0;
      wr.tag = n * 77;
      wr.has_imm = has_imm;
      wr.imm = ~n;
      ASSERT_TRUE(a().qp->requester().send(wr)) << size;
      ++n;
      ASSERT_TRUE(pair_.until([&] {
        return a().tx_cq.size() == n && b().sink.messages.size() == n && b().sink.all_done();
      })) << size;
      const Received& r = b().sink.messages.back();
      EXPECT_EQ(r.err, Errc::ok);
      EXPECT_EQ(r.len, size);
      EXPECT_TRUE(r.payload == data) << size;
      EXPECT_EQ(r.tag, wr.tag);
      EXPECT_EQ(r.tagged, wr.tagged);
      EXPECT_EQ(r.has_imm, has_imm);
      EXPECT_EQ(r.imm, has_imm ? wr.imm : 0);
    }
  }
  for (uint64_t i = 1; i <= n; ++i) {
    EXPECT_EQ(take(a().tx_cq).context, reinterpret_cast<void*>(i));
  }
  EXPECT_EQ(a().sends.value(), n);
  EXPECT_EQ(a().port.tx.wqes.out(), 0u);
  EXPECT_EQ(a().port.tx.queued, 0u);
  EXPECT_FALSE(a().qp->has_pending());
  EXPECT_FALSE(a().qp->broken());
  EXPECT_FALSE(b().qp->broken());
}

TEST_P(Send, a_line_goes_at_once_and_anything_longer_is_left_to_send) {
  pair_.attach();
  size_t n = 0;
  for (size_t size = 0; size <= 56; ++size) {
    for (uint8_t flags = 0; flags < 4; ++flags) {
      const auto data = pattern(size, static_cast<unsigned>(size));
      const bool has_imm = (flags & wire::kImm) != 0;
      const bool sent = a().qp->line().send({.bytes = data.data(),
                                             .len = size,
                                             .tag = size * 77,
                                             .imm = ~size,
                                             .context = &n,
                                             .flags = 0,
                                             .wire_flags = flags,
                                             .completion = true});
      ASSERT_EQ(sent, size <= (has_imm ? 40u : 48u)) << size;
      if (!sent) continue;
      ++n;
      ASSERT_TRUE(pair_.until([&] { return b().sink.messages.size() == n; })) << size;
      const Received& r = b().sink.messages.back();
      EXPECT_TRUE(r.payload == data) << size;
      EXPECT_EQ(r.tag, size * 77);
      EXPECT_EQ(r.tagged, (flags & wire::kTagged) != 0);
      EXPECT_EQ(r.has_imm, has_imm);
      EXPECT_EQ(r.imm, has_imm ? ~size : 0);
    }
  }
  EXPECT_EQ(a().tx_cq.size(), n);
  EXPECT_EQ(a().sends.value(), n);
}

TEST_P(Send, a_line_waits_its_turn_behind_what_is_queued) {
  const uint64_t word = 1;
  const LineWr line{.bytes = &word,
                    .len = sizeof word,
                    .tag = 0,
                    .imm = 0,
                    .context = nullptr,
                    .flags = 0,
                    .wire_flags = 0,
                    .completion = false};
  EXPECT_FALSE(a().qp->line().send(line)) << "not connected yet";
  const auto data = pattern(8, 1);
  ASSERT_TRUE(a().send(iov_of(data), 1));  // queued
  b().qp->attach(std::move(pair_.lane_b));
  a().qp->attach(std::move(pair_.lane_a));
  EXPECT_FALSE(a().qp->line().send(line)) << "overtakes a queued message";
  ASSERT_TRUE(pair_.until([&] { return b().sink.messages.size() == 1; }));
  EXPECT_TRUE(a().qp->line().send(line));
  ASSERT_TRUE(pair_.until([&] { return b().sink.messages.size() == 2; }));
}

// Hears of ends, and of what.
struct Listener final : Told {
  void on_done(const Completion& entry) noexcept override { done.push_back(entry.len); }
  void on_failed(CompletionError&& error) noexcept override { failed.push_back(error.err); }
  std::vector<uint64_t> done;
  std::vector<Errc> failed;
};

TEST_P(Send, whoever_is_to_be_told_of_a_message_is_and_nothing_else_is) {
  pair_.attach();
  Listener listener;
  uint64_t n = 0;
  for (const size_t size : {0u, 40u, 9000u, 300000u}) {
    const auto data = pattern(size, 3);
    const iovec iov = iov_of(data);
    SendWr wr;
    wr.iov = &iov;
    wr.iov_count = 1;
    wr.len = size;
    wr.context = static_cast<Told*>(&listener);
    wr.completion = kTold;
    ASSERT_TRUE(a().qp->requester().send(wr));
    ++n;
    ASSERT_TRUE(pair_.until([&] { return listener.done.size() == n; })) << size;
    EXPECT_EQ(listener.done.back(), size);
  }
  EXPECT_TRUE(a().tx_cq.empty());
  EXPECT_EQ(a().sends.value(), 0u);
  const auto data = pattern(300000, 4);
  const iovec iov = iov_of(data);
  SendWr wr;
  wr.iov = &iov;
  wr.iov_count = 1;
  wr.len = data.size();
  wr.context = static_cast<Told*>(&listener);
  wr.completion = kTold;
  b().sink.accepting = false;
  ASSERT_TRUE(a().qp->requester().send(wr));
  a().qp->finish(Errc::canceled);
  ASSERT_EQ(listener.failed.size(), 1u);
  EXPECT_EQ(listener.failed[0], Errc::canceled);
  EXPECT_TRUE(a().tx_cq.empty());
  EXPECT_EQ(a().sends.errors(), 0u);
}

TEST_P(Send, several_pieces_are_sent_as_one_message) {
  pair_.attach();
  for (const size_t size : {40u, 200u, 9000u, 300000u}) {
    const auto data = pattern(size, 3);
    auto* base = const_cast<std::byte*>(data.data());
    const iovec iov[4] = {
        {base, 5}, {base + 5, 0}, {base + 5, size / 2}, {base + 5 + size / 2, size - 5 - size / 2}};
    SendWr wr = send_of(iov[0], 1);
    wr.iov = iov;
    wr.iov_count = 4;
    wr.len = size;
    b().sink.messages.clear();
    ASSERT_TRUE(a().qp->requester().send(wr));
    ASSERT_TRUE(arrived(1));
    EXPECT_TRUE(b().sink.messages[0].payload == data) << size;
  }
}

TEST_P(Send, messages_of_all_paths_stay_in_order) {
  pair_.attach();
  constexpr int kMessages = 3000;
  const auto data = pattern(100000, 1);
  int posted = 0;
  ASSERT_TRUE(pair_.until([&] {
    while (posted < kMessages) {
      const size_t size = kSizes[static_cast<size_t>(posted * 7) % 23] % 90000;
      const iovec iov{const_cast<std::byte*>(data.data()), size};
      SendWr wr = send_of(iov, 1);
      wr.tag = static_cast<uint64_t>(posted);
      wr.completion = posted % 2 == 0;
      if (!a().qp->requester().send(wr)) break;
      ++posted;
    }
    while (!a().tx_cq.empty()) a().tx_cq.pop();
    return posted == kMessages && b().sink.messages.size() == kMessages && b().sink.all_done() &&
           !a().qp->has_pending();
  }));
  for (size_t i = 0; i < kMessages; ++i) {
    const Received& r = b().sink.messages[i];
    ASSERT_EQ(r.tag, i);
    ASSERT_TRUE(same_bytes(r.payload.data(), data.data(), r.payload.size())) << i;
  }
}

TEST_P(Send, both_directions_at_once) {
  pair_.attach();
  const auto data = pattern(700000, 9);
  const iovec iov = iov_of(data);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(a().send(iov, 1));
    ASSERT_TRUE(b().send(iov, 1));
  }
  ASSERT_TRUE(pair_.until([&] {
    return a().sink.messages.size() == 4 && b().sink.messages.size() == 4 && a().sink.all_done() &&
           b().sink.all_done() && a().tx_cq.size() == 4 && b().tx_cq.size() == 4;
  }));
  for (Side* side : {&a(), &b()}) {
    for (const Received& r : side->sink.messages) EXPECT_TRUE(r.payload == data);
  }
}

TEST_P(Send, receiver_that_wants_less_gets_less) {
  pair_.attach();
  const auto data = pattern(400000, 5);
  for (const uint64_t want : {uint64_t{0}, uint64_t{1}, uint64_t{65536}, uint64_t{399999}}) {
    b().sink.at_most = want;
    b().sink.messages.clear();
    ASSERT_TRUE(a().send(iov_of(data), 1));
    ASSERT_TRUE(pair_.until([&] {
      return b().sink.messages.size() == 1 && b().sink.all_done() && a().tx_cq.size() == 1;
    })) << want;
    take(a().tx_cq);
    EXPECT_EQ(b().sink.messages[0].len, data.size());
    EXPECT_TRUE(same_bytes(b().sink.messages[0].payload.data(), data.data(), want));
  }
  EXPECT_EQ(a().port.tx.wqes.out(), 0u);
}

TEST_P(Send, injected_buffer_is_free_at_once) {
  pair_.attach();
  for (const bool delivery : {false, true}) {
    std::vector<std::byte> data = pattern(200, 8);
    const auto expected = data;
    const iovec iov = iov_of(data);
    SendWr wr = send_of(iov, 1);
    wr.inject = true;
    wr.delivery = delivery ? kDelivered : 0;
    b().sink.messages.clear();
    ASSERT_TRUE(a().qp->requester().send(wr));
    std::fill(data.begin(), data.end(), std::byte{0});
    ASSERT_TRUE(arrived(1));
    EXPECT_TRUE(b().sink.messages[0].payload == expected);
  }
}

TEST_P(Send, match_completes_only_when_the_message_is_taken) {
  pair_.attach();
  for (const size_t size : {0u, 8u, 5000u, 300000u}) {
    b().sink.hold_offers = true;
    b().sink.held.clear();
    b().sink.messages.clear();
    const auto data = pattern(size, 2);
    const iovec iov = iov_of(data);
    SendWr wr = send_of(iov, 1);
    wr.delivery = kMatched;
    ASSERT_TRUE(a().qp->requester().send(wr));
    ASSERT_TRUE(pair_.until([&] { return b().sink.held.size() == 1; }));
    pair_.settle();
    EXPECT_TRUE(a().tx_cq.empty());
    EXPECT_TRUE(a().qp->has_pending());
    b().sink.begin(*b().qp, b().sink.held[0]);
    ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; })) << size;
    EXPECT_TRUE(b().sink.messages[0].done);
    EXPECT_TRUE(b().sink.messages[0].payload == data);
    a().tx_cq.pop();
  }
}

TEST_P(Send, delivery_completes_when_the_other_side_has_dealt_with_the_message) {
  pair_.attach();
  for (const bool has_imm : {false, true}) {
    for (const size_t size : {0u, 8u, 40u, 256u, 257u, 5000u, 16384u}) {
      b().sink.messages.clear();
      b().sink.accepting = false;
      const auto data = pattern(size, 2);
      const iovec iov = iov_of(data);
      SendWr wr = send_of(iov, 1);
      wr.delivery = kDelivered;
      wr.tagged = true;
      wr.tag = size;
      wr.has_imm = has_imm;
      wr.imm = 3 * size;
      ASSERT_TRUE(a().qp->requester().send(wr));
      pair_.settle();
      EXPECT_TRUE(a().tx_cq.empty()) << "nobody has taken it";
      EXPECT_TRUE(a().qp->has_pending());
      b().sink.accepting = true;
      ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; })) << size;
      ASSERT_EQ(b().sink.messages.size(), 1u);
      const Received& r = b().sink.messages[0];
      EXPECT_NE(r.where, Arrival::Where::offered);
      EXPECT_TRUE(r.payload == data);
      EXPECT_EQ(r.tag, size);
      EXPECT_EQ(r.imm, has_imm ? 3 * size : 0);
      EXPECT_EQ(take(a().tx_cq).len, size);
      EXPECT_FALSE(a().qp->has_pending());
      pair_.settle();
      EXPECT_EQ(a().qp->look(), Qp::Look::nothing) << "goes on polling for nothing";
    }
  }
  EXPECT_EQ(a().sends.value(), 14u);
  EXPECT_EQ(a().port.tx.wqes.out(), 0u);
}

TEST_P(Send, a_fence_waits_for_deliveries) {
  pair_.attach();
  b().sink.accepting = false;
  const auto data = pattern(100, 2);
  const iovec iov = iov_of(data);
  SendWr first = send_of(iov, 1);
  first.delivery = kDelivered;
  SendWr fenced = send_of(iov, 2);
  fenced.fence = true;
  ASSERT_TRUE(a().qp->requester().send(first));
  ASSERT_TRUE(a().qp->requester().send(fenced));
  ASSERT_TRUE(a().send(iov, 3));
  pair_.settle();
  EXPECT_TRUE(a().tx_cq.empty());
  EXPECT_TRUE(a().qp->requester().has_queued());
  b().sink.accepting = true;
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 3; }));
  EXPECT_EQ(take_contexts(a().tx_cq), (std::vector<uint64_t>{1, 2, 3}));
}

TEST_P(Send, dropped_offer_completes_its_sender) {
  pair_.attach();
  b().sink.hold_offers = true;
  const auto data = pattern(300000, 2);
  ASSERT_TRUE(a().send(iov_of(data), 1));
  ASSERT_TRUE(pair_.until([&] { return b().sink.held.size() == 1; }));
  b().qp->drop_offer(b().sink.held[0].offer_id);
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; }));
  EXPECT_FALSE(a().tx_cq.error_first());
  EXPECT_EQ(a().port.tx.wqes.out(), 0u);
}

TEST_P(Send, offers_taken_in_another_order_do_not_mix) {
  pair_.attach();
  b().sink.hold_offers = true;
  std::vector<std::vector<std::byte>> data;
  constexpr size_t kOffers = 40;  // more than there are claim words
  for (size_t i = 0; i < kOffers; ++i) data.push_back(pattern(100000 + i, unsigned(i)));
  for (size_t i = 0; i < kOffers; ++i) {
    const iovec iov{data[i].data(), data[i].size()};
    SendWr wr = send_of(iov, i);
    wr.tag = i;
    ASSERT_TRUE(a().qp->requester().send(wr));
  }
  ASSERT_TRUE(pair_.until([&] { return b().sink.held.size() == kOffers; }));
  for (size_t i = kOffers; i-- > 0;) b().sink.begin(*b().qp, b().sink.held[i]);
  ASSERT_TRUE(pair_.until([&] { return b().sink.all_done() && a().tx_cq.size() == kOffers; }));
  for (const Received& r : b().sink.messages) EXPECT_TRUE(r.payload == data[r.tag]) << r.tag;
  EXPECT_EQ(a().port.tx.wqes.out(), 0u);
}

TEST_P(Send, under_pressure_payload_waits_with_its_sender) {
  pair_.attach();
  const auto data = pattern(5000, 2);
  for (const bool on : {true, false}) {
    b().qp->set_pressure(on);
    pair_.settle();
    b().sink.messages.clear();
    ASSERT_TRUE(a().send(iov_of(data), 1));
    ASSERT_TRUE(arrived(1));
    EXPECT_EQ(b().sink.messages[0].where, on ? Arrival::Where::offered : Arrival::Where::flat);
    EXPECT_TRUE(b().sink.messages[0].payload == data);
  }
}

TEST_P(Send, payload_does_not_go_unasked_while_an_answer_is_unread) {
  pair_.attach();
  const auto data = pattern(5000, 2);
  const iovec iov = iov_of(data);
  const uint64_t ring_bytes = a().qp->lane()->request_tx.bytes.size();
  constexpr size_t kOnTheirWay = 20;
  for (size_t i = 0; i < kOnTheirWay; ++i) ASSERT_TRUE(a().send(iov, 1));
  b().qp->set_pressure(true);
  pair_.move();
  uint64_t sent = kOnTheirWay * data.size();
  while (sent < 3 * ring_bytes && a().send(iov, 1)) {
    sent += data.size();
    b().poll();
  }
  EXPECT_EQ(sent, kOnTheirWay * data.size());  // side a has not polled
  ASSERT_TRUE(pair_.until([&] { return a().send(iov, 1).ok(); }));
  const size_t count = kOnTheirWay + 1;
  ASSERT_TRUE(arrived(count));
  EXPECT_FALSE(b().qp->broken());
  EXPECT_EQ(b().sink.messages.back().where, Arrival::Where::offered);
  for (const Received& r : b().sink.messages) EXPECT_TRUE(r.payload == data);
}

TEST_P(Send, full_ring_is_again_and_never_loss) {
  pair_.attach();
  b().sink.accepting = false;
  const auto data = pattern(30, 2);
  const iovec iov = iov_of(data);
  SendWr wr = send_of(iov, 1);
  wr.completion = false;
  size_t sent = 0;
  while (a().qp->requester().send(wr)) ++sent;
  EXPECT_EQ(a().qp->requester().send(wr).error(), Errc::again);
  EXPECT_GT(sent, 100u);
  pair_.settle();
  EXPECT_EQ(a().qp->requester().send(wr).error(), Errc::again);
  b().sink.accepting = true;
  ASSERT_TRUE(pair_.until([&] { return b().sink.messages.size() == sent; }));
  EXPECT_TRUE(a().qp->requester().send(wr));
}

TEST_P(Send, full_cq_is_again_before_anything_is_sent) {
  Pair pair(GetParam(), {.cq_entries = 4});
  pair.attach();
  for (const size_t size : {8u, 5000u, 100000u}) {
    const auto data = pattern(size, 2);
    const iovec iov = iov_of(data);
    const SendWr wr = send_of(iov, 1);
    pair.b->sink.messages.clear();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(pair.a->qp->requester().send(wr));
    EXPECT_EQ(pair.a->qp->requester().send(wr).error(), Errc::again);
    ASSERT_TRUE(pair.until([&] { return pair.a->tx_cq.size() == 4; }));
    EXPECT_EQ(pair.a->qp->requester().send(wr).error(), Errc::again);
    while (!pair.a->tx_cq.empty()) pair.a->tx_cq.pop();
    pair.settle();
    EXPECT_EQ(pair.b->sink.messages.size(), 4u);
  }
}

TEST_P(Send, while_connecting_sends_are_queued_up_to_the_bound) {
  Pair pair(GetParam(), {.tx_size = 10});
  const auto data = pattern(30, 2);
  const iovec iov = iov_of(data);
  for (uint64_t i = 0; i < 10; ++i) {
    SendWr wr = send_of(iov, i);
    wr.tag = i;
    ASSERT_TRUE(pair.a->qp->requester().send(wr));
  }
  EXPECT_EQ(pair.a->send(iov, 99).error(), Errc::again);
  EXPECT_TRUE(pair.a->qp->requester().has_queued());
  pair.attach();
  ASSERT_TRUE(pair.until([&] { return pair.b->sink.messages.size() == 10; }));
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(pair.b->sink.messages[i].tag, i);
  EXPECT_EQ(pair.a->tx_cq.size(), 10u);
  EXPECT_EQ(pair.a->port.tx.queued, 0u);
}

TEST_P(Send, queued_send_can_be_cancelled_once) {
  const auto data = pattern(30, 2);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(a().send(iov_of(data), i));
  ASSERT_TRUE(a().qp->requester().cancel(reinterpret_cast<void*>(1)));
  EXPECT_EQ(a().qp->requester().cancel(reinterpret_cast<void*>(1)).error(), Errc::no_entry);
  EXPECT_EQ(a().qp->requester().cancel(reinterpret_cast<void*>(77)).error(), Errc::no_entry);
  ASSERT_TRUE(a().tx_cq.error_first());
  const CompletionError e = a().tx_cq.pop_error();
  EXPECT_EQ(e.err, Errc::canceled);
  EXPECT_EQ(e.entry.context, reinterpret_cast<void*>(1));
  pair_.attach();
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 2; }));
  EXPECT_TRUE(pair_.until([&] { return b().sink.messages.size() == 2; }));
}

TEST_P(Send, send_in_a_recycled_wqe_can_be_cancelled) {
  // a WQE remembers nothing of its last life
  pair_.attach();
  Guarded target(100000);
  const auto region = pair_.region(b(), target, protect::Rights::remote_write);
  const auto data = pattern(100000, 2);
  const iovec iov = iov_of(data);
  ASSERT_TRUE(a().write(iov, {target.address(), target.size(), region.key}, 1));
  ASSERT_TRUE(pair_.until([&] { return a().tx_cq.size() == 1; }));
  a().tx_cq.pop();
  b().sink.accepting = false;
  const iovec small{const_cast<std::byte*>(data.data()), 8};
  SendWr fill = send_of(small, 2);
  fill.completion = false;
  while (a().qp->requester().send(fill)) {
  }
  ASSERT_TRUE(a().send(iov, 3));  // large: queued behind a full ring
  EXPECT_TRUE(a().qp->requester().has_queued());
  EXPECT_TRUE(a().qp->requester().cancel(reinterpret_cast<void*>(3)));
}

TEST_P(Send, too_many_wqes_are_again) {
  Pair pair(GetParam(), {.cq_entries = 2, .tx_size = 1u << 21});
  const iovec iov{nullptr, 0};
  SendWr wr = send_of(iov, 1);
  wr.completion = false;
  wr.iov_count = 0;
  std::vector<Wqe*> taken;
  while (Wqe* wqe = pair.a->port.tx.wqes.take()) {
    taken.push_back(wqe);
    if (taken.size() > 20000) break;  // the rest by hand would need gigabytes
  }
  for (Wqe* wqe : taken) pair.a->port.tx.wqes.give(wqe);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(pair.a->qp->requester().send(wr)) << i;
  pair.attach();
  ASSERT_TRUE(pair.until([&] { return pair.b->sink.messages.size() == 5000; }));
  EXPECT_EQ(pair.a->port.tx.wqes.out(), 0u);
}

}  // namespace
}  // namespace aperture::qp::test
