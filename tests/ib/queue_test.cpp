// What every queue does: completion queues, receive queues, slots, flags, limits, refusals.
// (IBTA vol. 1, 9.9, 10.2, 10.8, 11.4; ibv_post_send(3), ibv_poll_cq(3), ibv_modify_srq(3).)
#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

Cqe cqe_of(uint64_t id) {
  Cqe cqe;
  cqe.wc.id = id;
  return cqe;
}

// --- completion queues ---

bool push(CompletionQueue& cq, const Cqe& cqe) {
  Cqe* place = cq.next();
  if (place == nullptr) return false;
  *place = cqe;
  cq.push();
  return true;
}

TEST(CompletionQueue, holds_its_capacity_and_tells_of_an_overrun_once) {
  Events events;
  CompletionQueue cq(3, events, false);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(push(cq, cqe_of(id)));
  EXPECT_FALSE(push(cq, cqe_of(4)));
  EXPECT_FALSE(push(cq, cqe_of(5)));
  EXPECT_EQ(events.overruns, 1);
  EXPECT_TRUE(cq.overrun());
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(Side::take(cq).id, id);
  EXPECT_TRUE(cq.empty());
}

TEST(CompletionQueue, that_ignores_overruns_loses_the_oldest_and_tells_nobody) {
  Events events;
  CompletionQueue cq(3, events, false);
  cq.ignore_overrun();
  uint32_t released = 0;
  for (uint32_t id = 1; id <= 5; ++id) {
    Cqe cqe = cqe_of(id);
    cqe.released = &released;
    cqe.release = id;
    EXPECT_TRUE(push(cq, cqe));
  }
  EXPECT_EQ(events.overruns, 0);
  EXPECT_FALSE(cq.overrun());
  EXPECT_EQ(released, 2u) << "what is lost gives its place back";
  for (uint64_t id = 3; id <= 5; ++id) EXPECT_EQ(Side::take(cq).id, id);
  EXPECT_TRUE(cq.empty());
}

TEST(CompletionQueue, resizing_keeps_what_is_in_it_and_its_order) {
  Events events;
  CompletionQueue cq(4, events, false);
  for (uint64_t id = 0; id < 3; ++id) {  // so that the ring has turned
    ASSERT_TRUE(push(cq, cqe_of(99)));
    cq.pop();
  }
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(push(cq, cqe_of(id)));
  EXPECT_EQ(cq.resize(3).error(), Errc::invalid);
  ASSERT_TRUE(cq.resize(100));
  EXPECT_EQ(cq.capacity(), 100u);
  for (uint64_t id = 5; id <= 100; ++id) ASSERT_TRUE(push(cq, cqe_of(id)));
  EXPECT_FALSE(push(cq, cqe_of(101)));
  for (uint64_t id = 1; id <= 98; ++id) EXPECT_EQ(Side::take(cq).id, id);
  ASSERT_TRUE(cq.resize(2));
  EXPECT_EQ(Side::take(cq).id, 99u);
  EXPECT_EQ(Side::take(cq).id, 100u);
}

TEST(CompletionQueue, an_armed_queue_makes_one_event) {
  Events events;
  CompletionQueue cq(64, events, false);
  ASSERT_TRUE(push(cq, cqe_of(1)));
  EXPECT_EQ(events.completions, 0) << "not armed";
  cq.arm(false);
  EXPECT_EQ(events.completions, 0) << "of the next completion, not of those that are there";
  ASSERT_TRUE(push(cq, cqe_of(2)));
  ASSERT_TRUE(push(cq, cqe_of(3)));
  EXPECT_EQ(events.completions, 1);
}

TEST(CompletionQueue, armed_for_solicited_completions_it_tells_of_those_and_of_errors) {
  Events events;
  CompletionQueue cq(64, events, false);
  Cqe plain = cqe_of(1), solicited = cqe_of(2), bad = cqe_of(3);
  solicited.wc.solicited = true;
  bad.wc.status = WcStatus::wr_flush_err;
  cq.arm(true);
  ASSERT_TRUE(push(cq, plain));
  EXPECT_EQ(events.completions, 0);
  ASSERT_TRUE(push(cq, solicited));
  EXPECT_EQ(events.completions, 1);
  cq.arm(true);
  ASSERT_TRUE(push(cq, bad));
  EXPECT_EQ(events.completions, 2);
  cq.arm(true);
  cq.arm(false);  // the wider wish holds, whichever came first
  ASSERT_TRUE(push(cq, plain));
  EXPECT_EQ(events.completions, 3);
  cq.arm(false);
  cq.arm(true);
  ASSERT_TRUE(push(cq, plain));
  EXPECT_EQ(events.completions, 4);
  cq.arm(true);  // served: the wider wish is over
  ASSERT_TRUE(push(cq, plain));
  EXPECT_EQ(events.completions, 4);
}

using Queues = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, Queues, kEachLink, link_name);

TEST_P(Queues, a_queue_pair_whose_completion_is_lost_is_fatal) {
  ConnectedPair p(GetParam(), {.cq_entries = 2});
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(p.b->post_recv(i, 0, 8));
    ASSERT_TRUE(p.a->post(SendOp::send, i, 0, 8));
  }
  p.settle();
  EXPECT_EQ(p.a->events.overruns + p.b->events.overruns, 2) << "both, once each";
  EXPECT_EQ(p.a->send_cq.size(), 2u);
  EXPECT_EQ(p.b->qp->state(), QpState::err);
  EXPECT_EQ(p.b->events.async, std::vector{AsyncEvent::qp_fatal});
}

TEST_P(Queues, a_queue_pair_whose_completion_is_lost_goes_on_where_overruns_are_ignored) {
  ConnectedPair p(GetParam(), {.cq_entries = 2});
  for (Side* side : {p.a.get(), p.b.get()}) {
    side->send_cq.ignore_overrun();
    side->recv_cq.ignore_overrun();
  }
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(p.b->post_recv(i, 0, 8));
    ASSERT_TRUE(p.a->post(SendOp::send, i, 0, 8));
  }
  p.settle();
  EXPECT_EQ(p.a->events.overruns + p.b->events.overruns, 0);
  EXPECT_EQ(p.b->qp->state(), QpState::rts);
  EXPECT_EQ(ended(p.a->send_cq), (Ended{{4, success}, {5, success}}));
  EXPECT_EQ(ended(p.b->recv_cq), (Ended{{4, success}, {5, success}}));
}

TEST_P(Queues, completions_of_a_queue_pair_that_goes_are_forgotten) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }));
  Cqe other = cqe_of(77);
  ASSERT_TRUE(push(p.a->send_cq, other));
  p.a->qp->leave();
  ASSERT_EQ(p.a->send_cq.size(), 1u);
  EXPECT_EQ(Side::take(p.a->send_cq).id, 77u);
}

// --- slots ---

TEST_P(Queues, slots_come_back_when_completions_are_polled_and_no_sooner) {
  ConnectedPair p(GetParam(), {.send_wrs = 3, .recv_wrs = 3});
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(p.b->post_recv(i, 0, 8));
    ASSERT_TRUE(p.a->post(SendOp::send, i, 0, 8));
  }
  EXPECT_EQ(p.b->post_recv(3, 0, 8).error(), Errc::no_space);
  EXPECT_EQ(p.a->post(SendOp::send, 3, 0, 8).error(), Errc::no_space);
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 3 && p.b->recv_cq.size() == 3; }));
  EXPECT_EQ(p.b->post_recv(3, 0, 8).error(), Errc::no_space);
  EXPECT_EQ(p.a->post(SendOp::send, 3, 0, 8).error(), Errc::no_space);
  p.a->send_cq.pop();
  p.b->recv_cq.pop();
  EXPECT_TRUE(p.b->post_recv(3, 0, 8));
  EXPECT_EQ(p.b->post_recv(4, 0, 8).error(), Errc::no_space);
  EXPECT_TRUE(p.a->post(SendOp::send, 3, 0, 8));
  EXPECT_EQ(p.a->post(SendOp::send, 4, 0, 8).error(), Errc::no_space);
}

TEST_P(Queues, unsignaled_work_is_silent_and_gives_its_slots_back_with_the_next_that_is_not) {
  ConnectedPair p(GetParam(), {.send_wrs = 4, .sig_all = false});
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(p.b->post_recv(i, 0, 8));
    SendWr wr = Side::work(SendOp::send, i);
    if (i < 3) wr.flags = 0;
    ASSERT_TRUE(p.a->post(wr, {p.a->sge(0, 8)}));
  }
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 4 && !p.a->send_cq.empty(); }));
  EXPECT_EQ(p.a->post(SendOp::send, 9, 0, 8).error(), Errc::no_space);
  ASSERT_EQ(p.a->send_cq.size(), 1u);
  EXPECT_EQ(Side::take(p.a->send_cq).id, 3u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(p.a->post(SendOp::send, 10 + i, 0, 8));
}

TEST_P(Queues, unsignaled_work_that_fails_is_told) {
  ConnectedPair p(GetParam(), {.sig_all = false});
  for (uint64_t i = 0; i < 2; ++i) {
    SendWr wr = Side::work(SendOp::write, i, p.b->address(), 0x9999);
    wr.flags = 0;
    ASSERT_TRUE(p.a->post(wr, {p.a->sge(0, 8)}));
  }
  EXPECT_EQ(p.ends(p.a->send_cq, 2), (Ends{rem_access_err, wr_flush_err}));
}

// --- buffers ---

TEST_P(Queues, inline_bytes_are_taken_at_the_post) {
  for (const SendOp op : {SendOp::send, SendOp::write}) {
    ConnectedPair p(GetParam());
    p.a->fill(0, pattern(64, 1));
    ASSERT_TRUE(p.b->post_recv(1, 0, 64));
    SendWr wr = Side::work(op, 1, p.b->address(), p.b->key());
    wr.flags |= kInline;
    // no lkey is needed
    ASSERT_TRUE(p.a->post(wr, {{p.a->address(0), 24, 0}, {p.a->address(24), 40, 0}}));
    p.a->fill(0, pattern(64, 2));
    EXPECT_EQ(p.next_end(p.a->send_cq), success);
    EXPECT_EQ(p.b->bytes(0, 64), pattern(64, 1));
  }
}

TEST_P(Queues, inline_where_there_is_none_or_too_much_is_refused) {
  ConnectedPair p(GetParam());
  SendWr wr = Side::work(SendOp::send, 1);
  wr.flags |= kInline;
  EXPECT_EQ(p.a->post(wr, {p.a->sge(0, 257)}).error(), Errc::invalid);
  EXPECT_TRUE(p.a->post(wr, {p.a->sge(0, 256)}));
  for (const SendOp op : {SendOp::read, SendOp::fetch_add, SendOp::cmp_swap}) {
    wr.op = op;
    EXPECT_EQ(p.a->post(wr, {p.a->sge(0, 8)}).error(), Errc::invalid);
  }
}

TEST_P(Queues, wrong_work_requests_are_refused_at_the_post) {
  ConnectedPair p(GetParam());
  SendWr wr = Side::work(SendOp::send, 1);
  const Sge five[5] = {};
  wr.sge = five;
  wr.sge_count = 5;
  EXPECT_EQ(p.a->qp->post_send(wr).error(), Errc::invalid) << "more pieces than asked for";
  wr.sge_count = 4;
  EXPECT_TRUE(p.a->qp->post_send(wr));
  wr.op = static_cast<SendOp>(10);
  EXPECT_EQ(p.a->qp->post_send(wr).error(), Errc::invalid);
  wr.op = SendOp::fetch_add;
  EXPECT_EQ(p.a->qp->post_send(wr).error(), Errc::invalid) << "atomics are of eight bytes";
  wr.op = SendOp::bind_mw;
  EXPECT_EQ(p.a->qp->post_send(wr).error(), Errc::invalid) << "of nothing";
  wr.op = SendOp::write;
  EXPECT_EQ(p.a->post(wr, {{0, 1u << 31, 1}, {0, 1, 1}}).error(), Errc::invalid)
      << "longer than a message may be";
  EXPECT_EQ(p.a->qp->post_recv({1, five, 5}).error(), Errc::invalid);
}

TEST_P(Queues, scatter_and_gather_of_several_pieces) {
  for (const size_t n : {size_t{90}, size_t{3000}, size_t{300'000}}) {
    ConnectedPair p(GetParam());
    p.a->fill(0, pattern(n, 1));
    const size_t third = n / 3;
    ASSERT_TRUE(p.b->post_recv(1, {p.b->sge(0, 7), p.b->sge(100, 0), p.b->sge(n, n - 7)}));
    ASSERT_TRUE(p.a->post(Side::work(SendOp::send, 1), {p.a->sge(0, third), p.a->sge(third, third),
                                                        p.a->sge(2 * third, n - 2 * third)}));
    ASSERT_TRUE(p.until([&] { return !p.b->recv_cq.empty() && !p.a->send_cq.empty(); }));
    EXPECT_EQ(Side::take(p.b->recv_cq).byte_len, n);
    auto got = p.b->bytes(0, 7);
    const auto rest = p.b->bytes(n, n - 7);
    got.insert(got.end(), rest.begin(), rest.end());
    EXPECT_EQ(got, pattern(n, 1));
  }
}

TEST_P(Queues, hostile_16_one_bad_lkey_of_several_changes_nothing) {
  for (const size_t n : {size_t{60}, size_t{3000}, size_t{300'000}}) {
    for (const SendOp op : {SendOp::send, SendOp::write, SendOp::read}) {
      SCOPED_TRACE(std::to_string(n) + " of " + std::to_string(static_cast<int>(op)));
      ConnectedPair p(GetParam());
      p.a->fill(0, pattern(n, 1));
      p.b->fill(0, pattern(n, 2));
      ASSERT_TRUE(p.b->post_recv(1, 0, n));
      Sge other_half = p.a->sge(n / 2, n - n / 2);
      other_half.lkey = p.b->key();  // of another protection domain
      ASSERT_TRUE(p.a->post(Side::work(op, 1, p.b->address(), p.b->key()),
                            {p.a->sge(0, n / 2), other_half}));
      EXPECT_EQ(p.next_end(p.a->send_cq), loc_prot_err);
      p.settle();
      EXPECT_EQ(p.a->bytes(0, n), pattern(n, 1));
      EXPECT_EQ(p.b->bytes(0, n), pattern(n, 2));
    }
  }
}

TEST_P(Queues, hostile_16_a_receive_with_one_bad_lkey_of_several_changes_nothing) {
  for (const size_t n : {size_t{40}, size_t{200}, size_t{3000}, size_t{100'000}}) {
    SCOPED_TRACE(n);
    ConnectedPair p(GetParam());
    p.b->fill(0, pattern(n, 2));
    p.a->fill(0, pattern(n, 1));
    Sge other_half = p.b->sge(n / 2, n - n / 2);
    other_half.lkey = p.a->key();
    ASSERT_TRUE(p.b->post_recv(1, {p.b->sge(0, n / 2), other_half}));
    ASSERT_TRUE(p.b->post_recv(2, 0, n));
    ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, n));
    ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, n));
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 2 && p.b->recv_cq.size() == 2; }));
    EXPECT_EQ(ends_of(p.a->send_cq), (Ends{rem_op_err, wr_flush_err}));
    EXPECT_EQ(ends_of(p.b->recv_cq), (Ends{loc_prot_err, wr_flush_err}));
    EXPECT_EQ(p.b->bytes(0, n), pattern(n, 2));
  }
}

TEST_P(Queues, a_bad_piece_that_the_message_does_not_reach_does_no_harm) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, {p.b->sge(0, 64), {p.b->address(64), 64, 0x9999}}));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 64));
  EXPECT_EQ(p.next_end(p.b->recv_cq), success);
}

TEST_P(Queues, accesses_of_no_bytes_ask_for_no_key) {
  ConnectedPair p(GetParam());
  for (const SendOp op : {SendOp::write, SendOp::read}) {
    ASSERT_TRUE(p.a->post(op, 1, 0, 0, 0, 0x9999));
    EXPECT_EQ(p.next_end(p.a->send_cq), success);
  }
}

// A region that goes while its bytes are on their way: the results that still come are dropped.
TEST_P(Queues, a_read_whose_buffer_is_closed_meanwhile_fails_and_nothing_lands) {
  ConnectedPair p(GetParam());
  const size_t n = 200'000;
  const auto region = p.a->add(p.a->memory.data() + 1'000'000, n, kLocal);
  SendWr wr = Side::work(SendOp::read, 1, p.b->address(), p.b->key());
  p.b->fill(0, pattern(n, 1));
  ASSERT_TRUE(p.a->post(wr, {{p.a->address(1'000'000), n, static_cast<uint32_t>(region.key)}}));
  ASSERT_TRUE(p.a->send_cq.empty()) << "a target that polls is not read directly";
  for (int i = 0; i < 20; ++i) p.b->poll();  // several pieces of the result lie in the ring
  ASSERT_TRUE(p.lanes.keys->revocation().revoke(region, now_ns() + 1'000'000'000));
  EXPECT_EQ(p.next_end(p.a->send_cq), loc_prot_err);
  EXPECT_TRUE(p.a->events.async.empty()) << "the peer has done nothing wrong";
  EXPECT_EQ(p.a->bytes(1'000'000, n), std::vector<std::byte>(n));
}

// --- what the other side does not take ---

TEST_P(Queues, a_message_longer_than_its_receive_is_an_error_at_both_ends) {
  for (const size_t n : {size_t{65}, size_t{5000}}) {
    ConnectedPair p(GetParam());
    ASSERT_TRUE(p.b->post_recv(1, 0, n - 1));
    ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, n));
    ASSERT_TRUE(p.until([&] { return !p.a->send_cq.empty() && !p.b->recv_cq.empty(); }));
    EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::rem_inv_req_err);
    EXPECT_EQ(Side::take(p.b->recv_cq).status, WcStatus::loc_len_err);
    EXPECT_EQ(p.a->qp->state(), QpState::err);
    EXPECT_EQ(p.b->qp->state(), QpState::err);
    EXPECT_EQ(p.b->events.async, std::vector{AsyncEvent::qp_req_err});
  }
}

TEST_P(Queues, a_queue_pair_takes_what_its_access_flags_allow_whatever_its_keys_do) {
  constexpr struct {
    SendOp op;
    uint32_t needs;
  } kCases[] = {{SendOp::write, kAllowRemoteWrite},
                {SendOp::read, kAllowRemoteRead},
                {SendOp::fetch_add, kAllowRemoteAtomic},
                {SendOp::write_with_imm, kAllowRemoteWrite}};
  for (const auto& c : kCases) {
    for (const bool asleep : {false, true}) {
      for (const size_t n : {size_t{8}, size_t{40'000}}) {
        if (n != 8 && c.op == SendOp::fetch_add) continue;
        SCOPED_TRACE(std::to_string(static_cast<int>(c.op)) + (asleep ? " asleep" : " hot"));
        ConnectedPair p(GetParam(), {.access = 14 & ~c.needs});
        ASSERT_TRUE(p.b->post_recv(1, 0, 64));
        if (asleep) p.b->qp->fall_asleep(ring::kUnnumbered);
        p.a->fill(0, pattern(n, 1));
        ASSERT_TRUE(p.a->post(c.op, 1, 0, n, p.b->address(64), p.b->key()));
        p.settle();
        EXPECT_EQ(ends_of(p.a->send_cq), Ends{rem_inv_req_err});
        EXPECT_EQ(p.b->events.async, std::vector{AsyncEvent::qp_req_err});
        EXPECT_EQ(p.b->bytes(64, n), std::vector<std::byte>(n));
      }
    }
  }
}

TEST_P(Queues, a_queue_pair_without_read_depth_takes_no_reads_and_makes_none) {
  for (const bool at_target : {true, false}) {
    for (const SendOp op : {SendOp::read, SendOp::fetch_add}) {
      ConnectedPair p(GetParam());
      (at_target ? p.b : p.a)->qp->modify({}, at_target ? kAttrMaxDestRdAtomic : kAttrMaxRdAtomic);
      ASSERT_TRUE(p.a->post(op, 1, 0, 8, p.b->address(), p.b->key()));
      p.settle();
      ASSERT_EQ(p.a->send_cq.size(), 1u);
      EXPECT_EQ(Side::take(p.a->send_cq).status,
                at_target ? WcStatus::rem_inv_req_err : WcStatus::loc_qp_op_err);
    }
  }
}

TEST_P(Queues, no_more_reads_are_under_way_than_were_agreed) {
  ConnectedPair p(GetParam());
  QpAttributes two;
  two.max_rd_atomic = 2;
  p.a->qp->modify(two, kAttrMaxRdAtomic);
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(p.a->post(SendOp::fetch_add, i, i * 8, 8, p.b->address(), p.b->key()));
  }
  for (int i = 0; i < 20; ++i) p.a->poll();
  uint32_t out = 0;
  for (ring::CellReader peek = p.b->qp->lane()->request_rx.cells; peek.ready(); peek.advance(1)) {
    ++out;
  }
  EXPECT_EQ(out, 2u);
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 6; }));
}

TEST_P(Queues, a_fenced_request_waits_for_the_reads_before_it) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.a->post(SendOp::fetch_add, 1, 0, 8, p.b->address(), p.b->key()));
  ASSERT_TRUE(p.b->post_recv(1, 64, 8));
  SendWr wr = Side::work(SendOp::send, 2);
  wr.flags |= kFence;
  const uint64_t former = 0x1234567890;
  std::memcpy(p.b->memory.data(), &former, 8);
  ASSERT_TRUE(p.a->post(wr, {p.a->sge(0, 8)}));  // what the atomic brings
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 2; }));
  uint64_t got = 0;
  std::memcpy(&got, p.b->memory.data() + 64, 8);
  EXPECT_EQ(got, former);
}

// A write that ends by itself, work at this end and a read after it begin at the same place of the
// ring; the result is the read's all the same.
TEST_P(Queues, results_find_their_request_behind_work_that_has_no_place_in_the_ring) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 64, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  p.b->fill(1000, pattern(300, 5));
  for (int i = 0; i < 5; ++i) p.b->poll();  // executed, and not yet told
  p.b->qp->fall_asleep(ring::kUnnumbered);
  ASSERT_TRUE(p.a->post(SendOp::read, 2, 100, 300, p.b->address(1000), p.b->key()));
  p.b->qp->wake_up();
  ASSERT_TRUE(p.a->post(SendOp::read, 3, 500, 300, p.b->address(1000), p.b->key()));
  for (int i = 0; i < 5; ++i) p.b->poll();
  EXPECT_EQ(p.ended_of(p.a->send_cq, 3), (Ended{{1, success}, {2, success}, {3, success}}));
  EXPECT_EQ(p.a->bytes(100, 300), pattern(300, 5));
  EXPECT_EQ(p.a->bytes(500, 300), pattern(300, 5));
}

// --- receiver not ready ---

TEST(RnrTimer, its_codes_are_those_of_the_table) {
  EXPECT_EQ(rnr_timer_ns(0), 655'360'000u);
  EXPECT_EQ(rnr_timer_ns(1), 10'000u);
  EXPECT_EQ(rnr_timer_ns(12), 640'000u);
  EXPECT_EQ(rnr_timer_ns(31), 491'520'000u);
  for (unsigned code = 2; code < 32; ++code) {
    EXPECT_GT(rnr_timer_ns(static_cast<uint8_t>(code)),
              rnr_timer_ns(static_cast<uint8_t>(code - 1)));
  }
  EXPECT_EQ(rnr_timer_ns(32), rnr_timer_ns(0)) << "five bits";
}

TEST_P(Queues, each_retry_count_gives_up_but_seven) {
  for (unsigned retries = 0; retries < 8; ++retries) {
    for (const size_t n : {size_t{8}, size_t{1} << 20}) {  // the long one fills its ring
      SCOPED_TRACE(std::to_string(retries) + " " + std::to_string(n));
      ConnectedPair p(GetParam(), {.rnr_retry = static_cast<uint8_t>(retries), .min_rnr_timer = 1});
      // one before it that succeeds, so that the count is not ended by it
      ASSERT_TRUE(p.a->post(SendOp::write, 1, 0, 8, p.b->address(), p.b->key()));
      ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, n));
      if (retries == 7) {
        p.settle();
        EXPECT_EQ(p.a->send_cq.size(), 1u);
        EXPECT_EQ(p.a->qp->state(), QpState::rts);
        ASSERT_TRUE(p.b->post_recv(1, 0, n));
        EXPECT_TRUE(p.until([&] { return p.a->send_cq.size() == 2; }));
        continue;
      }
      EXPECT_EQ(p.ends(p.a->send_cq, 2), (Ends{success, rnr_retry_exc_err}));
      EXPECT_EQ(p.a->qp->state(), QpState::err);
    }
  }
}

// hostile 37: what a peer sends takes no more of a poll for being long.
TEST_P(Queues, hostile_37_a_poll_takes_fewer_long_messages_than_short_ones) {
  constexpr uint32_t kLong = 32 * 1024;
  ConnectedPair p(GetParam());
  for (uint64_t id = 1; id <= 40; ++id) {
    ASSERT_TRUE(p.b->post_recv(id, 0, kLong));
    ASSERT_TRUE(p.a->post(SendOp::send, id, 0, kLong));
  }
  p.b->poll();
  const size_t taken = p.b->recv_cq.size();
  EXPECT_EQ(taken, transport::kPollBytes / kLong);
  EXPECT_TRUE(p.until([&] { return p.b->recv_cq.size() == 40; }));
}

// And what it writes or reads no more than that, or than a piece.
TEST_P(Queues, hostile_37_a_poll_moves_a_turn_of_a_long_operation) {
  constexpr size_t kLong = 256 * 1024;
  for (const SendOp op : {SendOp::send, SendOp::write, SendOp::read}) {
    SCOPED_TRACE(static_cast<int>(op));
    ConnectedPair p(GetParam());
    ASSERT_TRUE(p.b->post_recv(1, 0, kLong));
    ASSERT_TRUE(p.a->post(op, 1, 0, kLong, p.b->address(), p.b->key()));
    link::Lane& lane = *p.b->qp->lane();
    for (int i = 0; i < 4; ++i) {
      const uint64_t taken = lane.request_rx.freed_bytes();
      const uint64_t room = lane.response_tx.bytes.free_bytes();
      p.b->poll();
      const uint64_t turn = std::max(transport::kPollBytes, lane.piece_bytes);
      EXPECT_LE(lane.request_rx.freed_bytes() - taken, turn);
      EXPECT_LE(room, lane.response_tx.bytes.free_bytes() + turn);
    }
    EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{success});
  }
}

TEST_P(Queues, a_receive_that_comes_in_time_ends_the_count) {
  ConnectedPair p(GetParam(), {.rnr_retry = 6, .min_rnr_timer = 31});  // about three seconds
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  for (int i = 0; i < 20; ++i) {
    p.b->poll();
    p.a->poll();
  }
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  EXPECT_EQ(p.ends(p.a->send_cq, 1), Ends{success});
  EXPECT_FALSE(p.a->qp->needs_polling());
}

// As programs ask for it that leave rdma_conn_param's counts at zero: rnr_retry 0, and the timer
// code that librdmacm sets, which is the longest one.
TEST_P(Queues, without_retries_a_receive_may_still_come_one_period_late) {
  constexpr uint64_t kPeriodNs = 655'360'000;
  for (int attempt = 0; attempt < 20; ++attempt) {
    ConnectedPair p(GetParam(), {.rnr_retry = 0, .min_rnr_timer = 0});
    const uint64_t posted = now_ns();
    ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
    for (int i = 0; i < 20; ++i) {
      p.b->poll();
      p.a->poll();
    }
    ASSERT_TRUE(p.b->post_recv(1, 0, 8));
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }));
    if (now_ns() - posted >= kPeriodNs) continue;  // the machine was late
    EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success);
    EXPECT_FALSE(p.a->qp->needs_polling());
    return;
  }
  FAIL() << "never within a period";
}

TEST_P(Queues, without_retries_a_receive_that_never_comes_is_told_after_one_period) {
  for (const uint8_t code : {uint8_t{0}, uint8_t{1}}) {
    ConnectedPair p(GetParam(), {.rnr_retry = 0, .min_rnr_timer = code});
    const uint64_t posted = now_ns();
    ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
    ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }));
    EXPECT_GE(now_ns() - posted, rnr_timer_ns(code));
    EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::rnr_retry_exc_err);
    EXPECT_EQ(p.a->qp->state(), QpState::err);
  }
}

}  // namespace
}  // namespace aperture::ib::test
