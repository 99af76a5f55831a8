// fi_poll(3): poll sets and wait sets; real, or refused with a code.
#include <gtest/gtest.h>

#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

class PollSet : public testing::Test {
 protected:
  void SetUp() override {
    fi_poll_attr attr{};
    fid_poll* raw = nullptr;
    const int code = fi_poll_open(node.domain(), &attr, &raw);
    if (code != 0) {
      EXPECT_TRUE(code == -FI_ENOSYS || code == -FI_EOPNOTSUPP) << code;
      EXPECT_FALSE(on_aperture()) << "offered here";
      GTEST_SKIP() << "refused with " << code;
    }
    set.reset(raw);
  }
  Fid<fid_cq> open_cq(void* context) {
    fi_cq_attr attr{.format = FI_CQ_FORMAT_TAGGED};
    return DOOR_MADE(fi_cq_open, node.domain(), &attr, context);
  }
  Node node;
  Fid<fid_cq> own_cq;
  Fid<fid_cntr> own_cntr;
  Fid<fid_poll> set;
  void* contexts[8] = {};
};

TEST_F(PollSet, of_nothing_has_nothing) {
  EXPECT_EQ(fi_poll(set.get(), contexts, 8), 0);
}

TEST_F(PollSet, tells_the_context_of_a_counter_that_moved) {
  int mark = 0;
  fi_cntr_attr attr{};
  own_cntr = DOOR_MADE(fi_cntr_open, node.domain(), &attr, &mark);
  ASSERT_EQ(fi_poll_add(set.get(), &own_cntr->fid, 0), 0);
  fi_poll(set.get(), contexts, 8);
  fi_cntr_add(own_cntr.get(), 1);
  if (on_aperture()) EXPECT_EQ(fi_poll(set.get(), contexts, 8), 0) << "a call of our own";
  EXPECT_EQ(fi_poll_del(set.get(), &own_cntr->fid, 0), 0);
  EXPECT_EQ(fi_poll(set.get(), contexts, 8), 0) << "removed";
}

// "since the last time fi_poll, fi_cntr_set, or fi_cntr_add were called"
TEST_F(PollSet, tells_of_a_counter_that_was_set_back_and_counts_to_where_it_was) {
  Options options;
  options.counters = true;
  NodePair p(options);
  fid_cntr* const sends = p.a.tx_cntr();
  fid_poll* raw = nullptr;
  fi_poll_attr attr{};
  ASSERT_EQ(fi_poll_open(p.a.domain(), &attr, &raw), 0);
  Fid<fid_poll> polled(raw);
  ASSERT_EQ(fi_poll_add(raw, &sends->fid, 0), 0);
  const auto send_one = [&] {
    const uint64_t before = fi_cntr_read(sends);
    ASSERT_EQ(p.a.post(fi_inject, "x", 1, p.to_b), 0);
    ASSERT_TRUE(pump_until([&] { return fi_cntr_read(sends) == before + 1; }));
  };
  for (int round = 0; round < 3; ++round) {
    send_one();
    EXPECT_EQ(fi_poll(raw, contexts, 8), 1) << round;
    ASSERT_EQ(fi_cntr_set(sends, 0), 0);
  }
  ASSERT_EQ(fi_poll_del(raw, &sends->fid, 0), 0);
}

TEST_F(PollSet, tells_the_context_of_a_queue_with_entries) {
  int mark = 0;
  own_cq = open_cq(&mark);
  Info info(fi_dupinfo(node.info()));
  Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, node.domain(), info.get());
  fid_ep* raw = ep.get();
  ASSERT_EQ(fi_ep_bind(raw, &node.av()->fid, 0), 0);
  ASSERT_EQ(fi_ep_bind(raw, &own_cq->fid, FI_TRANSMIT | FI_RECV), 0);
  ASSERT_EQ(fi_enable(raw), 0);
  ASSERT_EQ(fi_poll_add(set.get(), &own_cq->fid, 0), 0);
  EXPECT_EQ(fi_poll(set.get(), contexts, 8), 0);
  const fi_addr_t to = node.insert(name_of(&raw->fid));
  uint8_t in = 0;
  Op op;
  ASSERT_EQ(fi_recv(raw, &in, 1, nullptr, FI_ADDR_UNSPEC, &op), 0);
  ASSERT_EQ(node.post(fi_inject, "x", 1, to), 0);
  // the poll set progresses the queue by itself
  int got = 0;
  EXPECT_TRUE(pump_until([&] { return (got = fi_poll(set.get(), contexts, 8)) != 0; }));
  EXPECT_EQ(got, 1);
  EXPECT_EQ(contexts[0], &mark);
  fi_cq_tagged_entry entry;
  EXPECT_EQ(fi_cq_read(own_cq.get(), &entry, 1), 1);
  EXPECT_EQ(fi_poll_del(set.get(), &own_cq->fid, 0), 0);
  ep.reset();
}

TEST_F(PollSet, what_is_not_in_it_cannot_be_taken_out) {
  own_cq = open_cq(nullptr);
  if (on_aperture()) {
    EXPECT_LT(fi_poll_del(set.get(), &own_cq->fid, 0), 0);
    EXPECT_LT(fi_poll_add(set.get(), &node.av()->fid, 0), 0) << "not a queue or counter";
    EXPECT_LT(fi_poll_add(set.get(), &own_cq->fid, 1ull << 60), 0) << "flags are reserved";
  }
}

TEST_F(PollSet, and_its_members_hold_on_to_each_other) {
  if (!on_aperture()) GTEST_SKIP() << "others let it pass";
  own_cq = open_cq(nullptr);
  ASSERT_EQ(fi_poll_add(set.get(), &own_cq->fid, 0), 0);
  EXPECT_EQ(fi_close(&set->fid), -FI_EBUSY);
  EXPECT_EQ(fi_poll_del(set.get(), &own_cq->fid, 0), 0);
}

TEST(WaitSet, opens_for_each_object_or_refuses_it) {
  Node node;
  for (fi_wait_obj wait :
       {FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_POLLFD}) {
    fi_wait_attr attr{.wait_obj = wait};
    fid_wait* raw = nullptr;
    const int code = fi_wait_open(node.fabric(), &attr, &raw);
    if (code != 0) {
      EXPECT_TRUE(code == -FI_ENOSYS || code == -FI_EOPNOTSUPP || code == -FI_EINVAL) << code;
      EXPECT_EQ(raw, nullptr);
      continue;
    }
    const Fid<fid_wait> set(raw);
    const int64_t start = now_ns();
    EXPECT_EQ(fi_wait(raw, 20), -FI_ETIMEDOUT) << wait;
    EXPECT_LT(now_ns() - start, 2'000'000'000);
  }
}

TEST(WaitSet, bad_attributes_are_refused) {
  if (!on_aperture()) GTEST_SKIP() << "others let it pass";
  Node node;
  fid_wait* raw = nullptr;
  for (fi_wait_obj wait : {FI_WAIT_NONE, FI_WAIT_SET, no_such_value<fi_wait_obj>(66)}) {
    fi_wait_attr attr{.wait_obj = wait};
    EXPECT_LT(fi_wait_open(node.fabric(), &attr, &raw), 0) << wait;
  }
  fi_wait_attr attr{.wait_obj = FI_WAIT_UNSPEC, .flags = 1ull << 60};
  EXPECT_LT(fi_wait_open(node.fabric(), &attr, &raw), 0);
  EXPECT_EQ(raw, nullptr);
}

TEST(Trywait, refuses_what_has_no_wait_object) {
  if (!on_aperture()) GTEST_SKIP() << "others let it pass";
  Node node;
  fid* fids[] = {&node.av()->fid};
  EXPECT_LT(fi_trywait(node.fabric(), fids, 1), 0);
  fid* none[] = {&node.cq()->fid};
  EXPECT_LT(fi_trywait(node.fabric(), none, 1), 0) << "opened with FI_WAIT_NONE";
  EXPECT_EQ(fi_trywait(node.fabric(), fids, 0), 0) << "nothing to wait for";
}

}  // namespace
}  // namespace aperture::doors
