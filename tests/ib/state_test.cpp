// Transitions of a queue pair's state: which there are and what they take, and what a queue pair
// does in each state. (IBTA vol. 1, 10.3.1 and 11.2.5.2; ibv_modify_qp(3).)
#include <map>
#include <tuple>

#include "ib/pair.hpp"

namespace aperture::ib::test {
namespace {

using enum QpState;

constexpr QpType kTypes[] = {QpType::rc, QpType::uc, QpType::ud, QpType::xrc_send,
                             QpType::xrc_recv};
constexpr QpState kStates[] = {reset, init, rtr, rts, sqd, sqe, err};

struct Takes {
  uint32_t required;
  uint32_t optional;
};
using Key = std::tuple<QpState, QpState>;
using Table = std::map<Key, Takes>;

// The rows of the specification's tables, type by type, in its own order; what any state may go to
// is added for all.
Table with_any(Table t) {
  for (const QpState from : kStates) {
    t[{from, reset}] = {0, 0};
    t[{from, err}] = {0, 0};
  }
  return t;
}

constexpr uint32_t kBasic = kAttrPkeyIndex | kAttrPort;
constexpr uint32_t kPathTo = kAttrAv | kAttrPathMtu | kAttrDestQpn | kAttrRqPsn;
constexpr uint32_t kMig = kAttrAltPath | kAttrPathMigState;

Table of_rc() {
  return with_any({
      {{reset, init}, {kBasic | kAttrAccessFlags, 0}},
      {{init, init}, {0, kBasic | kAttrAccessFlags}},
      {{init, rtr},
       {kPathTo | kAttrMaxDestRdAtomic | kAttrMinRnrTimer,
        kAttrAltPath | kAttrAccessFlags | kAttrPkeyIndex}},
      {{rtr, rts},
       {kAttrTimeout | kAttrRetryCnt | kAttrRnrRetry | kAttrSqPsn | kAttrMaxRdAtomic,
        kAttrCurState | kAttrAccessFlags | kMig | kAttrMinRnrTimer | kAttrRateLimit}},
      {{rts, rts},
       {0, kAttrCurState | kAttrAccessFlags | kMig | kAttrMinRnrTimer | kAttrRateLimit}},
      {{rts, sqd}, {0, kAttrEnSqdAsync}},
      {{sqd, rts}, {0, kAttrCurState | kAttrAccessFlags | kMig | kAttrMinRnrTimer}},
      {{sqd, sqd},
       {0, kAttrPort | kAttrAv | kAttrTimeout | kAttrRetryCnt | kAttrRnrRetry | kAttrMaxRdAtomic |
               kAttrMaxDestRdAtomic | kAttrAccessFlags | kAttrPkeyIndex | kAttrMinRnrTimer | kMig}},
  });
}

Table of_uc() {
  return with_any({
      {{reset, init}, {kBasic | kAttrAccessFlags, 0}},
      {{init, init}, {0, kBasic | kAttrAccessFlags}},
      {{init, rtr}, {kPathTo, kAttrAltPath | kAttrAccessFlags | kAttrPkeyIndex}},
      {{rtr, rts}, {kAttrSqPsn, kAttrCurState | kAttrAccessFlags | kMig | kAttrRateLimit}},
      {{rts, rts}, {0, kAttrCurState | kAttrAccessFlags | kMig | kAttrRateLimit}},
      {{rts, sqd}, {0, kAttrEnSqdAsync}},
      {{sqd, rts}, {0, kAttrCurState | kAttrAccessFlags | kMig}},
      {{sqd, sqd}, {0, kAttrAv | kAttrAccessFlags | kAttrPkeyIndex | kMig}},
      {{sqe, rts}, {0, kAttrCurState | kAttrAccessFlags}},
  });
}

Table of_ud() {
  return with_any({
      {{reset, init}, {kBasic | kAttrQkey, 0}},
      {{init, init}, {0, kBasic | kAttrQkey}},
      {{init, rtr}, {0, kAttrPkeyIndex | kAttrQkey}},
      {{rtr, rts}, {kAttrSqPsn, kAttrCurState | kAttrQkey | kAttrRateLimit}},
      {{rts, rts}, {0, kAttrCurState | kAttrQkey | kAttrRateLimit}},
      {{rts, sqd}, {0, kAttrEnSqdAsync}},
      {{sqd, rts}, {0, kAttrCurState | kAttrQkey}},
      {{sqd, sqd}, {0, kAttrPkeyIndex | kAttrQkey}},
      {{sqe, rts}, {0, kAttrCurState | kAttrQkey}},
  });
}

// The sending half of RC ...
Table of_xrc_send() {
  Table t = of_rc();
  t[{init, rtr}].required &= ~(kAttrMaxDestRdAtomic | kAttrMinRnrTimer);
  t[{rtr, rts}].optional &= ~uint32_t{kAttrMinRnrTimer};
  t[{rts, rts}].optional &= ~uint32_t{kAttrMinRnrTimer};
  t[{sqd, rts}].optional &= ~uint32_t{kAttrMinRnrTimer};
  t[{sqd, sqd}].optional &= ~(kAttrMinRnrTimer | kAttrMaxDestRdAtomic);
  return t;
}

// ... and the receiving one, which has a timeout all the same.
Table of_xrc_recv() {
  Table t = of_rc();
  t[{rtr, rts}].required = kAttrTimeout | kAttrSqPsn;
  t[{sqd, sqd}].optional &= ~(kAttrRetryCnt | kAttrRnrRetry | kAttrMaxRdAtomic);
  return t;
}

Table table_of(QpType type) {
  switch (type) {
    case QpType::rc: return of_rc();
    case QpType::uc: return of_uc();
    case QpType::ud: return of_ud();
    case QpType::xrc_send: return of_xrc_send();
    case QpType::xrc_recv: return of_xrc_recv();
  }
  return {};
}

TEST(Modify, each_type_has_the_transitions_of_its_table_and_no_others) {
  for (const QpType type : kTypes) {
    const Table table = table_of(type);
    for (const QpState from : kStates) {
      for (const QpState to : kStates) {
        SCOPED_TRACE(std::to_string(static_cast<int>(type)) + " " + state_name(from) + " to " +
                     state_name(to));
        const auto row = table.find({from, to});
        const uint32_t all = row == table.end() ? 0 : row->second.required;
        const ModifyVerdict verdict = validate_modify(type, from, to, all | kAttrState);
        EXPECT_EQ(verdict.fault,
                  row == table.end() ? ModifyFault::no_such_transition : ModifyFault::none);
      }
    }
  }
}

TEST(Modify, each_required_attribute_is_asked_for_and_each_other_one_refused) {
  for (const QpType type : kTypes) {
    for (const auto& [key, takes] : table_of(type)) {
      const auto [from, to] = key;
      SCOPED_TRACE(std::to_string(static_cast<int>(type)) + " " + state_name(from) + " to " +
                   state_name(to));
      const uint32_t known = takes.required | takes.optional;
      EXPECT_EQ(validate_modify(type, from, to, known | kAttrState).fault, ModifyFault::none);
      for (unsigned i = 1; i < 32; ++i) {
        const uint32_t bit = 1u << i;
        if ((takes.required & bit) != 0) {
          const ModifyVerdict v = validate_modify(type, from, to, (known & ~bit) | kAttrState);
          EXPECT_EQ(v.fault, ModifyFault::attribute_missing) << attribute_name(bit);
          EXPECT_EQ(v.bits, bit);
        }
        if ((known & bit) == 0) {
          const ModifyVerdict v =
              validate_modify(type, from, to, takes.required | bit | kAttrState);
          EXPECT_EQ(v.fault, ModifyFault::attribute_not_allowed) << attribute_name(bit);
          EXPECT_EQ(v.bits, bit);
        }
      }
    }
  }
}

TEST(Modify, states_that_do_not_exist_have_no_transitions) {
  const auto bad = static_cast<QpState>(7);
  EXPECT_EQ(validate_modify(QpType::rc, bad, err, kAttrState).fault,
            ModifyFault::no_such_transition);
  EXPECT_EQ(validate_modify(QpType::rc, rts, bad, kAttrState).fault,
            ModifyFault::no_such_transition);
}

// --- what a queue pair does in its states ---

using States = OverEachLink;
INSTANTIATE_TEST_SUITE_P(Links, States, kEachLink, link_name);

TEST_P(States, sends_are_taken_from_rts_on_and_receives_from_init_on) {
  Pair p(GetParam());
  EXPECT_EQ(p.b->post_recv(1, 0, 8).error(), Errc::bad_state);
  for (const QpState state : {reset, init, rtr}) {
    if (state != reset) p.b->go_to(state);
    EXPECT_EQ(p.b->post(SendOp::send, 1, 0, 8).error(), Errc::bad_state) << state_name(state);
  }
  EXPECT_TRUE(p.b->post_recv(1, 0, 8));
  p.b->go_to(rts);
  EXPECT_TRUE(p.b->post(SendOp::send, 1, 0, 8));
  EXPECT_EQ(p.b->wanted, 1) << "a lane is asked for with the first send";
}

TEST_P(States, a_receive_posted_in_init_serves_the_first_message) {
  Pair p(GetParam());
  p.b->go_to(init);
  ASSERT_TRUE(p.b->post_recv(5, 0, 8));
  p.connect();
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(p.until([&] { return !p.b->recv_cq.empty(); }));
  EXPECT_EQ(Side::take(p.b->recv_cq).id, 5u);
}

TEST_P(States, a_message_that_comes_before_rts_establishes_the_connection_once) {
  Pair p(GetParam());
  p.a->bring_up();
  p.b->go_to(init);
  p.b->go_to(rtr);
  p.join();
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.b->post_recv(2, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }));
  ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 2; }));
  EXPECT_EQ(p.b->events.async, std::vector{AsyncEvent::comm_est});
  p.b->go_to(rts);
  ASSERT_TRUE(p.a->post_recv(3, 0, 8));
  ASSERT_TRUE(p.b->post(SendOp::send, 3, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.a->recv_cq.size() == 1; }));
  EXPECT_TRUE(p.a->events.async.empty()) << "in RTS it was established already";
}

TEST_P(States, reset_forgets_everything_and_the_queue_pair_can_be_used_again) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.b->post_recv(2, 0, 200'000));  // which is being received
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(p.until([&] { return !p.a->send_cq.empty() && !p.b->recv_cq.empty(); }));
  for (uint64_t i = 2; i < 6; ++i) ASSERT_TRUE(p.a->post(SendOp::send, i, 0, 100'000));
  p.a->go_to(reset);
  p.b->go_to(reset);
  for (Side* s : {p.a.get(), p.b.get()}) {
    EXPECT_TRUE(s->send_cq.empty() && s->recv_cq.empty()) << "no completion, old or new";
    EXPECT_TRUE(s->events.async.empty());
    EXPECT_NE(s->given_back, nullptr);
    EXPECT_FALSE(s->qp->has_pending());
    EXPECT_EQ(s->qp->attributes().access, 0u);
  }
  p.connect();
  ASSERT_TRUE(p.b->post_recv(7, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 8, 0, 8));
  ASSERT_TRUE(p.until([&] { return !p.a->send_cq.empty() && !p.b->recv_cq.empty(); }));
  EXPECT_EQ(Side::take(p.b->recv_cq).id, 7u);
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success);
}

TEST_P(States, the_error_state_flushes_both_queues_in_order_and_what_is_posted_later) {
  ConnectedPair p(GetParam());
  for (uint64_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(p.a->post(SendOp::send, i, 0, i == 0 ? 600'000 : 8));
    ASSERT_TRUE(p.a->post_recv(i, 0, 8));
  }
  p.a->go_to(err);
  EXPECT_EQ(p.a->qp->state(), err);
  EXPECT_NE(p.a->given_back, nullptr);
  ASSERT_TRUE(p.a->post(SendOp::write, 3, 0, 8));
  ASSERT_TRUE(p.a->post_recv(3, 0, 8));
  for (CompletionQueue* cq : {&p.a->send_cq, &p.a->recv_cq}) {
    ASSERT_EQ(cq->size(), 4u);
    for (uint64_t i = 0; i < 4; ++i) {
      const Wc wc = Side::take(*cq);
      EXPECT_EQ(wc.id, i);
      EXPECT_EQ(wc.status, WcStatus::wr_flush_err);
      EXPECT_EQ(wc.qpn, 0x101u);
    }
  }
  EXPECT_TRUE(p.a->events.async.empty()) << "asked for, so no event";
  p.a->go_to(err);
  EXPECT_TRUE(p.a->send_cq.empty());
}

TEST_P(States, a_queue_that_is_to_drain_ends_what_is_begun_begins_nothing_and_says_so_once) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.b->post_recv(1, 0, 1 << 20));
  ASSERT_TRUE(p.b->post_recv(2, 0, 8));
  // longer than its ring: begun, and not all of it is there
  p.a->fill(0, pattern(1 << 20, 3));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 1 << 20));
  QpAttributes attr;
  attr.en_sqd_async = true;
  p.a->go_to(sqd, kAttrEnSqdAsync, attr);
  EXPECT_TRUE(p.a->events.async.empty()) << "a message is half way";
  EXPECT_TRUE(p.a->qp->is_draining());
  ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, 8));
  p.a->go_to(sqd);  // changes nothing
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 1; }));
  p.settle();
  EXPECT_EQ(p.a->events.async, std::vector{AsyncEvent::sq_drained});
  EXPECT_TRUE(p.a->qp->has_pending());
  EXPECT_FALSE(p.a->qp->is_draining()) << "what is queued is not begun";
  EXPECT_EQ(p.a->send_cq.size(), 1u);
  EXPECT_EQ(p.b->recv_cq.size(), 1u);
  EXPECT_EQ(p.b->bytes(0, 1 << 20), pattern(1 << 20, 3));
  p.a->go_to(rts);
  ASSERT_TRUE(p.until([&] { return p.a->send_cq.size() == 2 && p.b->recv_cq.size() == 2; }));
  p.a->go_to(sqd);  // this time nobody asked to be told
  EXPECT_EQ(p.a->events.async.size(), 1u);
  p.a->go_to(rts);
  p.a->go_to(sqd, kAttrEnSqdAsync, attr);
  EXPECT_EQ(p.a->events.async.size(), 2u) << "drained at once";
}

TEST_P(States, a_draining_queue_pair_still_receives) {
  ConnectedPair p(GetParam());
  p.b->go_to(sqd);
  ASSERT_TRUE(p.b->post_recv(1, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 1, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::read, 2, 0, 8, p.b->address(), p.b->key()));
  EXPECT_TRUE(p.until([&] { return p.a->send_cq.size() == 2 && p.b->recv_cq.size() == 1; }));
}

TEST_P(States, a_failed_send_of_an_unreliable_connection_stops_its_send_queue_alone) {
  ConnectedPair p(GetParam(), {.type = QpType::uc});
  ASSERT_TRUE(p.a->post_recv(1, 0, 8));
  ASSERT_TRUE(p.a->post(Side::work(SendOp::send, 1), {{p.a->address(), 8, 0x9999}}));
  EXPECT_EQ(p.a->qp->state(), sqe);
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::loc_prot_err);
  ASSERT_TRUE(p.a->post(SendOp::send, 2, 0, 8));
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::wr_flush_err);
  EXPECT_EQ(p.a->qp->state(), sqe);
  EXPECT_TRUE(p.a->recv_cq.empty());
  ASSERT_TRUE(p.b->post(SendOp::send, 3, 0, 8));
  EXPECT_EQ(p.ends(p.a->recv_cq, 1), Ends{success});
  p.a->go_to(rts);
  ASSERT_TRUE(p.b->post_recv(4, 0, 8));
  ASSERT_TRUE(p.a->post(SendOp::send, 4, 0, 8));
  ASSERT_TRUE(p.until([&] { return p.b->recv_cq.size() == 1; }));
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::success);
}

TEST_P(States, a_failed_send_of_a_reliable_connection_ends_in_the_error_state) {
  ConnectedPair p(GetParam());
  ASSERT_TRUE(p.a->post_recv(1, 0, 8));
  ASSERT_TRUE(p.a->post(Side::work(SendOp::send, 1), {{p.a->address(), 8, 0x9999}}));
  EXPECT_EQ(p.a->qp->state(), err);
  EXPECT_EQ(Side::take(p.a->send_cq).status, WcStatus::loc_prot_err);
  EXPECT_EQ(Side::take(p.a->recv_cq).status, WcStatus::wr_flush_err);
}

}  // namespace
}  // namespace aperture::ib::test
