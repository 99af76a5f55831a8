// FI_SELECTIVE_COMPLETION on both bindings, FI_COMPLETION by call and by default, and FI_INJECT:
// which successes are told, and that errors always are. fi_endpoint(3), "fi_ep_bind" and
// "OPERATION FLAGS"; fi_msg(3), fi_tagged(3), fi_rma(3).
#include <gtest/gtest.h>

#include "doors/region.hpp"

namespace aperture::doors {
namespace {

Options selective(uint64_t tx_op_flags = 0, uint64_t rx_op_flags = 0) {
  return {.cq_flags = FI_SELECTIVE_COMPLETION,
          .tx_op_flags = tx_op_flags,
          .rx_op_flags = rx_op_flags,
          .counters = true};
}

// Every way to post, as one list: from `a` to `b`.
class Selective : public testing::Test {
 protected:
  void open(const Options& options) {
    region.reset();  // before the domain that it is in
    pair = std::make_unique<NodePair>(options);
    region = std::make_unique<Region>(pair->b, 64);
  }
  // Sends without flags, one of each kind; returns how many.
  int send_plain(void* context) {
    fid_ep* ep = pair->a.ep();
    iovec iov{out, 8};
    const Remote& r = region->remote();
    int n = 0;
    const auto go = [&](const std::function<ssize_t()>& call) {
      EXPECT_EQ(post(call), 0);
      ++n;
    };
    go([&] { return fi_send(ep, out, 8, nullptr, pair->to_b, context); });
    go([&] { return fi_sendv(ep, &iov, nullptr, 1, pair->to_b, context); });
    go([&] { return fi_senddata(ep, out, 8, nullptr, 5, pair->to_b, context); });
    go([&] { return fi_tsend(ep, out, 8, nullptr, pair->to_b, 1, context); });
    go([&] { return fi_tsendv(ep, &iov, nullptr, 1, pair->to_b, 1, context); });
    go([&] { return fi_tsenddata(ep, out, 8, nullptr, 5, pair->to_b, 1, context); });
    go([&] { return fi_write(ep, out, 8, nullptr, pair->to_b, r.base, r.key, context); });
    go([&] { return fi_writev(ep, &iov, nullptr, 1, pair->to_b, r.base, r.key, context); });
    go([&] { return fi_read(ep, out, 8, nullptr, pair->to_b, r.base, r.key, context); });
    go([&] { return fi_readv(ep, &iov, nullptr, 1, pair->to_b, r.base, r.key, context); });
    return n;
  }
  int send_msg(void* context, uint64_t flags) {
    fid_ep* ep = pair->a.ep();
    iovec iov{out, 8};
    fi_rma_iov range{region->remote().base, 8, region->remote().key};
    const fi_msg m{&iov, nullptr, 1, pair->to_b, context, 0};
    const fi_msg_tagged t{&iov, nullptr, 1, pair->to_b, 1, 0, context, 0};
    const fi_msg_rma r{&iov, nullptr, 1, pair->to_b, &range, 1, context, 0};
    EXPECT_EQ(post(fi_sendmsg, ep, &m, flags), 0);
    EXPECT_EQ(post(fi_tsendmsg, ep, &t, flags), 0);
    EXPECT_EQ(post(fi_writemsg, ep, &r, flags), 0);
    EXPECT_EQ(post(fi_readmsg, ep, &r, flags & ~uint64_t{FI_INJECT}), 0);
    return 4;
  }
  void expect_told(const void* context, int n) {
    for (int i = 0; i < n; ++i) ASSERT_EQ(pair->a.wait(context).err, 0) << i << " of " << n;
    EXPECT_FALSE(pair->a.take(context).has_value());
  }
  void expect_counted(uint64_t n) {
    EXPECT_TRUE(pump_until([&] { return fi_cntr_read(pair->a.tx_cntr()) == n; }, 5000))
        << fi_cntr_read(pair->a.tx_cntr()) << " instead of " << n;
  }
  void expect_quiet() {
    pump_for(20);
    EXPECT_TRUE(pair->a.done().empty());
  }
  std::unique_ptr<NodePair> pair;
  std::unique_ptr<Region> region;
  uint8_t out[8] = {1, 2, 3};
  Op op, other;
};

TEST_F(Selective, without_it_every_success_is_told_whatever_the_flags) {
  Options options = selective();
  options.cq_flags = 0;
  open(options);
  expect_told(&op, send_plain(&op));
  expect_told(&op, send_msg(&op, 0));
  expect_told(&op, send_msg(&op, FI_COMPLETION));
  expect_quiet();
}

TEST_F(Selective, transmits_are_told_only_where_they_ask) {
  open(selective());
  uint64_t n = send_plain(&other);
  n += send_msg(&other, 0);
  n += send_msg(&op, FI_COMPLETION);
  expect_told(&op, 4);
  expect_counted(n);
  expect_quiet();
}

TEST_F(Selective, a_default_of_the_endpoint_asks_for_calls_without_flags_alone) {
  open(selective(FI_COMPLETION));
  const int n = send_plain(&op);
  expect_told(&op, n);
  send_msg(&other, 0);
  expect_counted(n + 4);
  expect_quiet();
}

TEST_F(Selective, a_default_that_is_set_later_counts_from_then_on) {
  open(selective());
  uint64_t flags = FI_TRANSMIT | FI_COMPLETION;
  ASSERT_EQ(fi_control(&pair->a.ep()->fid, FI_SETOPSFLAG, &flags), 0);
  expect_told(&op, send_plain(&op));
  flags = FI_TRANSMIT;
  ASSERT_EQ(fi_control(&pair->a.ep()->fid, FI_SETOPSFLAG, &flags), 0);
  const int n = send_plain(&other);
  expect_counted(2 * n);
  expect_quiet();
}

TEST_F(Selective, inject_is_never_told_and_the_flag_is_not_the_call) {
  for (const bool with_selection : {false, true}) {
    Options options = selective();
    if (!with_selection) options.cq_flags = 0;
    open(options);
    fid_ep* ep = pair->a.ep();
    const Remote& r = region->remote();
    EXPECT_EQ(post(fi_inject, ep, out, 8, pair->to_b), 0);
    EXPECT_EQ(post(fi_injectdata, ep, out, 8, 5, pair->to_b), 0);
    EXPECT_EQ(post(fi_tinject, ep, out, 8, pair->to_b, 1), 0);
    EXPECT_EQ(post(fi_tinjectdata, ep, out, 8, 5, pair->to_b, 1), 0);
    EXPECT_EQ(post(fi_inject_write, ep, out, 8, pair->to_b, r.base, r.key), 0);
    EXPECT_EQ(post(fi_inject_writedata, ep, out, 8, 5, pair->to_b, r.base, r.key), 0);
    expect_counted(6);
    expect_quiet();
    // FI_INJECT as a flag: the buffer is free, and the completion as asked for
    send_msg(&op, FI_INJECT | FI_COMPLETION);
    std::fill(std::begin(out), std::end(out), uint8_t{0xEE});
    expect_told(&op, 4);
    expect_quiet();
  }
}

TEST_F(Selective, receives_are_told_only_where_they_ask) {
  open(selective());
  fid_ep* ep = pair->b.ep();
  uint8_t in[4][8];
  iovec iov{in[1], 8};
  Op quiet, loud;
  const fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &loud, 0};
  ASSERT_EQ(fi_recv(ep, in[0], 8, nullptr, FI_ADDR_UNSPEC, &quiet), 0);
  ASSERT_EQ(fi_recvmsg(ep, &m, FI_COMPLETION), 0);
  iovec iov3{in[3], 8};
  const fi_msg_tagged t{&iov3, nullptr, 1, FI_ADDR_UNSPEC, 1, 0, &loud, 0};
  ASSERT_EQ(fi_trecv(ep, in[2], 8, nullptr, FI_ADDR_UNSPEC, 1, 0, &quiet), 0);
  ASSERT_EQ(fi_trecvmsg(ep, &t, FI_COMPLETION), 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(pair->a.post(fi_inject, out, 8, pair->to_b), 0);
    ASSERT_EQ(pair->a.post(fi_tinject, out, 8, pair->to_b, 1), 0);
  }
  EXPECT_EQ(pair->b.wait(&loud).err, 0);
  EXPECT_EQ(pair->b.wait(&loud).err, 0);
  EXPECT_TRUE(pump_until([&] { return fi_cntr_read(pair->b.rx_cntr()) == 4; }, 5000));
  pump_for(10);
  EXPECT_TRUE(pair->b.done().empty());
  for (const auto& each : in) EXPECT_EQ(each[1], 2);
}

TEST_F(Selective, a_default_of_receives_asks_too) {
  open(selective(0, FI_COMPLETION));
  uint8_t in[8];
  ASSERT_EQ(fi_recv(pair->b.ep(), in, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
  ASSERT_EQ(pair->a.post(fi_inject, out, 8, pair->to_b), 0);
  EXPECT_EQ(pair->b.wait(&op).err, 0);
}

TEST_F(Selective, errors_are_told_always) {
  open(selective());
  const Remote& r = region->remote();
  ASSERT_EQ(pair->a.run(fi_write, out, 8, nullptr, pair->to_b, r.base + 60, r.key), FI_EACCES);
  ASSERT_EQ(pair->a.run(fi_read, out, 8, nullptr, pair->to_b, r.base, r.key + 1), FI_EACCES);
  EXPECT_EQ(fi_cntr_readerr(pair->a.tx_cntr()), 2u);
  uint8_t in[4];
  ASSERT_EQ(fi_recv(pair->b.ep(), in, 4, nullptr, FI_ADDR_UNSPEC, &op), 0);
  ASSERT_EQ(pair->a.post(fi_inject, out, 8, pair->to_b), 0);
  EXPECT_EQ(pair->b.wait(&op).err, FI_ETRUNC);
  ASSERT_EQ(fi_trecv(pair->b.ep(), in, 4, nullptr, FI_ADDR_UNSPEC, 9, 0, &op), 0);
  ASSERT_EQ(fi_cancel(&pair->b.ep()->fid, &op), 0);
  EXPECT_EQ(pair->b.wait(&op).err, FI_ECANCELED);
  EXPECT_EQ(fi_cntr_readerr(pair->b.rx_cntr()), 2u);
}

TEST_F(Selective, data_of_a_write_is_told_to_its_target_always) {
  open(selective());
  const Remote& r = region->remote();
  ASSERT_EQ(pair->a.post(fi_inject_writedata, out, 8, 0x77, pair->to_b, r.base, r.key), 0);
  const Completion c = pair->b.wait(nullptr);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.data, 0x77u);
}

TEST_F(Selective, one_direction_may_be_selective_alone) {
  Options options = selective();
  options.cq_flags = 0;
  options.enable = false;
  Node host(options);
  fi_cq_attr attr{.format = FI_CQ_FORMAT_TAGGED};
  const Fid<fid_cq> tx = DOOR_MADE(fi_cq_open, host.domain(), &attr);
  const Fid<fid_cq> rx = DOOR_MADE(fi_cq_open, host.domain(), &attr);
  const Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, host.domain(), host.info());
  fid_ep* made = ep.get();
  ASSERT_EQ(fi_ep_bind(made, &host.av()->fid, 0), 0);
  EXPECT_LT(fi_ep_bind(made, &tx->fid, FI_SELECTIVE_COMPLETION), 0) << "of which direction?";
  ASSERT_EQ(fi_ep_bind(made, &tx->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION), 0);
  ASSERT_EQ(fi_ep_bind(made, &rx->fid, FI_RECV), 0);
  ASSERT_EQ(fi_enable(made), 0);
  const fi_addr_t self = host.insert(name_of(&made->fid));
  uint8_t in[8];
  ASSERT_EQ(fi_recv(made, in, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
  ASSERT_EQ(post(fi_send, made, out, 8, nullptr, self, &other), 0);
  fi_cq_tagged_entry entry{};
  ASSERT_TRUE(pump_until([&] { return fi_cq_read(rx.get(), &entry, 1) == 1; }));
  EXPECT_EQ(entry.op_context, &op);
  EXPECT_EQ(fi_cq_read(tx.get(), &entry, 1), -FI_EAGAIN);
}

}  // namespace
}  // namespace aperture::doors
