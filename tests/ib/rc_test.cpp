// Reliable connections: each operation over each link, in order and with its refusals.
#include <cstdlib>

#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

using Rc = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, Rc, kEachLink, link_name);

// Read when something is logged first.
const bool g_speaks = ::setenv("APERTURE_LOG", "warn", 1) == 0;

TEST_P(Rc, sends_of_all_sizes_arrive_in_order) {
  ConnectedPair p(GetParam());
  size_t offset = 0;
  std::vector<size_t> sizes = {0, 1, 8, 52, 53, 256, 257, 4096, 32768, 32769, 100000, 1 << 20};
  uint64_t id = 0;
  for (const size_t n : sizes) {
    p.a->fill(offset, pattern(n, static_cast<unsigned>(id)));
    ASSERT_TRUE(p.b->post_recv(100 + id, offset, n));
    ASSERT_TRUE(p.a->post(SendOp::send, id, offset, n));
    offset += n;
    ++id;
  }
  ASSERT_TRUE(p.until(
      [&] { return p.a->send_cq.size() == sizes.size() && p.b->recv_cq.size() == sizes.size(); }));
  offset = 0;
  for (uint64_t i = 0; i < sizes.size(); ++i) {
    const Wc sent = Side::take(p.a->send_cq);
    EXPECT_EQ(sent.id, i);
    EXPECT_EQ(sent.status, success);
    const Wc got = Side::take(p.b->recv_cq);
    EXPECT_EQ(got.id, 100 + i);
    EXPECT_EQ(got.status, WcStatus::success);
    EXPECT_EQ(got.opcode, WcOpcode::recv);
    EXPECT_EQ(got.byte_len, sizes[i]);
    EXPECT_EQ(p.b->bytes(offset, sizes[i]), pattern(sizes[i], static_cast<unsigned>(i)));
    offset += sizes[i];
  }
}

// A NIC's acknowledgement comes before the message that was sent because of it. Programs that keep
// one queue for both kinds of completions count on it.
TEST_P(Rc, a_send_completes_before_the_receive_of_its_answer) {
  for (const size_t n : {size_t{8}, size_t{300}, size_t{1} << 19}) {
    for (const size_t answers : {1, 3}) {
      SCOPED_TRACE(std::to_string(n) + " bytes, answers: " + std::to_string(answers));
      ConnectedPair p(GetParam());
      for (int round = 0; round < 3; ++round) {  // the first message of a connection is special
        std::vector<size_t> sent_before;
        p.a->events.on_completion = [&] {
          sent_before.push_back(p.a->send_cq.size());
          p.a->recv_cq.arm(false);
        };
        p.a->recv_cq.arm(false);
        for (size_t i = 0; i < answers; ++i) {
          ASSERT_TRUE(p.a->post_recv(10 + i, 0, 8));
          ASSERT_TRUE(p.b->post_recv(20 + i, 0, n));
          ASSERT_TRUE(p.a->post(SendOp::send, 30 + i, 0, n));
        }
        for (size_t answered = 0; answered < answers;) {
          p.b->poll();
          if (p.b->recv_cq.empty()) {
            p.a->poll();  // pieces of a long message follow
            continue;
          }
          Side::take(p.b->recv_cq);
          ASSERT_TRUE(p.b->post(SendOp::send, 40, 0, 8));
          ++answered;
        }
        ASSERT_TRUE(p.until([&] { return p.a->recv_cq.size() == answers; }));
        ASSERT_EQ(sent_before.size(), answers);
        for (size_t i = 0; i < answers; ++i) EXPECT_GT(sent_before[i], i) << "answer " << i;
        while (!p.a->recv_cq.empty()) Side::take(p.a->recv_cq);
        while (!p.a->send_cq.empty()) Side::take(p.a->send_cq);
        while (!p.b->send_cq.empty()) Side::take(p.b->send_cq);
      }
      p.a->events.on_completion = nullptr;
    }
  }
}

TEST_P(Rc, writes_and_reads_move_the_bytes) {
  for (const size_t n : {size_t{8}, size_t{200}, size_t{5000}, size_t{1} << 20}) {
    for (const bool target_polls : {true, false}) {
      if (!target_polls && GetParam() != LinkKind::direct) continue;
      SCOPED_TRACE(std::to_string(n) + (target_polls ? ", polling" : ", not polling"));
      ConnectedPair p(GetParam());
      p.a->fill(0, pattern(n, 1));
      ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, n, p.b->address(64), p.b->key()));
      EXPECT_EQ(p.ends(p.a->send_cq, 1, true, target_polls), Ends{success});
      EXPECT_EQ(p.b->bytes(64, n), pattern(n, 1));
      p.b->fill(64, pattern(n, 2));
      ASSERT_TRUE(p.a->post(SendOp::read, 2, 0, n, p.b->address(64), p.b->key()));
      EXPECT_EQ(p.ends(p.a->send_cq, 1, true, target_polls), Ends{success});
      EXPECT_EQ(p.a->bytes(0, n), pattern(n, 2));
    }
  }
}

// Its owner has begun to answer it, in steps, when it stops: that part alone has to wait for it.
// Who looks at its ring for a moment now and then holds up no more.
TEST(LargeRead, of_an_owner_that_hardly_polls_goes_on_without_it) {
  constexpr size_t n = Pair::kMemory;
  ConnectedPair p(LinkKind::direct);
  p.b->fill(0, pattern(n, 3));
  ASSERT_TRUE(p.a->post(SendOp::read, 1, 0, n, p.b->address(), p.b->key()));
  int owner_polls = 0;
  uint64_t next_ns = 0;
  ASSERT_TRUE(p.until(
      [&] {
        if (now_ns() >= next_ns) {
          next_ns = now_ns() + 20'000'000;
          p.b->poll();
          ++owner_polls;
        }
        return p.a->send_cq.size() == 1;
      },
      true, false));
  EXPECT_EQ(ends_of(p.a->send_cq), Ends{success});
  EXPECT_EQ(p.a->bytes(0, n), pattern(n, 3));
  EXPECT_LE(owner_polls, 20);
}

TEST_P(Rc, a_write_with_immediate_data_takes_a_receive) {
  for (const size_t n : {size_t{0}, size_t{8}, size_t{1} << 19}) {
    ConnectedPair p(GetParam());
    p.a->fill(0, pattern(n, 1));
    ASSERT_TRUE(p.b->post_recv(7, 0, 0));
    SendWr wr = Side::work(SendOp::write_with_imm, 1, p.b->address(64), p.b->key());
    wr.imm = 0x12345678;
    ASSERT_TRUE(p.a->post(wr, {p.a->sge(0, n)}));
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1 && p.b->recv_cq.size() == 1; }));
    const Wc got = Side::take(p.b->recv_cq);
    EXPECT_EQ(got.id, 7u);
    EXPECT_EQ(got.opcode, WcOpcode::recv_write_with_imm);
    EXPECT_EQ(got.imm, 0x12345678u);
    EXPECT_EQ(got.flags, kWcWithImm);
    EXPECT_EQ(got.byte_len, n);
    EXPECT_EQ(p.b->bytes(64, n), pattern(n, 1));
  }
}

TEST_P(Rc, atomics_change_the_target_and_hand_its_former_value_back) {
  ConnectedPair p(GetParam());
  uint64_t value = 40;
  std::memcpy(p.b->memory.data(), &value, 8);
  SendWr add = Side::work(SendOp::fetch_add, 1, p.b->address(), p.b->key());
  add.compare_add = 2;
  ASSERT_TRUE(p.a->post(add, {p.a->sge(0, 8)}));
  SendWr swap = add;
  swap.op = SendOp::cmp_swap;
  swap.compare_add = 42;
  swap.swap = 99;
  ASSERT_TRUE(p.a->post(swap, {p.a->sge(8, 8)}));
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 2; }));
  EXPECT_EQ(Side::take(p.a->send_cq).opcode, WcOpcode::fetch_add);
  EXPECT_EQ(Side::take(p.a->send_cq).opcode, WcOpcode::cmp_swap);
  uint64_t former[2];
  std::memcpy(former, p.a->memory.data(), sizeof former);
  EXPECT_EQ(former[0], 40u);
  EXPECT_EQ(former[1], 42u);
  std::memcpy(&value, p.b->memory.data(), 8);
  EXPECT_EQ(value, 99u);
}

TEST_P(Rc, a_refused_write_fails_its_wr_flushes_the_rest_and_changes_nothing) {
  for (const size_t n : {size_t{8}, size_t{1} << 19}) {
    ConnectedPair p(GetParam());
    const auto before = p.b->bytes(0, Pair::kMemory);
    p.a->fill(0, pattern(n, 3));
    ASSERT_TRUE(p.b->post_recv(50, 0, 64));
    // one byte past the end
    ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, n, p.b->address(Pair::kMemory - n + 1), p.b->key()));
    ASSERT_TRUE(p.a->post(SendOp::write, 2, 0, n, p.b->address(0), p.b->key()));
    EXPECT_EQ(p.ended_of(p.a->send_cq, 2), (Ended{{1, rem_access_err}, {2, wr_flush_err}}));
    EXPECT_EQ(p.a->qp->state(), QpState::err);
    EXPECT_EQ(p.b->qp->state(), QpState::err);
    EXPECT_EQ(p.b->events.async, std::vector{AsyncEvent::qp_access_err});
    EXPECT_EQ(Side::take(p.b->recv_cq).status, WcStatus::wr_flush_err);
    EXPECT_EQ(p.b->bytes(0, Pair::kMemory), before);
  }
}

TEST_P(Rc, a_local_buffer_that_may_not_be_used_is_refused_in_a_sentence) {
  struct Case {
    SendOp op;
    Rights rights;  // what its key gives
    bool target_polls;
  };
  const Case cases[] = {{SendOp::send, Rights::local_write, true},
                        {SendOp::write, Rights::local_write, true},
                        {SendOp::write, Rights::local_write, false},
                        {SendOp::read, Rights::local_read, true},
                        {SendOp::read, Rights::local_read, false}};
  for (const Case& c : cases) {
    if (!c.target_polls && GetParam() != LinkKind::direct) continue;
    SCOPED_TRACE(std::to_string(static_cast<int>(c.op)) + (c.target_polls ? ", polling" : ""));
    ConnectedPair p(GetParam());
    ASSERT_TRUE(p.b->post_recv(9, 0, 64));
    const uint64_t key = p.a->add(p.a->memory.data(), 4096, c.rights).key;
    const Sge sge{p.a->address(), 64, static_cast<uint32_t>(key)};
    const auto before = p.a->bytes(0, 64);
    testing::internal::CaptureStderr();
    ASSERT_TRUE(p.a->post(Side::work(c.op, 1, p.b->address(), p.b->key()), {sge}));
    EXPECT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }, true, c.target_polls));
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::loc_prot_err);
    EXPECT_EQ(p.a->bytes(0, 64), before);
    ASSERT_TRUE(g_speaks);
    EXPECT_NE(said.find("a buffer of its own"), std::string::npos) << said;
  }
}

TEST_P(Rc, a_send_waits_for_a_receive_and_gives_up_when_told_to) {
  {
    ConnectedPair p(GetParam());  // rnr_retry = 7: for ever
    ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
    p.settle();
    EXPECT_TRUE(p.a->send_cq.empty());
    ASSERT_TRUE(p.b->post_recv(2, 0, 8));
    EXPECT_TRUE(p.until([&] { return p.a->send_cq.size() == 1 && p.b->recv_cq.size() == 1; }));
  }
  ConnectedPair p(GetParam(), {.rnr_retry = 2});
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{rnr_retry_exc_err});
  EXPECT_EQ(p.a->qp->state(), QpState::err);
}

TEST_P(Rc, what_the_peer_had_executed_when_it_went_is_a_success) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(2, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }, false, true));
  p.a->qp->lose();
  EXPECT_EQ(ends_of(p.a->send_cq), (Ends{success, retry_exc_err}));
}

// A program that has what it came for destroys its queue pair without another look at it, and its
// peer's last sends are a success all the same: a NIC would have taken them.
TEST_P(Rc, what_has_arrived_when_a_queue_pair_is_destroyed_is_executed) {
  for (const bool receives : {true, false}) {
    SCOPED_TRACE(receives);
    ConnectedPair p(GetParam());
    p.a->fill(0, pattern(64, 5));
    for (uint64_t id = 1; receives && id <= 3; ++id) ASSERT_TRUE(p.b->post_recv(id, 128, 8));
    for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(p.a->post(SendOp::send, id, 0, 8));
    p.lanes.move();
    p.b->qp->leave();
    p.move();
    EXPECT_TRUE(p.b->recv_cq.empty()) << "its completions go with it";
    EXPECT_EQ(p.b->bytes(128, 8) == pattern(8, 5), receives);
    p.a->qp->lose();
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 3; }, true, false));
    EXPECT_EQ(ends_of(p.a->send_cq),
              receives ? Ends(3, success) : (Ends{retry_exc_err, wr_flush_err, wr_flush_err}));
  }
}

// The same for one that stops it, as rdma_disconnect(3) does.
TEST_P(Rc, what_has_arrived_when_a_queue_pair_is_stopped_is_executed) {
  for (const QpState state : {QpState::err, QpState::reset}) {
    SCOPED_TRACE(static_cast<int>(state));
    ConnectedPair p(GetParam());
    p.a->fill(0, pattern(64, 5));
    for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(p.b->post_recv(id, 128, 8));
    for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(p.a->post(SendOp::send, id, 0, 8));
    p.lanes.move();
    p.b->go_to(state);
    p.move();
    EXPECT_EQ(p.b->bytes(128, 8), pattern(8, 5));
    const bool tells = state == QpState::err;  // reset: its completions are gone with it
    EXPECT_EQ(ended(p.b->recv_cq),
              tells ? (Ended{{1, success}, {2, success}, {3, wr_flush_err}}) : Ended{});
    p.a->qp->lose();
    EXPECT_EQ(ends_of(p.a->send_cq), (Ends{success, success}));
  }
}

TEST_P(Rc, what_the_peer_has_executed_is_a_success_when_a_queue_pair_is_stopped) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(2, 0, 8));
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(p.a->post(SendOp::send, id, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }, false, true));
  p.a->go_to(QpState::err);
  EXPECT_EQ(ended(p.a->send_cq), (Ended{{1, success}, {2, wr_flush_err}, {3, wr_flush_err}}));
}

TEST_P(Rc, what_a_lost_peer_has_not_executed_is_retried_before_it_fails) {
  const Options o{.timeout = 12, .retry_cnt = 7};  // 16.8 ms, and seven times more
  ConnectedPair p(GetParam(), o);
  ASSERT_TRUE(p.b->post_recv(2, 0, 8));
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(p.a->post(SendOp::send, id, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }, false, true));
  const uint64_t lost = now_ns();
  p.a->qp->lose();
  EXPECT_TRUE(p.a->qp->needs_later_look());
  ASSERT_TRUE(p.a->post(SendOp::send, 4, 0, 8));  // is not begun any more
  EXPECT_EQ(ends_of(p.a->send_cq), Ends{success});
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 3; }, true, false));
  EXPECT_GE(now_ns() - lost, give_up_ns(o.timeout, o.retry_cnt));
  EXPECT_EQ(ends_of(p.a->send_cq), (Ends{retry_exc_err, wr_flush_err, wr_flush_err}));
  EXPECT_EQ(p.a->qp->state(), QpState::err);
  EXPECT_FALSE(p.a->qp->needs_polling());
}

// As ibv_srq_pingpong does with a peer that has had all that it waits for.
TEST_P(Rc, what_is_posted_when_the_peer_is_gone_is_retried_before_it_fails) {
  const Options o{.timeout = 12, .retry_cnt = 7};
  ConnectedPair p(GetParam(), o);
  p.a->qp->lose();  // with nothing under way
  EXPECT_EQ(p.a->qp->lane(), nullptr);
  EXPECT_FALSE(p.a->qp->needs_later_look());
  const uint64_t posted = now_ns();
  for (uint64_t id = 1; id <= 2; ++id) ASSERT_TRUE(p.a->post(SendOp::send, id, 0, 8));
  EXPECT_TRUE(p.a->send_cq.empty());
  EXPECT_TRUE(p.a->qp->needs_later_look());
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 2; }, true, false));
  EXPECT_GE(now_ns() - posted, give_up_ns(o.timeout, o.retry_cnt));
  EXPECT_EQ(ended(p.a->send_cq), (Ended{{1, retry_exc_err}, {2, wr_flush_err}}));
  EXPECT_EQ(p.a->qp->state(), QpState::err);
  EXPECT_FALSE(p.a->qp->needs_later_look());
}

TEST_P(Rc, what_is_posted_when_the_peer_is_gone_goes_out_if_it_comes_back) {
  ConnectedPair p(GetParam(), {.timeout = 31});
  p.a->qp->lose();
  p.b->go_to(QpState::reset);
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  p.a->poll();
  EXPECT_TRUE(p.a->send_cq.empty());
  p.b->bring_up();
  ASSERT_TRUE(p.b->post_recv(2, 0, 8));
  p.join();
  EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{success});
  EXPECT_FALSE(p.a->qp->needs_later_look());
}

TEST_P(Rc, without_a_timeout_what_is_posted_when_the_peer_is_gone_fails_at_once) {
  ConnectedPair p(GetParam());
  p.a->qp->lose();
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  EXPECT_EQ(ends_of(p.a->send_cq), Ends{retry_exc_err});
}

TEST_P(Rc, a_lost_peer_is_waited_for_no_longer_than_is_of_use) {
  for (const bool is_given_up : {false, true}) {
    ConnectedPair p(GetParam(), {.timeout = 31});  // two and a half hours
    ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
    p.a->qp->lose();
    EXPECT_TRUE(p.a->send_cq.empty());
    if (is_given_up) p.a->go_to(QpState::err);  // by the program itself, at once
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }, true, false));
    EXPECT_EQ(Side::take(p.a->send_cq).status,
              is_given_up ? WcStatus::wr_flush_err : WcStatus::retry_exc_err);
  }
}

}  // namespace
}  // namespace aperture::ib::test
