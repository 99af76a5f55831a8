// Faults that a user asks for (link/faulty), as verbs queue pairs meet them: what each of them
// completes with, each work request once, and that the same seed strikes the same ones.
// (ibv_poll_cq(3), ibv_modify_qp(3); IBTA vol. 1, 9.7.5, 9.9.)
#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

constexpr size_t kSmall = 8;
constexpr size_t kLarge = 100'000;

// With faults at the side that sends, or at the one that receives: each plan counts for both.
struct FaultyPair : Pair {
  explicit FaultyPair(const std::string& plan, const Options& o = {},
                      LinkKind kind = LinkKind::delayed)
      : Pair(kind, o) {
    lanes.language = link::faulty::Language::rc;
    lanes.set_faults(plan);
    connect();
  }
  // As first contact tells it.
  bool await_strike(LanePair::Of side) {
    return until([&] { return lanes.struck(side) != Errc::ok; });
  }
};

using Of = LanePair::Of;

using Faults = testing::TestWithParam<LinkKind>;
INSTANTIATE_TEST_SUITE_P(Links, Faults,
                         testing::Values(LinkKind::delayed, LinkKind::delayed_stream), link_name);

TEST_P(Faults, delays_change_nothing_but_the_time) {
  FaultyPair p("seed=3,delay=50us:30%,delay=1ms:2%", {}, GetParam());
  p.a->fill(0, pattern(kLarge, 1));
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(p.b->post_recv(i, i * kLarge, kLarge));
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(p.a->post(SendOp::send, i, 0, i % 2 == 0 ? kSmall : kLarge));
    ASSERT_TRUE(
        p.a->post(SendOp::read, 100 + i, 2 * kLarge, kSmall, p.b->address(3 << 20), p.b->key()));
    const Ended both{{i, success}, {100 + i, success}};
    ASSERT_EQ(p.ended_of(p.a->send_cq, 2), both);
    ASSERT_EQ(p.ended_of(p.b->recv_cq, 1), (Ended{{i, success}}));
    const size_t n = i % 2 == 0 ? kSmall : kLarge;
    ASSERT_EQ(p.b->bytes(i * kLarge, n), p.a->bytes(0, n));
  }
}

TEST_P(Faults, a_refusal_is_told_before_what_would_acknowledge_it) {
  for (int seed = 1; seed < 30; ++seed) {
    FaultyPair p("seed=" + std::to_string(seed) + ",delay=20us:50%", {}, GetParam());
    ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, kSmall, p.b->address(), p.b->key()));
    ASSERT_TRUE(p.a->post(SendOp::write, 2, 0, kSmall, p.b->address(), p.b->key() + 1));
    ASSERT_TRUE(p.a->post(SendOp::write, 3, 0, kSmall, p.b->address(), p.b->key()));
    EXPECT_EQ(p.ended_of(p.a->send_cq, 3),
              (Ended{{1, success}, {2, rem_access_err}, {3, wr_flush_err}}));
  }
}

// The receiver says it, with its own timer; the sender counts.
TEST_P(Faults, a_receiver_that_is_not_ready_for_longer_than_the_retries_is_an_error) {
  FaultyPair p("rnr=10s:after:2", {.rnr_retry = 3, .min_rnr_timer = 12}, GetParam());
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(p.b->post_recv(i, 0, kSmall));
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(p.a->post(SendOp::send, i, 0, kSmall));
  const uint64_t begun = now_ns();
  EXPECT_EQ(p.ended_of(p.a->send_cq, 4),
            (Ended{{0, success}, {1, success}, {2, rnr_retry_exc_err}, {3, wr_flush_err}}));
  EXPECT_GE(now_ns() - begun, 4 * rnr_timer_ns(12));
  EXPECT_EQ(p.a->qp->state(), QpState::err);
  EXPECT_EQ(ended(p.b->recv_cq), (Ended{{0, success}, {1, success}}));
}

TEST_P(Faults, a_receiver_that_is_ready_again_in_time_is_none) {
  FaultyPair p("rnr=5ms:after:1", {.rnr_retry = 6, .min_rnr_timer = 20}, GetParam());
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(p.b->post_recv(i, i * kLarge, kLarge));
  const uint64_t begun = now_ns();
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(p.a->post(SendOp::send, i, 0, kLarge));
  EXPECT_EQ(p.ended_of(p.a->send_cq, 3), (Ended{{0, success}, {1, success}, {2, success}}));
  EXPECT_GE(now_ns() - begun, 5'000'000u);
  EXPECT_EQ(p.ended_of(p.b->recv_cq, 3).size(), 3u);
}

TEST_P(Faults, responses_pass_a_message_that_finds_no_receive) {
  FaultyPair p("rnr=10s:after:0", {.rnr_retry = 7}, GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 0, kSmall));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, kSmall));  // waits at b
  ASSERT_TRUE(p.b->post(SendOp::read, 2, 0, kSmall, p.a->address(), p.a->key()));
  EXPECT_EQ(p.ended_of(p.b->send_cq, 1), (Ended{{2, success}}));
  EXPECT_TRUE(p.a->send_cq.empty());
}

TEST_P(Faults, an_operation_that_nobody_answers_runs_out_of_retries) {
  FaultyPair p("retry=after:2", {.timeout = 1, .retry_cnt = 1}, GetParam());
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(p.b->post_recv(i, 0, kSmall));
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(p.a->post(SendOp::send, i, 0, kSmall));
  ASSERT_TRUE(p.await_strike(Of::a));
  EXPECT_EQ(p.lanes.struck(Of::a), Errc::timed_out);
  p.a->qp->lose();
  EXPECT_EQ(p.ended_of(p.a->send_cq, 4),
            (Ended{{0, success}, {1, success}, {2, retry_exc_err}, {3, wr_flush_err}}));
  EXPECT_EQ(p.a->qp->state(), QpState::err);
  ASSERT_NE(p.a->given_back, nullptr);
  p.settle();
  EXPECT_TRUE(p.a->send_cq.empty()) << "each ends once";
}

TEST_P(Faults, a_flush_ends_all_that_is_pending_and_tells_the_application) {
  FaultyPair p("flush=after:1", {}, GetParam());
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(p.a->post_recv(10 + i, 0, kSmall));
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(p.a->post(SendOp::send, i, 0, kSmall));
  ASSERT_TRUE(p.await_strike(Of::a));
  EXPECT_EQ(p.lanes.struck(Of::a), Errc::canceled);
  p.a->qp->break_down();
  const Ended sends = ended(p.a->send_cq), receives = ended(p.a->recv_cq);
  ASSERT_EQ(sends.size(), 3u);
  for (const auto& [id, status] : sends) EXPECT_EQ(status, wr_flush_err) << id;
  EXPECT_EQ(receives, (Ended{{10, wr_flush_err}, {11, wr_flush_err}, {12, wr_flush_err}}));
  EXPECT_EQ(p.a->qp->state(), QpState::err);
  EXPECT_EQ(p.a->events.async, std::vector{AsyncEvent::qp_fatal});
}

TEST_P(Faults, a_peer_that_dies_leaves_what_was_acknowledged) {
  FaultyPair p("death=after:3", {.timeout = 1, .retry_cnt = 1}, GetParam());
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(p.b->post_recv(i, 0, kSmall));
  ASSERT_TRUE(p.a->post(SendOp::send, 0, 0, kSmall));
  EXPECT_EQ(p.ended_of(p.a->send_cq, 1), (Ended{{0, success}}));
  for (uint64_t i = 1; i < 5; ++i) ASSERT_TRUE(p.a->post(SendOp::send, i, 0, kSmall));
  ASSERT_TRUE(p.await_strike(Of::a));
  EXPECT_EQ(p.lanes.struck(Of::a), Errc::peer_lost);
  p.a->qp->lose();
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 4; }));
  const Ended all = ended(p.a->send_cq);
  EXPECT_EQ(all[0], (std::pair<uint64_t, WcStatus>{1, retry_exc_err}));
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(all[i].second, wr_flush_err);
}

TEST(FaultsOfSeeds, the_same_seed_strikes_the_same_operation) {
  const auto struck_at = [](const std::string& seed) {
    FaultyPair p("seed=" + seed + ",flush=2%");
    uint64_t posted = 0;
    for (; posted < 2000 && p.lanes.struck(Of::a) == Errc::ok; ++posted) {
      EXPECT_TRUE(p.b->post_recv(posted, 0, kSmall));
      EXPECT_TRUE(p.a->post(SendOp::send, posted, 0, kSmall));
      if (p.lanes.struck(Of::a) != Errc::ok) break;
      EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{success});
      EXPECT_EQ(p.ends(p.b->recv_cq, 1), Ends{success});
    }
    return posted;
  };
  const uint64_t first = struck_at("7");
  EXPECT_LT(first, 2000u);
  EXPECT_EQ(first, struck_at("7"));
  EXPECT_NE(first, struck_at("8"));
}

// Nobody polls while something is held back: what wakes the engine is told by who holds it.
TEST_P(Faults, what_is_lost_while_it_is_held_back_comes_up_at_once) {
  FaultyPair p("delay=10s:after:0", {}, GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 0, kSmall));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, kSmall));
  for (int i = 0; i < 100; ++i) p.b->poll();
  EXPECT_TRUE(p.b->recv_cq.empty());
  p.b->qp->lose();
  EXPECT_EQ(ended(p.b->recv_cq), (Ended{{1, success}}));
}

}  // namespace
}  // namespace aperture::ib::test
