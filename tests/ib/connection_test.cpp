// Connected queue pairs and what is around them: shared receive queues, unreliable connections,
// lanes that are lost and come back. (IBTA vol. 1, 9.8, 10.2.9; ibv_create_srq(3).)
#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

// --- shared receive queues ---

Sge nowhere{0, 0, 0};

TEST(Srq, limit_is_told_once_until_it_is_set_again) {
  Events events;
  ReceiveQueue srq(8, 2, &events);
  TakenRecv taken;
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(srq.post({i, &nowhere, 1}));
  ASSERT_TRUE(srq.set_limit(4));
  srq.take(taken);
  EXPECT_EQ(events.limits, 0) << "four are left";
  srq.take(taken);
  EXPECT_EQ(events.limits, 1);
  EXPECT_EQ(srq.limit(), 0u);
  srq.take(taken);
  EXPECT_EQ(events.limits, 1);
  ASSERT_TRUE(srq.set_limit(3));
  EXPECT_EQ(events.limits, 2) << "there are fewer already";
  EXPECT_EQ(srq.set_limit(9).error(), Errc::invalid);
}

TEST(Srq, slots_are_free_when_a_message_takes_them) {
  Events events;
  ReceiveQueue srq(2, 1, &events);
  TakenRecv taken;
  ASSERT_TRUE(srq.post({1, &nowhere, 1}));
  ASSERT_TRUE(srq.post({2, &nowhere, 1}));
  EXPECT_EQ(srq.post({3, &nowhere, 1}).error(), Errc::no_space);
  srq.take(taken);
  EXPECT_EQ(taken.id, 1u);
  EXPECT_TRUE(srq.post({3, &nowhere, 1}));
  const Sge two[2] = {};
  EXPECT_EQ(srq.post({4, two, 2}).error(), Errc::invalid);
}

TEST(Srq, resizing_keeps_what_is_posted) {
  Events events;
  ReceiveQueue srq(4, 2, &events);
  TakenRecv taken;
  for (uint64_t i = 0; i < 3; ++i) {  // so that the ring has turned
    ASSERT_TRUE(srq.post({99, &nowhere, 1}));
    srq.take(taken);
  }
  for (uint64_t i = 0; i < 4; ++i) {
    const Sge s[2] = {{i, 1, 1}, {i + 100, 2, 2}};
    ASSERT_TRUE(srq.post({i, s, 2}));
  }
  EXPECT_EQ(srq.resize(3).error(), Errc::invalid);
  ASSERT_TRUE(srq.resize(100));
  for (uint64_t i = 4; i < 100; ++i) ASSERT_TRUE(srq.post({i, &nowhere, 1}));
  EXPECT_EQ(srq.post({100, &nowhere, 1}).error(), Errc::no_space);
  for (uint64_t i = 0; i < 100; ++i) {
    srq.take(taken);
    EXPECT_EQ(taken.id, i);
    if (i < 4) {
      EXPECT_EQ(taken.room, 3u);
      EXPECT_EQ(taken.sge[1].addr, i + 100);
    }
  }
}

using Connections = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, Connections, kEachLink, link_name);
using ConnectionsWithClaims = OverEachLink;  // no claim travels
INSTANTIATE_TEST_SUITE_P(Links, ConnectionsWithClaims, link::test::kEachShared, link_name);

struct SharingPair : Pair {
  SharingPair(LinkKind kind, ReceiveQueue& srq) : Pair(kind, {}, {.srq = &srq}) { connect(); }
};

TEST_P(Connections, queue_pairs_that_wait_for_a_shared_receive_are_served_in_order) {
  Events events;
  ReceiveQueue srq(16, 4, &events);
  SharingPair first(GetParam(), srq), second(GetParam(), srq);
  EXPECT_EQ(first.b->post_recv(1, 0, 8).error(), Errc::invalid) << "it has no queue of its own";
  for (Pair* p : {&first, &second}) {
    for (uint64_t i = 0; i < 2; ++i) ASSERT_TRUE(p->a->post(SendOp::send, i, 0, 8));
  }
  second.b->poll();  // the first to wait
  first.b->poll();
  // one memory for both would take one domain; each receive names that of who is to take it
  const Sge of_second = second.b->sge(0, 8), of_first = first.b->sge(0, 8);
  ASSERT_TRUE(srq.post({10, &of_second, 1}));
  EXPECT_EQ(second.b->recv_cq.size(), 1u) << "without a poll";
  ASSERT_TRUE(srq.post({11, &of_first, 1}));
  EXPECT_EQ(first.b->recv_cq.size(), 1u) << "each in turn";
  ASSERT_TRUE(srq.post({12, &of_second, 1}));
  ASSERT_TRUE(srq.post({13, &of_first, 1}));
  EXPECT_EQ(second.b->recv_cq.size() + first.b->recv_cq.size(), 4u);
  EXPECT_EQ(ended(second.b->recv_cq), (Ended{{10, success}, {12, success}}));
  EXPECT_EQ(ended(first.b->recv_cq), (Ended{{11, success}, {13, success}}));
}

TEST_P(Connections, a_queue_pair_that_goes_leaves_the_receives_to_the_others) {
  Events events;
  ReceiveQueue srq(16, 4, &events);
  SharingPair first(GetParam(), srq), second(GetParam(), srq);
  ASSERT_TRUE(first.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(second.a->post(SendOp::send, 2, 0, 8));
  first.b->poll();
  second.b->poll();
  first.b->go_to(QpState::err);
  EXPECT_EQ(first.b->events.async, std::vector{AsyncEvent::qp_last_wqe_reached});
  EXPECT_TRUE(first.b->recv_cq.empty()) << "what is shared is not flushed";
  const Sge s = second.b->sge(0, 8);
  ASSERT_TRUE(srq.post({10, &s, 1}));
  EXPECT_EQ(second.b->recv_cq.size(), 1u);
}

// --- XRC ---

struct XrcPair : Pair {
  static constexpr uint32_t kNumber = 77;

  explicit XrcPair(LinkKind kind)
      : Pair(kind, half(QpType::xrc_send), half(QpType::xrc_recv)), srq(16, 4, &b->events) {
    srq.serve_xrc(b->recv_cq, b->domain);
    EXPECT_TRUE(b->windows.enter_srq(kNumber, kXrcDomain, srq));
    connect();
  }
  ~XrcPair() { b->qp->leave(); }
  static Options half(QpType type) { return {.type = type}; }
  Status send(uint64_t id, uint32_t number, size_t n) {
    SendWr wr = Side::work(SendOp::send, id);
    wr.srq_number = number;
    return a->post(wr, {a->sge(0, n)});
  }
  Status post(uint64_t id, size_t n) {
    const Sge s = b->sge(0, n);
    return srq.post({id, &s, 1});
  }

  ReceiveQueue srq;
};

TEST_P(Connections, xrc_messages_take_receives_of_the_queue_that_they_name) {
  for (const size_t n : {size_t{8}, size_t{250}, size_t{100'000}}) {
    XrcPair p(GetParam());
    p.a->fill(0, pattern(n, 1));
    ASSERT_TRUE(p.send(1, XrcPair::kNumber, n));
    p.settle();  // it waits
    EXPECT_TRUE(p.a->send_cq.empty());
    ASSERT_TRUE(p.post(5, n));
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1 && p.b->recv_cq.size() == 1; }));
    EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success);
    const Wc wc = Side::take(p.b->recv_cq);
    EXPECT_EQ(wc.id, 5u);
    EXPECT_EQ(wc.byte_len, n);
    EXPECT_EQ(p.b->bytes(0, n), pattern(n, 1));
    EXPECT_EQ(p.a->post_recv(1, 0, 8).error(), Errc::invalid);
    EXPECT_EQ(p.b->post_recv(1, 0, 8).error(), Errc::invalid);
    EXPECT_EQ(p.b->post(SendOp::send, 1, 0, 8).error(), Errc::invalid);
  }
}

TEST_P(Connections, an_xrc_message_to_a_queue_that_is_not_there_is_refused) {
  XrcPair p(GetParam());
  ASSERT_TRUE(p.post(5, 8));
  ASSERT_TRUE(p.send(1, XrcPair::kNumber + 1, 8));
  EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{rem_inv_req_err});
  EXPECT_EQ(p.srq.size(), 1u);
}

TEST_P(Connections, an_xrc_queue_pair_that_waits_and_goes_is_not_served_any_more) {
  XrcPair p(GetParam());
  ASSERT_TRUE(p.send(1, XrcPair::kNumber, 8));
  p.settle();
  const QpSpec spec = p.b->qp->spec();
  p.b->qp->leave();
  p.b->qp.reset();
  ASSERT_TRUE(p.post(5, 8));
  EXPECT_EQ(p.srq.size(), 1u);
  p.b->qp = std::make_unique<RcQp>(spec, *p.b);  // for its end
}

TEST_P(Connections, completions_of_an_xrc_queue_pair_that_is_gone_stay_with_their_receive_queue) {
  XrcPair p(GetParam());
  ASSERT_TRUE(p.post(5, 8));
  ASSERT_TRUE(p.send(1, XrcPair::kNumber, 8));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }));
  const QpSpec spec = p.b->qp->spec();
  p.b->qp->leave();
  p.b->qp.reset();
  ASSERT_EQ(p.b->recv_cq.size(), 1u);
  EXPECT_EQ(Side::take(p.b->recv_cq).id, 5u);
  p.b->qp = std::make_unique<RcQp>(spec, *p.b);  // for its end
}

TEST_P(Connections, an_xrc_message_is_over_when_its_receive_queue_goes) {
  XrcPair p(GetParam());
  ASSERT_TRUE(p.post(5, 1 << 20));
  ASSERT_TRUE(p.send(1, XrcPair::kNumber, 1 << 20));
  p.b->poll();  // the first pieces of it
  p.b->windows.remove_srq(XrcPair::kNumber);
  p.b->qp->lose();
  EXPECT_TRUE(p.b->recv_cq.empty()) << "nowhere to complete";
  EXPECT_EQ(p.b->qp->state(), QpState::err);
}

// AddressSanitizer watches: it may not look at where its last message completed.
TEST_P(Connections, an_xrc_queue_pair_outlives_the_queues_that_its_messages_completed_in) {
  constexpr uint32_t kOther = XrcPair::kNumber + 1;
  XrcPair p(GetParam());
  auto cq = std::make_unique<CompletionQueue>(4, p.b->events, false);
  auto srq = std::make_unique<ReceiveQueue>(4, 1, &p.b->events);
  srq->serve_xrc(*cq, p.b->domain);
  ASSERT_TRUE(p.b->windows.enter_srq(kOther, kXrcDomain, *srq));
  const Sge s = p.b->sge(0, 8);
  ASSERT_TRUE(srq->post({5, &s, 1}));
  ASSERT_TRUE(p.send(1, kOther, 8));
  ASSERT_TRUE(p.until([&] { return cq->size() == 1; }));
  p.b->windows.remove_srq(kOther);
  srq.reset();
  cq.reset();
  ASSERT_TRUE(p.post(6, 8));
  ASSERT_TRUE(p.send(2, XrcPair::kNumber, 8));
  p.move();
  p.b->go_to(QpState::err);  // what has arrived is executed first
  EXPECT_EQ(ends_of(p.b->recv_cq), Ends{success});
}

// --- unreliable connections ---

Options unreliable() {
  return {.type = QpType::uc};
}

TEST_P(Connections, messages_of_an_unreliable_connection_without_a_receive_are_lost) {
  for (const size_t n : {size_t{8}, size_t{100'000}}) {
    ConnectedPair p(GetParam(), unreliable());
    p.a->fill(0, pattern(n, 1));
    p.a->fill(200'000, pattern(n, 2));
    ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, n));
    ASSERT_TRUE(p.a->post(SendOp::write_with_imm, 2, 0, n, p.b->address(500'000), p.b->key()));
    p.settle();
    ASSERT_TRUE(p.b->recv_cq.empty());
    ASSERT_TRUE(p.b->post_recv(5, 0, n));
    ASSERT_TRUE(p.a->post(SendOp::send, 3, 200'000, n));
    ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1 && p.a->send_cq.size() == 3; }));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success);
    EXPECT_EQ(p.b->bytes(0, n), pattern(n, 2));
    EXPECT_EQ(p.a->qp->state(), QpState::rts);
    EXPECT_EQ(p.b->qp->state(), QpState::rts);
  }
}

TEST_P(Connections,
       writes_of_an_unreliable_connection_that_are_refused_change_nothing_and_say_nothing) {
  for (const size_t n : {size_t{8}, size_t{100'000}}) {
    ConnectedPair p(GetParam(), unreliable());
    p.a->fill(0, pattern(n, 1));
    ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, n, p.b->address(Pair::kMemory - n + 1), p.b->key()));
    ASSERT_TRUE(p.a->post(SendOp::write, 2, 0, n, p.b->address(), p.b->key()));
    p.settle();
    ASSERT_EQ(p.a->send_cq.size(), 2u);
    EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success);
    EXPECT_EQ(p.b->bytes(0, n), pattern(n, 1)) << "what comes after is not held up";
    EXPECT_EQ(p.b->bytes(Pair::kMemory - n, n), std::vector<std::byte>(n));
    EXPECT_EQ(p.b->qp->state(), QpState::rts);
  }
}

TEST_P(Connections, reads_and_atomics_are_not_offered_by_unreliable_connections) {
  ConnectedPair p(GetParam(), unreliable());
  for (const SendOp op : {SendOp::read, SendOp::fetch_add, SendOp::cmp_swap}) {
    EXPECT_EQ(p.a->post(op, 1, 0, 8, p.b->address(), p.b->key()).error(), Errc::invalid);
  }
}

TEST_P(Connections, an_unreliable_connection_outlives_its_lane) {
  ConnectedPair p(GetParam(), unreliable());
  ASSERT_TRUE(p.b->post_recv(1, 0, 1 << 20));
  p.a->fill(0, pattern(1 << 20, 1));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 1 << 20));  // half of it lies in the ring
  p.b->poll();
  p.a->qp->lose();
  p.b->qp->lose();
  ASSERT_EQ(p.a->send_cq.size(), 1u);
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success) << "lost on the way";
  EXPECT_TRUE(p.b->recv_cq.empty()) << "the receive is for the next message";
  ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, 8));
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success) << "lost, too";
  p.join();
  p.a->fill(0, pattern(500, 2));
  ASSERT_TRUE(p.a->post(SendOp::send, 3, 0, 500));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }));
  const Wc wc = Side::take(p.b->recv_cq);
  EXPECT_EQ(wc.id, 1u);
  EXPECT_EQ(wc.byte_len, 500u);
  EXPECT_EQ(p.b->bytes(0, 500), pattern(500, 2));
}

// --- lanes ---

TEST_P(Connections, no_lane_to_be_had_fails_the_first_request_and_flushes_the_rest) {
  Pair p(GetParam());
  p.a->bring_up();
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, 8));
  EXPECT_GE(p.a->wanted, 1);
  p.a->qp->lane_failed(Errc::unreachable);
  EXPECT_EQ(ends_of(p.a->send_cq), (Ends{retry_exc_err, wr_flush_err}));
  EXPECT_EQ(p.a->qp->state(), QpState::err);
}

TEST_P(Connections, what_waits_for_a_lane_goes_out_when_it_comes) {
  Pair p(GetParam());
  p.a->bring_up();
  p.b->bring_up();
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  p.join();
  EXPECT_TRUE(p.until([&] { return p.a->send_cq.size() == 1 && p.b->recv_cq.size() == 1; }));
}

TEST_P(Connections, what_the_peer_had_published_before_it_went_is_executed) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.b->post_recv(2, 0, 8));
  p.a->fill(0, pattern(8, 9));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  p.move();
  p.b->qp->lose();
  EXPECT_EQ(ends_of(p.b->recv_cq), Ends{success});
  EXPECT_EQ(p.b->bytes(0, 8), pattern(8, 9));
  EXPECT_EQ(p.b->qp->state(), QpState::rts) << "nothing of its own was lost";
}

// The application may have seen it in its memory, and written something else there since.
TEST_P(ConnectionsWithClaims, what_the_peer_had_claimed_before_it_went_is_not_executed_again) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 64, 8));
  p.b->fill(0, pattern(8, 1));
  p.a->fill(0, pattern(8, 9));
  ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, 8, p.b->address(), p.b->key()));
  ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, 8));
  p.a->qp->lane()->request_tx.words().claim.store(
      transport::claim_word(0, transport::ClaimState::taken));
  p.b->poll();
  p.b->qp->lose();
  EXPECT_TRUE(p.b->recv_cq.empty()) << "nor what stands behind it";
  EXPECT_EQ(p.b->bytes(0, 8), pattern(8, 1));
}

TEST_P(Connections, half_a_message_of_a_peer_that_is_gone_fails_its_receive) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 0, 1 << 20));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 1 << 20));
  p.b->poll();
  p.b->qp->lose();
  EXPECT_EQ(ends_of(p.b->recv_cq), Ends{rem_abort_err});
  EXPECT_EQ(p.b->qp->state(), QpState::err);
}

TEST_P(Connections, requests_under_way_when_the_peer_goes_fail_and_later_ones_are_flushed) {
  for (const SendOp op : {SendOp::send, SendOp::write_with_imm, SendOp::fetch_add}) {
    ConnectedPair p(GetParam());
    ASSERT_TRUE(p.a->post(op, 1, 0, 8, p.b->address(), p.b->key()));
    ASSERT_TRUE(p.a->post(op, 2, 0, 8, p.b->address(), p.b->key()));
    p.a->qp->lose();
    EXPECT_EQ(ends_of(p.a->send_cq), (Ends{retry_exc_err, wr_flush_err}));
    EXPECT_NE(p.a->given_back, nullptr);
  }
}

TEST_P(Connections, a_lane_that_comes_back_begins_with_nothing_of_the_last) {
  ConnectedPair p(GetParam());
  // b waits for a receive, has said so, and is in the middle of an answer
  ASSERT_TRUE(p.a->post(SendOp::read, 1, 0, 2 << 20, p.b->address(), p.b->key()));
  for (int i = 0; i < 5; ++i) p.b->poll();
  p.b->qp->lose();
  EXPECT_EQ(p.b->qp->state(), QpState::rts);
  p.a->go_to(QpState::reset);
  p.a->send_cq.forget(*p.a->qp);
  p.a->bring_up();
  p.join();
  const size_t n = 300'000;
  p.b->fill(0, pattern(n, 4));
  ASSERT_TRUE(p.a->post(SendOp::read, 2, 0, n, p.b->address(), p.b->key()));
  EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{success});
  EXPECT_EQ(p.a->bytes(0, n), pattern(n, 4));
  ASSERT_TRUE(p.a->post(SendOp::send, 3, 0, 8));
  p.settle();
  p.b->qp->lose();  // while its head waits for a receive
  p.a->go_to(QpState::reset);
  p.a->bring_up();
  p.join();
  ASSERT_TRUE(p.a->post(SendOp::send, 4, 0, 8));
  p.settle();
  ASSERT_TRUE(p.b->post_recv(9, 0, 8));
  EXPECT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1 && p.a->send_cq.size() == 1; }));
}

// --- receives that come late, while nobody polls ---

// What waits for a receive waits for nothing that the peer does; once it is posted, what one look
// leaves is told to whoever may have put the engine to sleep.
TEST_P(Connections, a_message_that_waits_for_its_receive_lets_its_engine_sleep) {
  constexpr size_t kLong = 128 * 1024;
  ConnectedPair p(GetParam());
  p.a->fill(0, pattern(kLong, 5));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, kLong));
  p.settle();
  p.b->qp->fall_asleep(ring::kUnnumbered);
  EXPECT_FALSE(p.b->qp->anything_arrived() || p.b->qp->needs_polling());
  EXPECT_FALSE(p.b->qp->needs_later_look());
  EXPECT_EQ(p.b->shares, 0);
  ASSERT_TRUE(p.b->post_recv(2, 0, kLong));
  EXPECT_EQ(p.b->shares, 1);
  EXPECT_TRUE(p.b->qp->anything_arrived()) << "a first share is taken";
  EXPECT_TRUE(p.b->recv_cq.empty());
  p.b->qp->wake_up();
  EXPECT_EQ(p.ends(p.b->recv_cq, 1), Ends{success});
  EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{success});
  EXPECT_EQ(p.b->bytes(0, kLong), pattern(kLong, 5));
  // one that is there in time is nobody's business
  ASSERT_TRUE(p.b->post_recv(3, 0, 8));
  EXPECT_EQ(p.b->shares, 1);
}

}  // namespace
}  // namespace aperture::ib::test
