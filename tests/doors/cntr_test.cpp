// fi_cntr(3): the value and the error value, waiting, and what moves them.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "doors/region.hpp"

namespace aperture::doors {
namespace {

class Cntr : public testing::Test {
 protected:
  Fid<fid_cntr> open(fi_wait_obj wait, int* code = nullptr) {
    fi_cntr_attr attr{.events = FI_CNTR_EVENTS_COMP, .wait_obj = wait};
    fid_cntr* raw = nullptr;
    const int r = fi_cntr_open(node.domain(), &attr, &raw, this);
    if (code != nullptr) *code = r;
    return Fid<fid_cntr>(r == 0 ? raw : nullptr);
  }
  // Reads may lag behind: the value that it comes to.
  static bool comes_to(fid_cntr* c, uint64_t value) {
    return pump_until([&] { return fi_cntr_read(c) == value; }, 2000);
  }
  static bool errors_come_to(fid_cntr* c, uint64_t value) {
    return pump_until([&] { return fi_cntr_readerr(c) == value; }, 2000);
  }
  Node node;
};

TEST_F(Cntr, add_and_set_change_the_value_and_only_it) {
  const Fid<fid_cntr> c = open(FI_WAIT_UNSPEC);
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(c->fid.context, this);
  EXPECT_EQ(fi_cntr_read(c.get()), 0u);
  EXPECT_EQ(fi_cntr_readerr(c.get()), 0u);
  EXPECT_EQ(fi_cntr_add(c.get(), 5), 0);
  EXPECT_TRUE(comes_to(c.get(), 5));
  EXPECT_EQ(fi_cntr_add(c.get(), 7), 0);
  EXPECT_TRUE(comes_to(c.get(), 12));
  EXPECT_EQ(fi_cntr_set(c.get(), 3), 0);
  EXPECT_TRUE(comes_to(c.get(), 3));
  EXPECT_EQ(fi_cntr_readerr(c.get()), 0u);
  EXPECT_EQ(fi_cntr_adderr(c.get(), 2), 0);
  EXPECT_TRUE(errors_come_to(c.get(), 2));
  EXPECT_EQ(fi_cntr_seterr(c.get(), 9), 0);
  EXPECT_TRUE(errors_come_to(c.get(), 9));
  EXPECT_TRUE(comes_to(c.get(), 3));
}

TEST_F(Cntr, wait_returns_at_the_threshold_and_times_out_below) {
  // the page has no fi_cntr_wait for FI_WAIT_NONE, and programs call it: the default is that object
  for (fi_wait_obj wait :
       {FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_WAIT_NONE}) {
    SCOPED_TRACE(wait);
    int code = 0;
    const Fid<fid_cntr> c = open(wait, &code);
    if (c == nullptr) {
      EXPECT_TRUE(refuses_wait_object(code)) << code;
      EXPECT_NE(wait, FI_WAIT_UNSPEC);
      continue;
    }
    ASSERT_EQ(fi_cntr_add(c.get(), 4), 0);
    EXPECT_EQ(fi_cntr_wait(c.get(), 4, 1000), 0);
    EXPECT_EQ(fi_cntr_wait(c.get(), 1, 1000), 0);
    const int64_t start = now_ns();
    EXPECT_EQ(fi_cntr_wait(c.get(), 5, 40), -FI_ETIMEDOUT);
    EXPECT_GE(now_ns() - start, 35'000'000);
    std::thread adder([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fi_cntr_add(c.get(), 1);
    });
    EXPECT_EQ(fi_cntr_wait(c.get(), 5, 8000), 0);
    adder.join();
  }
}

TEST_F(Cntr, an_error_ends_a_wait) {
  for (const fi_wait_obj wait : {FI_WAIT_UNSPEC, FI_WAIT_NONE}) {
    const Fid<fid_cntr> c = open(wait);
    std::thread breaker([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fi_cntr_adderr(c.get(), 1);
    });
    const int64_t start = now_ns();
    const int r = fi_cntr_wait(c.get(), 5, 8000);
    breaker.join();
    EXPECT_EQ(r, -FI_EAVAIL);
    EXPECT_LT(now_ns() - start, 4'000'000'000);
  }
}

TEST_F(Cntr, bad_attributes_are_refused) {
  if (!on_aperture()) GTEST_SKIP() << "others let it pass";
  fi_cntr_attr attr{};
  attr.flags = 1;
  EXPECT_EQ(code_of(fi_cntr_open, node.domain(), &attr), -FI_EBADFLAGS);
  attr = {.events = no_such_value<fi_cntr_events>(55)};
  EXPECT_LT(code_of(fi_cntr_open, node.domain(), &attr), 0);
  attr = {.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_SET};
  EXPECT_LT(code_of(fi_cntr_open, node.domain(), &attr), 0) << "without its wait set";
}

TEST(CntrBound, messages_and_rma_move_the_counters_of_their_kind) {
  NodePair p({.counters = true});
  Region region(p.b, 100);
  uint8_t in[10], out[10] = {};
  Op receive, op;
  for (uint64_t i = 1; i <= 10; ++i) {
    ASSERT_EQ(fi_recv(p.b.ep(), in, 10, nullptr, FI_ADDR_UNSPEC, &receive), 0);
    ASSERT_EQ(p.a.post(fi_send, out, 10, nullptr, p.to_b, &op), 0);
    ASSERT_EQ(p.b.wait(&receive).err, 0);
    ASSERT_EQ(p.a.wait(&op).err, 0);
    EXPECT_EQ(fi_cntr_read(p.b.rx_cntr()), i);
    EXPECT_EQ(fi_cntr_read(p.a.tx_cntr()), i);
  }
  ASSERT_EQ(p.a.run(fi_write, out, 10, nullptr, p.to_b, region.remote().base, region.remote().key),
            0);
  EXPECT_EQ(fi_cntr_read(p.a.tx_cntr()), 11u);
  EXPECT_EQ(fi_cntr_read(p.a.rx_cntr()), 0u);
  EXPECT_EQ(fi_cntr_read(p.b.tx_cntr()), 0u);
}

TEST(CntrBound, injected_messages_count_too) {
  NodePair p({.counters = true});
  ASSERT_EQ(p.pass("x").err, 0);
  EXPECT_TRUE(pump_until([&] { return fi_cntr_read(p.a.tx_cntr()) == 1; }, 2000));
}

TEST(CntrBound, errors_move_the_error_value) {
  NodePair p({.counters = true});
  ASSERT_EQ(p.pass("xy").err, FI_ETRUNC);
  EXPECT_EQ(fi_cntr_readerr(p.b.rx_cntr()), 1u);
  EXPECT_EQ(fi_cntr_read(p.b.rx_cntr()), 0u);
}

TEST(CntrBound, waiting_drives_the_endpoint) {
  NodePair p({.counters = true});
  uint8_t in = 0;
  Op receive;
  // connected first: the sender is not progressed below
  ASSERT_EQ(p.pass("h").err, 0);
  ASSERT_EQ(fi_recv(p.b.ep(), &in, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(p.a.post(fi_inject, "x", 1, p.to_b), 0);
  EXPECT_EQ(fi_cntr_wait(p.b.rx_cntr(), 2, 5000), 0);
  EXPECT_EQ(in, 'x');
}

// In the domain of that node, with its vector and queue, and with a counter of its receives.
Fid<fid_ep> another_endpoint(Node& node, fid_cntr* received) {
  Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, node.domain(), node.info());
  DOOR(fi_ep_bind(ep.get(), &node.av()->fid, 0));
  DOOR(fi_ep_bind(ep.get(), &node.cq()->fid, FI_TRANSMIT | FI_RECV));
  DOOR(fi_ep_bind(ep.get(), &received->fid, FI_RECV));
  DOOR(fi_enable(ep.get()));
  return ep;
}

TEST(CntrBound, waiting_without_a_wait_object_drives_the_endpoint) {
  NodePair p;
  fi_cntr_attr attr{.events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE};
  const Fid<fid_cntr> c = DOOR_MADE(fi_cntr_open, p.b.domain(), &attr);
  const Fid<fid_ep> ep = another_endpoint(p.b, c.get());
  const fi_addr_t to = p.a.insert(name_of(&ep->fid));
  uint8_t in[2] = {};
  Op receives[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_recv(ep.get(), &in[i], 1, nullptr, FI_ADDR_UNSPEC, &receives[i]), 0);
  }
  ASSERT_EQ(p.a.post(fi_inject, "x", 1, to), 0);
  ASSERT_EQ(p.b.wait(&receives[0]).err, 0);  // connected: the sender is not progressed below
  ASSERT_EQ(p.a.post(fi_inject, "y", 1, to), 0);
  EXPECT_EQ(fi_cntr_wait(c.get(), 2, 5000), 0);
  EXPECT_EQ(in[1], 'y');
}

// fi_endpoint(3), fi_enable: what an endpoint counts with it is bound to before.
TEST(CntrBound, is_bound_before_the_endpoint_is_enabled_and_refused_after) {
  NodePair p;
  fi_cntr_attr attr{.events = FI_CNTR_EVENTS_COMP};
  const Fid<fid_cntr> early = DOOR_MADE(fi_cntr_open, p.b.domain(), &attr);
  const Fid<fid_cntr> late = DOOR_MADE(fi_cntr_open, p.b.domain(), &attr);
  const Fid<fid_ep> ep = another_endpoint(p.b, early.get());
  for (const uint64_t kind : {FI_SEND, FI_RECV, FI_READ, FI_WRITE}) {
    EXPECT_EQ(fi_ep_bind(ep.get(), &late->fid, kind), -FI_EOPBADSTATE) << kind;
  }
  // the one that was there goes on counting, the other is nobody's
  const fi_addr_t to = p.a.insert(name_of(&ep->fid));
  uint8_t in = 0;
  Op receive;
  ASSERT_EQ(fi_recv(ep.get(), &in, 1, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  ASSERT_EQ(p.a.post(fi_inject, "x", 1, to), 0);
  ASSERT_EQ(p.b.wait(&receive).err, 0);
  EXPECT_EQ(fi_cntr_read(early.get()), 1u);
  EXPECT_EQ(fi_cntr_read(late.get()), 0u);
  EXPECT_EQ(fi_cntr_readerr(late.get()), 0u);
}

TEST(CntrBound, cannot_be_closed_while_an_endpoint_uses_it) {
  Node node({.counters = true});
  EXPECT_EQ(fi_close(&node.tx_cntr()->fid), -FI_EBUSY);
}

}  // namespace
}  // namespace aperture::doors
