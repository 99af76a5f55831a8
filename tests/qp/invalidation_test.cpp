// Sends with invalidation between two queue pairs, and what a peer without manners may make of the
// requests that they are made of. (hostile-inputs 20, 23, 24, 25, 29.)
#include "qp/pair.hpp"

namespace aperture::qp::test {
namespace {

using protect::Denial;
using protect::Rights;
using wire::Head;
using wire::Op;

constexpr auto kAll = Rights::remote_read | Rights::remote_write | Rights::remote_atomic;

class Invalidation : public OnePair<LinkKind> {
 protected:
  Invalidation() : OnePair(GetParam()), memory_(65536) {
    b().port.endpoint = kEndpoint;
    pair_.attach();
  }
  ~Invalidation() override { EXPECT_TRUE(memory_.canaries_intact()); }

  protect::RegionHandle window(protect::EndpointId bound_to) {
    protect::RegionSpec spec = Pair::spec_of(b(), memory_, kAll);
    spec.bound_to = bound_to;
    return *pair_.keys->add(spec);
  }
  SendWr send_inv(const std::vector<std::byte>& data, uint64_t key) {
    iov_ = iov_of(data);
    SendWr wr = send_of(iov_, 7);
    wr.imm = key;
    wr.has_imm = true;
    wr.delivery = kDelivered | kInvalidating;
    return wr;
  }
  Errc ended() {
    EXPECT_TRUE(pair_.until([&] { return !a().tx_cq.empty(); }));
    if (a().tx_cq.empty()) return Errc::timed_out;
    if (a().tx_cq.error_first()) {
      error_ = a().tx_cq.pop_error();
      return error_.err;
    }
    a().tx_cq.pop();
    return Errc::ok;
  }
  Errc write(uint64_t key) {
    uint64_t word = 5;
    EXPECT_TRUE(a().write({&word, sizeof word}, {memory_.address(), sizeof word, key}, 1));
    return ended();
  }

  static constexpr protect::EndpointId kEndpoint = 0x7001;
  Guarded memory_;
  iovec iov_{};
  CompletionError error_;
};
INSTANTIATE_TEST_SUITE_P(lanes, Invalidation, kEachLink, link_name);

TEST_P(Invalidation, is_done_when_the_message_is_there) {
  for (const size_t size : {0, 8, 40, 41, 256, 257, 5000, 300000}) {
    const auto region = window(kEndpoint);
    const auto data = pattern(size, 1);
    ASSERT_TRUE(a().qp->requester().send(send_inv(data, region.key)));
    EXPECT_EQ(ended(), Errc::ok) << size;
    ASSERT_EQ(b().sink.messages.size(), 1u);
    const Received& r = b().sink.messages.front();
    EXPECT_EQ(r.payload, data);
    EXPECT_EQ(r.beside, Beside::invalidated_key);
    EXPECT_EQ(r.imm, region.key);
    EXPECT_TRUE(pair_.keys->entries().is_over(region));
    EXPECT_EQ(write(region.key), Errc::access_denied);
    b().sink.messages.clear();
  }
}

TEST_P(Invalidation, that_is_refused_takes_the_message_with_it) {
  const auto other = window(kEndpoint + 1);
  const auto of_all = window(0);
  for (const size_t size : {0, 8, 257, 5000, 300000}) {
    const std::pair<uint64_t, Denial> cases[] = {{other.key, Denial::wrong_endpoint},
                                                 {of_all.key, Denial::no_window},
                                                 {other.key + 1, Denial::unknown_key}};
    for (const auto& [key, denial] : cases) {
      const auto data = pattern(size, 2);
      ASSERT_TRUE(a().qp->requester().send(send_inv(data, key)));
      EXPECT_EQ(ended(), Errc::access_denied);
      EXPECT_EQ(error_.vendor, static_cast<uint32_t>(denial));
      EXPECT_NE(error_.sentence.find("not delivered"), std::string::npos) << error_.sentence;
      pair_.settle();
      EXPECT_TRUE(a().tx_cq.empty()) << "exactly one completion";
      EXPECT_TRUE(b().sink.messages.empty());
    }
  }
  EXPECT_FALSE(pair_.keys->entries().is_over(other));
  EXPECT_EQ(write(of_all.key), Errc::ok);
  const auto data = pattern(8, 3);
  ASSERT_TRUE(a().send(iov_of(data), 1));
  EXPECT_EQ(ended(), Errc::ok);
  ASSERT_TRUE(pair_.until([&] { return b().sink.messages.size() == 1; }));
  EXPECT_EQ(b().sink.messages.front().beside, Beside::nothing);
}

TEST_P(Invalidation, is_up_to_one_queue_pair_where_a_window_is_bound_to_one) {
  const auto mine = window(b().qp->number());
  EXPECT_EQ(b().qp->number(), b().qp->number()) << "drawn once";
  const auto of_other = window(protect::new_endpoint_id());
  EXPECT_EQ(write(mine.key), Errc::ok);
  EXPECT_EQ(write(of_other.key), Errc::access_denied);
  const auto data = pattern(8, 4);
  ASSERT_TRUE(a().qp->requester().send(send_inv(data, of_other.key)));
  EXPECT_EQ(ended(), Errc::access_denied);
  ASSERT_TRUE(a().qp->requester().send(send_inv(data, mine.key)));
  EXPECT_EQ(ended(), Errc::ok);
  EXPECT_EQ(write(mine.key), Errc::access_denied);
}

TEST_P(Invalidation, waits_with_its_message_for_room) {
  const auto region = window(kEndpoint);
  const auto data = pattern(8, 5);
  b().sink.accepting = false;
  ASSERT_TRUE(a().qp->requester().send(send_inv(data, region.key)));
  for (int i = 0; i < 100; ++i) pair_.settle();
  EXPECT_TRUE(a().tx_cq.empty()) << "it is not delivered yet";
  EXPECT_TRUE(pair_.keys->entries().is_over(region));
  b().sink.accepting = true;
  EXPECT_EQ(ended(), Errc::ok);
  EXPECT_EQ(b().sink.messages.size(), 1u);
}

// Fills the ring: some go at once, some wait in the send queue, and each ends as its key deserves.
TEST_P(Invalidation, keeps_its_order_and_its_result_in_a_full_ring) {
  constexpr size_t kMany = 600;
  const auto data = pattern(200, 6);
  std::vector<protect::RegionHandle> windows;
  size_t done = 0, refused = 0, posted = 0;
  const auto reap = [&] {
    while (!a().tx_cq.empty()) {
      const Errc err = take_end(a().tx_cq);
      EXPECT_TRUE(err == Errc::ok || err == Errc::access_denied) << describe(err);
      ++(err == Errc::ok ? done : refused);
    }
  };
  while (posted < kMany) {
    if (windows.size() == posted) windows.push_back(window(kEndpoint));
    const bool good = posted % 3 != 0;
    const Status s = a().qp->requester().send(send_inv(data, good ? windows[posted].key : 99));
    if (s) {
      ++posted;
      continue;
    }
    ASSERT_EQ(s.error(), Errc::again);
    a().poll();
    b().poll();
    reap();
  }
  ASSERT_TRUE(pair_.until([&] {
    reap();
    return done + refused == kMany;
  }));
  EXPECT_EQ(refused, (kMany + 2) / 3);
  ASSERT_EQ(b().sink.messages.size(), done);
  size_t at = 0;
  for (size_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(pair_.keys->entries().is_over(windows[i]), i % 3 != 0);
    if (i % 3 != 0) {
      EXPECT_EQ(b().sink.messages[at++].imm, windows[i].key);
    }
  }
}

// ---- the requests themselves, by hand -----------------------------------------------------------

class InvalidationByHand : public Invalidation {
 protected:
  InvalidationByHand() = default;
  void put(Op op, uint8_t flags, uint16_t len, uint64_t word, uint64_t imm = 0) {
    ring::ChannelTx& tx = a().qp->lane()->request_tx;
    const Head head = Head::make(op, flags, len, word);
    std::memset(tx.cells.body(), 0, ring::kBodyBytes);
    wire::store(tx.cells.body(), head);
    if (op != Op::invalidate) {
      std::memcpy(tx.cells.body() + wire::kHeadBytes + wire::field_bytes(op), &imm, sizeof imm);
    }
    tx.cells.publish(wire::cells_of(op, flags, len));
  }
  bool broken() {
    for (int i = 0; i < 20; ++i) b().poll();
    return b().qp->broken();
  }
  static constexpr uint8_t kFlags = wire::kImm | wire::kInvalidates;
};
INSTANTIATE_TEST_SUITE_P(lanes, InvalidationByHand,
                         testing::Values(LinkKind::loopback, LinkKind::shm),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(InvalidationByHand, a_message_of_an_invalidation_that_never_was_ends_the_connection) {
  put(Op::send, kFlags, 8, 0, 5);
  EXPECT_TRUE(broken());
  EXPECT_TRUE(b().sink.messages.empty());
}

TEST_P(InvalidationByHand, a_message_that_names_another_key_ends_the_connection) {
  const auto region = window(kEndpoint);
  put(Op::invalidate, 0, 0, region.key);
  put(Op::send, kFlags, 8, 0, region.key + 1);
  EXPECT_TRUE(broken());
  EXPECT_TRUE(pair_.keys->entries().is_over(region));
  EXPECT_TRUE(b().sink.messages.empty());
}

TEST_P(InvalidationByHand, an_offer_after_a_refusal_ends_the_connection) {
  put(Op::invalidate, 0, 0, 5);
  put(Op::send_offer, kFlags, 0, 0, 5);
  EXPECT_TRUE(broken());
  EXPECT_TRUE(b().sink.messages.empty());
}

TEST_P(InvalidationByHand, payload_outside_its_ring_after_a_refusal_ends_the_connection) {
  put(Op::invalidate, 0, 0, 5);
  ring::ChannelTx& tx = a().qp->lane()->request_tx;
  const Head head = Head::make(Op::send_bytes, kFlags, 0, 0);
  wire::store(tx.cells.body(), head);
  wire::store_fields(tx.cells.body(), wire::SendBytesFields{uint64_t{1} << 40, 1u << 20});
  const uint64_t key = 5;
  std::memcpy(tx.cells.body() + wire::kHeadBytes + sizeof(wire::SendBytesFields), &key, 8);
  tx.cells.publish(wire::cells_of(Op::send_bytes, kFlags, 0));
  EXPECT_TRUE(broken());
}

// The fact that it tells is one: harmless, and the connection goes on.
TEST_P(InvalidationByHand, a_second_message_may_tell_it_again) {
  const auto region = window(kEndpoint);
  put(Op::invalidate, 0xff, 0xffff, region.key);
  put(Op::send, kFlags, 8, 0, region.key);
  put(Op::send, kFlags, 8, 0, region.key);
  EXPECT_FALSE(broken());
  EXPECT_EQ(b().sink.messages.size(), 2u);
  put(Op::invalidate, 0, 0, region.key);  // closed by now: refused
  put(Op::send, kFlags, 8, 0, region.key);
  EXPECT_FALSE(broken());
  EXPECT_EQ(b().sink.messages.size(), 2u);
}

}  // namespace
}  // namespace aperture::qp::test
