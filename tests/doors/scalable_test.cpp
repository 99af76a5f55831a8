// Scalable endpoints: one address, several transmit and receive contexts. fi_endpoint(3), "SCALABLE
// ENDPOINTS", and fi_rx_addr of fi_av(3).
#include <gtest/gtest.h>
#include <rdma/fi_trigger.h>

#include "doors/child.hpp"
#include "doors/contexts.hpp"
#include "doors/payload.hpp"
#include "doors/shown.hpp"
#include "doors/side.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kContexts = 3;
constexpr int kBits = 2;
constexpr uint64_t kCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_SOURCE | FI_NAMED_RX_CTX;

HubOptions scalable(uint64_t caps = kCaps) {
  return {.caps = caps, .tx_contexts = kContexts, .rx_contexts = kContexts, .rx_ctx_bits = kBits};
}

// A scalable endpoint with all its contexts.
class Scalable : public Hub {
 public:
  explicit Scalable(const HubOptions& options = scalable()) : Hub(options) {
    sep = DOOR_MADE(fi_scalable_ep, domain_, info_.get(), this);
    for (auto& ep : tx) ep = open(fi_tx_context, &ep - tx);
    for (auto& ep : rx) ep = open(fi_rx_context, &ep - rx);
    DOOR(fi_scalable_ep_bind(sep.get(), &av()->fid, 0));
    for (auto& ep : tx) enable(ep.get(), FI_TRANSMIT);
    for (auto& ep : rx) enable(ep.get(), FI_RECV);
    DOOR(fi_enable(sep.get()));
  }
  template <typename Attr>
  Fid<fid_ep> open(int (*call)(fid_ep*, int, Attr*, fid_ep**, void*), int64_t index) {
    fid_ep* ep = nullptr;
    DOOR(call(sep.get(), static_cast<int>(index), nullptr, &ep, this));
    return Fid<fid_ep>(ep);
  }
  void enable(fid_ep* ep, uint64_t side) {
    DOOR(fi_ep_bind(ep, &cq()->fid, side));
    DOOR(fi_enable(ep));
  }
  std::vector<uint8_t> name() { return name_of(&sep->fid); }

  Fid<fid_ep> sep;
  Fid<fid_ep> tx[kContexts], rx[kContexts];
};

// Answers each message of `peer` at a receive context from the transmit context of that number, to
// the receive context of that number.
DOOR_ROLE(scalable_echo) {
  Scalable s;
  Name peer;
  if (!control.put(Name(s.name())) || !control.get(&peer)) return 1;
  const fi_addr_t to = s.insert(peer);
  Op ops[kContexts], sent[kContexts];
  uint64_t box[kContexts] = {};
  for (size_t i = 0; i < kContexts; ++i) {
    DOOR(fi_recv(s.rx[i].get(), &box[i], 8, nullptr, FI_ADDR_UNSPEC, &ops[i]));
  }
  for (size_t i = 0; i < kContexts; ++i) {
    const Completion c = s.wait(&ops[i]);
    if (c.err != 0 || c.source != to) return 2;
    ++box[i];
    const fi_addr_t there = fi_rx_addr(to, static_cast<int>(i), kBits);
    if (post(fi_send, s.tx[i].get(), &box[i], 8, nullptr, there, &sent[i]) != 0) return 3;
  }
  for (Op& op : sent) {
    if (s.wait(&op).err != 0) return 4;
  }
  char over = 0;
  return control.get(&over) ? 0 : 5;
}

TEST(ScalableEndpoint, contexts_of_two_processes_talk_pair_by_pair) {
  Child child("scalable_echo");
  Scalable s;
  EXPECT_EQ(s.sep->fid.fclass, static_cast<size_t>(FI_CLASS_SEP));
  EXPECT_EQ(s.tx[0]->fid.fclass, static_cast<size_t>(FI_CLASS_TX_CTX));
  EXPECT_EQ(s.rx[0]->fid.fclass, static_cast<size_t>(FI_CLASS_RX_CTX));
  EXPECT_EQ(name_of(&s.tx[1]->fid), s.name()) << "one address for all";
  EXPECT_EQ(name_of(&s.rx[2]->fid), s.name());
  Name peer;
  ASSERT_TRUE(child.control().get(&peer));
  const fi_addr_t to = s.insert(peer);
  ASSERT_TRUE(child.control().put(Name(s.name())));
  uint64_t box[kContexts] = {};
  Op in[kContexts], out[kContexts];
  for (size_t i = 0; i < kContexts; ++i) {
    ASSERT_EQ(fi_recv(s.rx[i].get(), &box[i], 8, nullptr, FI_ADDR_UNSPEC, &in[i]), 0);
  }
  uint64_t words[kContexts] = {100, 200, 300};
  for (size_t i = 0; i < kContexts; ++i) {
    const fi_addr_t there = fi_rx_addr(to, static_cast<int>(i), kBits);
    ASSERT_EQ(post(fi_send, s.tx[i].get(), &words[i], 8, nullptr, there, &out[i]), 0);
  }
  for (size_t i = 0; i < kContexts; ++i) {
    EXPECT_EQ(s.wait(&out[i]).err, 0);
    const Completion c = s.wait(&in[i]);
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.source, to) << "the endpoint's address, whichever context it came from";
    EXPECT_EQ(box[i], words[i] + 1);
  }
  EXPECT_TRUE(child.control().put('.'));
  EXPECT_EQ(child.join(), 0);
}

class ScalableAndOrdinary : public testing::Test {
 protected:
  ScalableAndOrdinary() {
    peer_name = peer.open({.caps = kUsualCaps | FI_SOURCE, .rx_ctx_bits = kBits});
    to = peer.insert(s.name());
  }
  Scalable s;
  RemoteSide peer;
  std::vector<uint8_t> peer_name;
  fi_addr_t to = FI_ADDR_UNSPEC;
};

TEST_F(ScalableAndOrdinary, an_endpoint_reaches_the_first_context_by_the_address_alone) {
  uint64_t box[2] = {};
  Op first, named;
  ASSERT_EQ(fi_recv(s.rx[0].get(), &box[0], 8, nullptr, FI_ADDR_UNSPEC, &first), 0);
  ASSERT_EQ(fi_recv(s.rx[2].get(), &box[1], 8, nullptr, FI_ADDR_UNSPEC, &named), 0);
  peer.send(1, to, 8, 1);
  EXPECT_EQ(s.wait(&first).err, 0);
  peer.send(2, fi_rx_addr(to, 2, kBits), 8, 2);
  EXPECT_EQ(s.wait(&named).err, 0);
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[0]), 8}, 1));
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[1]), 8}, 2));
  EXPECT_EQ(peer.wait(1).err, 0);
  EXPECT_EQ(peer.wait(2).err, 0);
}

TEST_F(ScalableAndOrdinary, transmit_contexts_reach_an_endpoint_and_its_memory) {
  const fi_addr_t there = s.insert(peer_name);
  const Remote remote = peer.region_open(1, kMiB, FI_REMOTE_WRITE, 0);
  for (uint32_t i = 0; i < kContexts; ++i) {
    std::vector<uint8_t> out(i == 1 ? kMiB : 8);
    fill(out, i);
    Op sent, written;
    peer.receive(10 + i, out.size());
    fid_ep* const ep = s.tx[i].get();
    ASSERT_EQ(post(fi_send, ep, out.data(), out.size(), nullptr, there, &sent), 0);
    EXPECT_EQ(peer.wait(10 + i).source, to);
    EXPECT_TRUE(peer.verify(10 + i, out.size(), i));
    EXPECT_EQ(s.wait(&sent).err, 0);
    ASSERT_EQ(post(fi_write, ep, out.data(), out.size(), nullptr, there, remote.base, remote.key,
                   &written),
              0);
    EXPECT_EQ(s.wait(&written).err, 0);
  }
}

TEST_F(ScalableAndOrdinary, memory_is_reached_through_each_receive_context) {
  std::vector<uint8_t> memory(64);
  const Fid<fid_mr> mr = registered(s.domain(), memory.data(), memory.size(), FI_REMOTE_WRITE, 7);
  const Remote remote{.key = fi_mr_key(mr.get()), .size = 64};
  for (uint32_t i = 0; i < kContexts; ++i) {
    peer.write(i, fi_rx_addr(to, static_cast<int>(i), kBits), 8, i + 1, remote, i * 8);
    EXPECT_EQ(peer.wait(i).err, 0);
    EXPECT_FALSE(first_difference({memory.data() + i * 8, 8}, i + 1));
  }
  const Remote wrong{.key = remote.key + 1, .size = 64};
  peer.write(9, fi_rx_addr(to, 1, kBits), 8, 9, wrong);
  EXPECT_EQ(peer.wait(9).err, FI_EACCES);
}

TEST_F(ScalableAndOrdinary, a_context_that_is_closed_is_reached_no_more_and_the_others_are) {
  s.rx[1].reset();
  uint64_t box = 0;
  Op op;
  ASSERT_EQ(fi_recv(s.rx[2].get(), &box, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
  peer.send(1, fi_rx_addr(to, 2, kBits), 8, 1);
  EXPECT_EQ(s.wait(&op).err, 0);
  peer.send(2, fi_rx_addr(to, 1, kBits), 8, 2);
  EXPECT_NE(peer.wait(2).err, 0);
  // opened again, it is
  s.rx[1] = s.open(fi_rx_context, 1);
  s.enable(s.rx[1].get(), FI_RECV);
  Op again;
  ASSERT_EQ(fi_recv(s.rx[1].get(), &box, 8, nullptr, FI_ADDR_UNSPEC, &again), 0);
  peer.send(3, fi_rx_addr(to, 1, kBits), 8, 3);
  EXPECT_EQ(s.wait(&again).err, 0);
}

TEST(ScalableEndpoint, without_named_contexts_only_the_first_is_reached) {
  Scalable s(scalable(kCaps & ~FI_NAMED_RX_CTX));
  RemoteSide peer;
  peer.open({.caps = kUsualCaps, .rx_ctx_bits = kBits});
  const fi_addr_t to = peer.insert(s.name());
  uint64_t box = 0;
  Op op;
  ASSERT_EQ(fi_recv(s.rx[0].get(), &box, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
  peer.send(1, to, 8, 1);
  EXPECT_EQ(s.wait(&op).err, 0);
  peer.send(2, fi_rx_addr(to, 1, kBits), 8, 2);
  EXPECT_NE(peer.wait(2).err, 0);
}

TEST(ScalableEndpoint, operations_of_its_contexts_wait_for_counters) {
  Scalable s(scalable(kCaps | FI_TRIGGER));
  const fi_addr_t self = s.insert(s.name());
  const Fid<fid_cntr> counter = open_counter(s.domain()), done = open_counter(s.domain());
  fi_triggered_context2 at[2]{};
  for (auto& context : at) {
    context.event_type = FI_TRIGGER_THRESHOLD;
    context.trigger.threshold = {counter.get(), 1};
  }
  uint64_t in = 0, out = 7;
  iovec to{&in, 8}, from{&out, 8};
  const fi_addr_t there = fi_rx_addr(self, 1, kBits);
  const fi_msg recv{&to, nullptr, 1, FI_ADDR_UNSPEC, &at[0], 0};
  const fi_msg send{&from, nullptr, 1, there, &at[1], 0};
  ASSERT_EQ(fi_recvmsg(s.rx[1].get(), &recv, FI_TRIGGER), 0);
  ASSERT_EQ(fi_sendmsg(s.tx[2].get(), &send, FI_TRIGGER), 0);
  Op op, next;
  fi_op_msg again{s.tx[0].get(), {&from, nullptr, 1, there, &op, 0}, 0};
  fi_deferred_work work{};
  work.threshold = 2;
  work.triggering_cntr = counter.get();
  work.completion_cntr = done.get();
  work.op_type = FI_OP_SEND;
  work.op.msg = &again;
  ASSERT_EQ(fi_control(&s.domain()->fid, FI_QUEUE_WORK, &work), 0);
  pump_for(20);
  EXPECT_FALSE(s.take(&at[0]));
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(s.wait(&at[0]).err, 0);
  EXPECT_EQ(s.wait(&at[1]).err, 0);
  EXPECT_EQ(in, 7u);
  out = 8;
  ASSERT_EQ(fi_recv(s.rx[1].get(), &in, 8, nullptr, FI_ADDR_UNSPEC, &next), 0);
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(s.wait(&next).err, 0);
  EXPECT_EQ(in, 8u);
  EXPECT_TRUE(pump_until([&] { return fi_cntr_read(done.get()) == 1; }, 5000));
}

TEST(ScalableEndpoint, its_receive_contexts_show_messages_in_place_of_receiving_them) {
  HubOptions options = scalable();
  options.mode |= kBufferedRecv;
  Scalable s(options);
  const fi_addr_t there = fi_rx_addr(s.insert(s.name()), 2, kBits);
  uint64_t out = 7, in = 0;
  EXPECT_EQ(fi_recv(s.rx[2].get(), &in, 8, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EOPNOTSUPP);
  ASSERT_EQ(post(fi_inject, s.tx[1].get(), &out, 8, there), 0);
  ASSERT_TRUE(pump_until([&] { return !s.done().empty(); }, 5000));
  const Sight sight{s.done().front()};
  s.done().pop_front();
  ASSERT_EQ(sight.err, 0);
  EXPECT_EQ(sight.recv_context()->ep, s.rx[2].get()) << "the context that it came to";
  Op mine;
  iovec iov{&in, 8};
  ASSERT_EQ(end_sight(s.rx[2].get(), sight, FI_CLAIM, &mine, &iov), 0);
  EXPECT_EQ(s.wait(&mine).err, 0);
  EXPECT_EQ(in, 7u);
}

TEST(ScalableEndpoint, is_closed_after_its_contexts_and_those_in_any_order) {
  Scalable s;
  EXPECT_EQ(fi_close(&s.sep->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&s.av()->fid), -FI_EBUSY);
  s.rx[0].reset();
  for (auto& ep : s.tx) ep.reset();
  EXPECT_EQ(fi_close(&s.sep->fid), -FI_EBUSY);
  s.rx[2].reset();
  s.rx[1].reset();
  EXPECT_EQ(fi_close(&s.sep.release()->fid), 0);
}

TEST(ScalableEndpoint, what_does_not_go_together_is_refused) {
  Hub hub(scalable());
  EXPECT_EQ(code_of(fi_endpoint, hub.domain(), hub.info()), -FI_EINVAL)
      << "it is opened with fi_scalable_ep";
  Fid<fid_ep> sep = DOOR_MADE(fi_scalable_ep, hub.domain(), hub.info());
  EXPECT_EQ(fi_send(sep.get(), "x", 1, nullptr, 0, nullptr), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_ep_bind(sep.get(), &hub.cq()->fid, FI_TRANSMIT), -FI_EINVAL);
  EXPECT_EQ(fi_enable(sep.get()), -FI_ENOAV);

  fid_ep* raw = nullptr;
  EXPECT_EQ(fi_tx_context(sep.get(), -1, nullptr, &raw, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_tx_context(sep.get(), kContexts, nullptr, &raw, nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_rx_context(sep.get(), kContexts, nullptr, &raw, nullptr), -FI_EINVAL);
  fi_tx_attr more{.caps = FI_ATOMIC};
  EXPECT_EQ(fi_tx_context(sep.get(), 0, &more, &raw, nullptr), -FI_EINVAL)
      << "the endpoint was not opened with it";
  more = {.inject_size = SIZE_MAX};
  EXPECT_EQ(fi_tx_context(sep.get(), 0, &more, &raw, nullptr), -FI_EINVAL);
  more = {.op_flags = FI_MULTICAST};
  EXPECT_EQ(fi_tx_context(sep.get(), 0, &more, &raw, nullptr), -FI_EBADFLAGS);
  fi_rx_attr beyond{.caps = FI_MULTI_RECV};
  EXPECT_EQ(fi_rx_context(sep.get(), 0, &beyond, &raw, nullptr), -FI_EINVAL);
  EXPECT_EQ(raw, nullptr);

  fi_tx_attr less{.caps = FI_MSG};
  ASSERT_EQ(fi_tx_context(sep.get(), 0, &less, &raw, nullptr), 0);
  Fid<fid_ep> tx(raw);
  EXPECT_EQ(less.caps, FI_MSG | FI_SEND) << "the attributes that it has got";
  EXPECT_GT(less.size, 0u);
  EXPECT_EQ(fi_tx_context(sep.get(), 0, nullptr, &raw, nullptr), -FI_EBUSY) << "twice";
  ASSERT_EQ(fi_rx_context(sep.get(), 1, nullptr, &raw, nullptr), 0);
  Fid<fid_ep> rx(raw);
  EXPECT_EQ(fi_ep_bind(tx.get(), &hub.cq()->fid, FI_RECV), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(rx.get(), &hub.cq()->fid, FI_TRANSMIT), -FI_EINVAL);
  EXPECT_EQ(fi_ep_bind(tx.get(), &hub.av()->fid, 0), -FI_EINVAL) << "the endpoint's";
  EXPECT_EQ(fi_enable(tx.get()), -FI_ENOAV) << "the endpoint has none";
  ASSERT_EQ(fi_scalable_ep_bind(sep.get(), &hub.av()->fid, 0), 0);
  EXPECT_EQ(fi_enable(tx.get()), -FI_ENOCQ);
  ASSERT_EQ(fi_ep_bind(tx.get(), &hub.cq()->fid, FI_TRANSMIT), 0);
  ASSERT_EQ(fi_ep_bind(rx.get(), &hub.cq()->fid, FI_RECV), 0);
  EXPECT_EQ(fi_enable(tx.get()), 0);
  EXPECT_EQ(fi_enable(rx.get()), 0);
  EXPECT_EQ(fi_scalable_ep_bind(sep.get(), &hub.av()->fid, 0), -FI_EOPBADSTATE);
  uint64_t box = 0;
  EXPECT_EQ(fi_recv(tx.get(), &box, 8, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_send(rx.get(), &box, 8, nullptr, 0, nullptr), -FI_EOPNOTSUPP);
  EXPECT_EQ(fi_tsend(tx.get(), &box, 8, nullptr, 0, 1, nullptr), -FI_EOPNOTSUPP)
      << "the context has less than the endpoint";

  EXPECT_THROW(Hub::ask(scalable(kCaps | FI_COLLECTIVE)), DoorError);
  const Info collective = Hub::ask({.caps = FI_MSG | FI_COLLECTIVE});
  EXPECT_EQ(code_of(fi_scalable_ep, hub.domain(), collective.get()), -FI_EINVAL)
      << "a context is no member of a group";

  Node plain;
  EXPECT_LT(fi_tx_context(plain.ep(), 0, nullptr, &raw, nullptr), 0);
  fi_av_attr attr{.rx_ctx_bits = 33};
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_EINVAL);
  attr.rx_ctx_bits = -1;
  EXPECT_EQ(code_of(fi_av_open, hub.domain(), &attr), -FI_EINVAL);
}

TEST(ScalableEndpoint, an_address_that_names_too_high_a_context_is_refused) {
  Scalable s;
  const fi_addr_t self = s.insert(s.name());
  uint64_t word = 0;
  fi_av_attr attr{.type = FI_AV_TABLE, .rx_ctx_bits = 8};
  Fid<fid_av> av = DOOR_MADE(fi_av_open, s.domain(), &attr);
  Fid<fid_ep> ep = DOOR_MADE(fi_scalable_ep, s.domain(), s.info());
  ASSERT_EQ(fi_scalable_ep_bind(ep.get(), &av->fid, 0), 0);
  fid_ep* raw = nullptr;
  ASSERT_EQ(fi_tx_context(ep.get(), 0, nullptr, &raw, nullptr), 0);
  Fid<fid_ep> tx(raw);
  s.enable(tx.get(), FI_TRANSMIT);
  fi_addr_t to = FI_ADDR_NOTAVAIL;
  ASSERT_EQ(fi_av_insert(av.get(), s.name().data(), 1, &to, 0, nullptr), 1);
  EXPECT_EQ(to, self);
  EXPECT_EQ(fi_send(tx.get(), &word, 8, nullptr, fi_rx_addr(to, 200, 8), nullptr), -FI_EINVAL);
  EXPECT_EQ(fi_send(tx.get(), &word, 8, nullptr, fi_rx_addr(to + 1, 1, 8), nullptr), -FI_EINVAL);
}

TEST(ScalableEndpoint, limits_are_told_and_kept) {
  const Info info = Hub::ask(scalable());
  EXPECT_EQ(info->ep_attr->tx_ctx_cnt, kContexts);
  EXPECT_EQ(info->ep_attr->rx_ctx_cnt, kContexts);
  EXPECT_NE(info->caps & FI_NAMED_RX_CTX, 0u);
  const size_t most = info->domain_attr->max_ep_tx_ctx;
  EXPECT_GE(most, kContexts);
  EXPECT_EQ(Hub::ask({.tx_contexts = most})->ep_attr->tx_ctx_cnt, most);
  EXPECT_THROW(Hub::ask({.tx_contexts = most + 1}), DoorError);
  EXPECT_THROW(Hub::ask({.rx_contexts = info->domain_attr->max_ep_rx_ctx + 1}), DoorError);
}

}  // namespace
}  // namespace aperture::doors
