// Shared contexts of reliable datagram endpoints: fi_srx_context and fi_stx_context.
// fi_endpoint(3), "SHARED CONTEXTS".
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <rdma/fi_trigger.h>
#include <sys/socket.h>
#include <unistd.h>

#include "doors/contexts.hpp"
#include "doors/payload.hpp"
#include "doors/side.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kDirected = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE;

HubOptions receiving(uint64_t caps = FI_MSG | FI_TAGGED) {
  return {.caps = caps, .rx_contexts = FI_SHARED_CONTEXT};
}

// Two endpoints that receive in one context, and peers in other processes.
class SharedReceiveOfDatagrams : public testing::Test {
 protected:
  explicit SharedReceiveOfDatagrams(uint64_t caps = FI_MSG | FI_TAGGED)
      : hub(receiving(caps)), srx(hub.shared_receive()) {
    for (auto& ep : eps) ep = hub.enabled(srx.get());
  }
  // A peer that knows both endpoints, as 0 and 1.
  struct Peer {
    explicit Peer(SharedReceiveOfDatagrams& of) {
      name = side.open({.av_type = FI_AV_TABLE});
      for (auto& ep : of.eps) side.insert(name_of(&ep->fid));
    }
    RemoteSide side;
    std::vector<uint8_t> name;
  };
  Hub hub;
  Fid<fid_ep> srx;
  Fid<fid_ep> eps[2];
};

TEST_F(SharedReceiveOfDatagrams, any_endpoint_takes_the_next_receive) {
  uint64_t box[4] = {}, tagged_box = 0;
  Op ops[4], tagged;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(fi_recv(srx.get(), &box[i], 8, nullptr, FI_ADDR_UNSPEC, &ops[i]), 0);
  }
  ASSERT_EQ(fi_trecv(srx.get(), &tagged_box, 8, nullptr, FI_ADDR_UNSPEC, 7, 0, &tagged), 0);
  Peer peer(*this);
  for (uint32_t i = 0; i < 4; ++i) {
    peer.side.send(i, i % 2, 8, i + 1);
    const Completion c = hub.wait(&ops[i]);
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.flags, FI_RECV | FI_MSG);
    EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[i]), 8}, i + 1));
    EXPECT_EQ(peer.side.wait(i).err, 0);
  }
  peer.side.tagged_send(10, 1, 8, 10, 7);
  EXPECT_EQ(hub.wait(&tagged).tag, 7u);
}

TEST_F(SharedReceiveOfDatagrams, unexpected_and_large_messages_are_matched_too) {
  Peer one(*this), two(*this);
  one.side.send(1, 0, 8, 1);
  two.side.send(2, 1, kMiB, 2);
  pump_for(50);  // both are there, unexpected
  size_t total = 0;
  std::vector<uint8_t> in[2];
  for (auto& bytes : in) {
    Op op;
    bytes.resize(kMiB);
    ASSERT_EQ(fi_recv(srx.get(), bytes.data(), kMiB, nullptr, FI_ADDR_UNSPEC, &op), 0);
    const Completion c = hub.wait(&op);
    EXPECT_EQ(c.err, 0);
    bytes.resize(c.len);
    EXPECT_FALSE(first_difference(bytes, c.len == 8 ? 1 : 2));
    total += c.len;
  }
  EXPECT_EQ(total, kMiB + 8) << "the order between two peers is free";
}

TEST_F(SharedReceiveOfDatagrams, an_endpoint_is_closed_and_the_receives_stay) {
  Peer peer(*this);
  uint64_t box[2] = {};
  Op ops[2];
  peer.side.send(1, 0, 8, 1);
  pump_for(50);  // unexpected: gone with its endpoint
  eps[0].reset();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(fi_recv(srx.get(), &box[i], 8, nullptr, FI_ADDR_UNSPEC, &ops[i]), 0);
  }
  peer.side.send(2, 1, 8, 2);
  EXPECT_EQ(hub.wait(&ops[0]).err, 0);
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[0]), 8}, 2));
  EXPECT_EQ(fi_close(&srx->fid), -FI_EBUSY) << "the other endpoint uses it";
  eps[1].reset();
  pump_for(20);
  EXPECT_EQ(box[1], 0u);
  EXPECT_FALSE(hub.take(&ops[1]));
  EXPECT_EQ(fi_close(&srx.release()->fid), 0);
}

class TriggeredSharedReceive : public SharedReceiveOfDatagrams {
 protected:
  TriggeredSharedReceive() : SharedReceiveOfDatagrams(FI_MSG | FI_TAGGED | FI_TRIGGER) {}
};

TEST_F(TriggeredSharedReceive, a_receive_is_posted_when_its_counter_says_so) {
  const Fid<fid_cntr> counter = open_counter(hub.domain());
  uint64_t box[2] = {};
  iovec iov[2] = {{&box[0], 8}, {&box[1], 8}};
  fi_triggered_context2 at[2]{};
  for (size_t i = 0; i < 2; ++i) {
    at[i].event_type = FI_TRIGGER_THRESHOLD;
    at[i].trigger.threshold = {counter.get(), i + 1};
    const fi_msg m{&iov[i], nullptr, 1, FI_ADDR_UNSPEC, &at[i], 0};
    ASSERT_EQ(fi_recvmsg(srx.get(), &m, FI_TRIGGER), 0);
  }
  Peer peer(*this);
  peer.side.send(1, 1, 8, 1);
  pump_for(20);
  EXPECT_FALSE(hub.take(&at[0]));
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(hub.wait(&at[0]).err, 0);
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[0]), 8}, 1));
  for (auto& ep : eps) ep.reset();
  EXPECT_EQ(fi_close(&srx.release()->fid), 0) << "what still waits is dropped";
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  EXPECT_EQ(box[1], 0u);
}

TEST_F(TriggeredSharedReceive, one_that_waits_is_canceled_and_says_so) {
  const Fid<fid_cntr> counter = open_counter(hub.domain());
  uint64_t box = 0;
  iovec iov{&box, 8};
  fi_triggered_context2 at{};
  at.event_type = FI_TRIGGER_THRESHOLD;
  at.trigger.threshold = {counter.get(), 1};
  const fi_msg m{&iov, nullptr, 1, FI_ADDR_UNSPEC, &at, 0};
  ASSERT_EQ(fi_recvmsg(srx.get(), &m, FI_TRIGGER), 0);
  EXPECT_EQ(fi_cancel(&srx->fid, &at), 0);
  EXPECT_EQ(hub.wait(&at, 2000).err, FI_ECANCELED);
  EXPECT_EQ(fi_cancel(&srx->fid, &at), -FI_ENOENT);
}

// fi_trigger(3): "posted work requests do not generate any completions at the endpoint by default".
TEST_F(TriggeredSharedReceive, a_deferred_one_has_an_entry_where_it_asks_for_one) {
  const Fid<fid_cntr> counter = open_counter(hub.domain()), done = open_counter(hub.domain());
  uint64_t box[2] = {};
  iovec iov[2] = {{&box[0], 8}, {&box[1], 8}};
  Op ops[2];
  fi_op_msg recv[2];
  fi_deferred_work works[2] = {};
  for (size_t i = 0; i < 2; ++i) {
    const fi_msg m{&iov[i], nullptr, 1, FI_ADDR_UNSPEC, &ops[i], 0};
    recv[i] = {srx.get(), m, i == 1 ? FI_COMPLETION : 0};
    works[i].threshold = 1;
    works[i].triggering_cntr = counter.get();
    works[i].completion_cntr = done.get();
    works[i].op_type = FI_OP_RECV;
    works[i].op.msg = &recv[i];
    ASSERT_EQ(fi_control(&hub.domain()->fid, FI_QUEUE_WORK, &works[i]), 0);
  }
  ASSERT_EQ(fi_cntr_add(counter.get(), 1), 0);
  Peer peer(*this);
  peer.side.send(1, 0, 8, 1);
  peer.side.send(2, 0, 8, 2);
  const Completion c = hub.wait(&ops[1], 2000);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.len, 8u);
  EXPECT_EQ(fi_cntr_read(done.get()), 2u);
  EXPECT_FALSE(hub.take(&ops[0]));
}

TEST_F(SharedReceiveOfDatagrams, a_receive_is_canceled_once) {
  Op op;
  uint64_t box = 0;
  ASSERT_EQ(fi_recv(srx.get(), &box, 8, nullptr, FI_ADDR_UNSPEC, &op), 0);
  EXPECT_EQ(fi_cancel(&srx->fid, &op), 0);
  EXPECT_EQ(hub.wait(&op).err, FI_ECANCELED);
  EXPECT_EQ(fi_cancel(&srx->fid, &op), -FI_ENOENT);
}

TEST_F(SharedReceiveOfDatagrams, a_message_of_any_endpoint_is_peeked_at_and_claimed) {
  Peer peer(*this);
  Op nothing, peek;
  uint64_t box = 0;
  fi_msg_tagged msg{.addr = FI_ADDR_UNSPEC, .tag = 3, .context = &nothing};
  ASSERT_EQ(fi_trecvmsg(srx.get(), &msg, FI_PEEK), 0);
  EXPECT_EQ(hub.wait(&nothing).err, FI_ENOMSG);
  peer.side.tagged_send(1, 1, 8, 1, 3);
  pump_for(50);
  msg.context = &peek;
  ASSERT_EQ(fi_trecvmsg(srx.get(), &msg, FI_PEEK | FI_CLAIM), 0);
  const Completion seen = hub.wait(&peek);
  EXPECT_EQ(seen.err, 0);
  EXPECT_EQ(seen.len, 8u);
  iovec iov{&box, 8};
  msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 3, .context = &peek};
  ASSERT_EQ(fi_trecvmsg(srx.get(), &msg, FI_CLAIM), 0);
  EXPECT_EQ(hub.wait(&peek).err, 0);
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box), 8}, 1));
}

// Endpoints that may be members of groups have another way in for their messages.
class SharedReceiveOfMembers : public SharedReceiveOfDatagrams {
 protected:
  SharedReceiveOfMembers() : SharedReceiveOfDatagrams(FI_MSG | FI_TAGGED | FI_COLLECTIVE) {}
};

TEST_F(SharedReceiveOfMembers, what_came_early_is_received_and_peeked_at_too) {
  Peer peer(*this);
  for (uint32_t i = 0; i < 2; ++i) {
    peer.side.send(i, i, 8, i + 1);
    peer.side.tagged_send(2 + i, i, 8, i + 3, i);
    EXPECT_EQ(peer.side.wait(i).err, 0);
    EXPECT_EQ(peer.side.wait(2 + i).err, 0);
  }
  pump_for(50);
  uint64_t box[4] = {};
  Op ops[4];
  for (uint32_t i = 0; i < 2; ++i) {
    Op peek;
    const fi_msg_tagged msg{.addr = FI_ADDR_UNSPEC, .tag = i, .context = &peek};
    ASSERT_EQ(fi_trecvmsg(srx.get(), &msg, FI_PEEK), 0);
    EXPECT_EQ(hub.wait(&peek).len, 8u);
    ASSERT_EQ(fi_recv(srx.get(), &box[i], 8, nullptr, FI_ADDR_UNSPEC, &ops[i]), 0);
    ASSERT_EQ(fi_trecv(srx.get(), &box[2 + i], 8, nullptr, FI_ADDR_UNSPEC, i, 0, &ops[2 + i]), 0);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(hub.wait(&ops[i]).err, 0);
    EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[i]), 8}, i + 1));
  }
}

TEST_F(SharedReceiveOfDatagrams, what_does_not_go_together_is_refused) {
  fi_rx_attr attr{.caps = FI_MULTICAST};
  EXPECT_EQ(code_of(fi_srx_context, hub.domain(), &attr), -FI_EINVAL);
  attr = {.op_flags = FI_MULTI_RECV};
  EXPECT_EQ(code_of(fi_srx_context, hub.domain(), &attr), -FI_EBADFLAGS);
  attr = {.size = SIZE_MAX};
  EXPECT_EQ(code_of(fi_srx_context, hub.domain(), &attr), -FI_EINVAL);

  uint64_t box = 0;
  EXPECT_EQ(fi_recv(eps[0].get(), &box, 8, nullptr, FI_ADDR_UNSPEC, nullptr), -FI_EOPNOTSUPP)
      << "receives are posted to the shared context";
  EXPECT_EQ(fi_send(srx.get(), "x", 1, nullptr, 0, nullptr), -FI_EOPNOTSUPP);

  Fid<fid_ep> unbound = hub.open(nullptr);
  EXPECT_EQ(fi_enable(unbound.get()), -FI_EOPBADSTATE) << "none is bound";
  EXPECT_EQ(fi_ep_bind(unbound.get(), &srx->fid, FI_RECV), -FI_EBADFLAGS);
  Hub elsewhere(receiving());
  Fid<fid_ep> theirs = elsewhere.shared_receive();
  EXPECT_EQ(fi_ep_bind(unbound.get(), &theirs->fid, 0), -FI_EDOMAIN);
  ASSERT_EQ(fi_ep_bind(unbound.get(), &srx->fid, 0), 0);
  EXPECT_EQ(fi_ep_bind(unbound.get(), &srx->fid, 0), -FI_EINVAL) << "twice";
  EXPECT_EQ(fi_enable(unbound.get()), 0);

  Node own;  // has not asked for a shared context
  EXPECT_LT(fi_ep_bind(own.ep(), &srx->fid, 0), 0);
}

// "All connectionless endpoints associated with a shared receive context must also share the same
// address vector."
TEST_F(SharedReceiveOfDatagrams, endpoints_with_two_address_vectors_cannot_share_one) {
  Fid<fid_av> av = hub.another_av();
  Fid<fid_ep> ep = DOOR_MADE(fi_endpoint, hub.domain(), hub.info());
  DOOR(fi_ep_bind(ep.get(), &av->fid, 0));
  DOOR(fi_ep_bind(ep.get(), &hub.cq()->fid, FI_TRANSMIT | FI_RECV));
  DOOR(fi_ep_bind(ep.get(), &srx->fid, 0));
  EXPECT_EQ(fi_enable(ep.get()), -FI_EINVAL);
  for (auto& other : eps) other.reset();
  EXPECT_EQ(fi_enable(ep.get()), 0) << "it is the only one now";
}

class DirectedSharedReceive : public SharedReceiveOfDatagrams {
 protected:
  DirectedSharedReceive() : SharedReceiveOfDatagrams(kDirected) {}
};

TEST_F(DirectedSharedReceive, takes_the_messages_of_its_peer_through_any_endpoint) {
  Peer one(*this), two(*this);
  const fi_addr_t from_one = hub.insert(one.name), from_two = hub.insert(two.name);
  Op ops[3];
  uint64_t box[3] = {};
  ASSERT_EQ(fi_recv(srx.get(), &box[0], 8, nullptr, from_two, &ops[0]), 0);
  ASSERT_EQ(fi_recv(srx.get(), &box[1], 8, nullptr, from_one, &ops[1]), 0);
  one.side.send(1, 1, 8, 1);
  Completion c = hub.wait(&ops[1]);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.source, from_one);
  one.side.send(2, 0, 8, 2);  // nobody's yet
  two.side.send(3, 0, 8, 3);
  c = hub.wait(&ops[0]);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.source, from_two);
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[0]), 8}, 3));
  ASSERT_EQ(fi_recv(srx.get(), &box[2], 8, nullptr, from_one, &ops[2]), 0);
  c = hub.wait(&ops[2]);
  EXPECT_EQ(c.source, from_one);
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box[2]), 8}, 2));
}

TEST_F(DirectedSharedReceive, outlives_an_endpoint_and_ends_with_its_peer) {
  auto peer = std::make_unique<Peer>(*this);
  const fi_addr_t from = hub.insert(peer->name);
  Op first, second;
  uint64_t box[2] = {};
  ASSERT_EQ(fi_recv(srx.get(), &box[0], 8, nullptr, from, &first), 0);
  ASSERT_EQ(fi_trecv(srx.get(), &box[1], 8, nullptr, from, 1, 0, &second), 0);
  peer->side.tagged_send(1, 0, 8, 1, 9);  // a connection through either endpoint
  peer->side.tagged_send(2, 1, 8, 2, 9);
  pump_for(50);
  eps[0].reset();
  pump_for(20);
  EXPECT_FALSE(hub.take(&first)) << "the other endpoint may still fill it";
  peer->side.send(3, 1, 8, 3);
  EXPECT_EQ(hub.wait(&first).err, 0);
  peer.reset();
  EXPECT_NE(hub.wait(&second).err, 0);
}

TEST_F(DirectedSharedReceive, outlives_a_connection_that_one_of_its_endpoints_does_not_get) {
  Peer peer(*this);
  const fi_addr_t from = hub.insert(peer.name);
  peer.side.tagged_send(1, 1, 8, 1, 9);  // through the second endpoint its messages come
  pump_for(50);
  const Info info(fi_dupinfo(hub.info()));
  set_auth_key(*info->ep_attr, "another");
  Fid<fid_ep> stranger = DOOR_MADE(fi_endpoint, hub.domain(), info.get());
  DOOR(fi_ep_bind(stranger.get(), &hub.av()->fid, 0));
  DOOR(fi_ep_bind(stranger.get(), &hub.cq()->fid, FI_TRANSMIT | FI_RECV));
  DOOR(fi_ep_bind(stranger.get(), &srx->fid, 0));
  DOOR(fi_enable(stranger.get()));
  uint64_t box = 0;
  Op in, out;
  ASSERT_EQ(fi_recv(srx.get(), &box, 8, nullptr, from, &in), 0);
  ASSERT_EQ(post(fi_send, stranger.get(), "x", size_t{1}, nullptr, from, &out), 0);
  EXPECT_EQ(hub.wait(&out).err, FI_EACCES);
  EXPECT_FALSE(hub.take(&in)) << "its message may still come";
  peer.side.send(2, 1, 8, 2);
  EXPECT_EQ(hub.wait(&in).err, 0);
  EXPECT_FALSE(first_difference({reinterpret_cast<uint8_t*>(&box), 8}, 2));
}

TEST_F(DirectedSharedReceive, needs_a_context_with_those_capabilities) {
  fi_rx_attr plain{.caps = FI_MSG | FI_TAGGED};
  Fid<fid_ep> simple = DOOR_MADE(fi_srx_context, hub.domain(), &plain);
  Fid<fid_ep> ep = hub.open(nullptr);
  EXPECT_EQ(fi_ep_bind(ep.get(), &simple->fid, 0), -FI_EINVAL) << "no subset";
  EXPECT_EQ(fi_ep_bind(ep.get(), &srx->fid, 0), 0);
}

// --- transmitting --------------------------------------------------------------------------------

HubOptions transmitting(size_t size = 0) {
  return {.caps = kUsualCaps, .tx_contexts = FI_SHARED_CONTEXT, .tx_size = size};
}

TEST(SharedTransmit, endpoints_send_and_write_through_one_context) {
  Hub hub(transmitting());
  Fid<fid_stx> stx = hub.shared_transmit();
  EXPECT_EQ(stx->fid.fclass, static_cast<size_t>(FI_CLASS_STX_CTX));
  Fid<fid_ep> eps[2];
  for (auto& ep : eps) ep = hub.enabled(nullptr, stx.get());
  RemoteSide peer;
  const fi_addr_t to = hub.insert(peer.open({.caps = kUsualCaps}));
  const Remote remote = peer.region_open(1, kMiB, FI_REMOTE_WRITE, 0);
  for (uint32_t i = 0; i < 4; ++i) {
    const size_t size = i < 2 ? 8 : kMiB;
    std::vector<uint8_t> out(size);
    fill(out, i);
    Op sent, written;
    peer.receive(10 + i, size);
    fid_ep* const ep = eps[i % 2].get();
    ASSERT_EQ(post(fi_send, ep, out.data(), size, nullptr, to, &sent), 0);
    EXPECT_EQ(peer.wait(10 + i).err, 0);
    EXPECT_TRUE(peer.verify(10 + i, size, i));
    EXPECT_EQ(hub.wait(&sent).err, 0);
    ASSERT_EQ(post(fi_write, ep, out.data(), size, nullptr, to, remote.base, remote.key, &written),
              0);
    EXPECT_EQ(hub.wait(&written).err, 0);
  }
  EXPECT_TRUE(peer.region_verify(1, 3));
  EXPECT_EQ(fi_close(&stx->fid), -FI_EBUSY);
  eps[0].reset();
  EXPECT_EQ(fi_close(&stx->fid), -FI_EBUSY);
  eps[1].reset();
  EXPECT_EQ(fi_close(&stx.release()->fid), 0);
}

// Listens, and never says a word.
class Mute {
 public:
  Mute() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof at;
    EXPECT_EQ(::bind(fd_, reinterpret_cast<sockaddr*>(&at), len), 0);
    EXPECT_EQ(::listen(fd_, 8), 0);
    EXPECT_EQ(::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &len), 0);
    const auto* bytes = reinterpret_cast<const uint8_t*>(&at);
    name_.assign(bytes, bytes + sizeof at);
  }
  ~Mute() { ::close(fd_); }
  const std::vector<uint8_t>& name() const { return name_; }

 private:
  int fd_;
  std::vector<uint8_t> name_;
};

TEST(SharedTransmit, the_bound_is_of_all_its_endpoints_together) {
  if (!on_aperture()) GTEST_SKIP() << "how many operations wait is a provider's own";
  constexpr size_t kSize = 4;
  Mute mute;
  Hub hub(transmitting(kSize));
  Fid<fid_stx> stx = hub.shared_transmit(), other = hub.shared_transmit();
  Fid<fid_ep> a = hub.enabled(nullptr, stx.get()), b = hub.enabled(nullptr, stx.get());
  Fid<fid_ep> c = hub.enabled(nullptr, other.get());
  const fi_addr_t to = hub.insert(mute.name());
  const uint64_t word = 1;
  Op ops[kSize + 1];
  for (size_t i = 0; i < kSize; ++i) {
    fid_ep* const ep = i == 0 ? b.get() : a.get();
    ASSERT_EQ(fi_send(ep, &word, 8, nullptr, to, &ops[i]), 0);
  }
  EXPECT_EQ(fi_send(a.get(), &word, 8, nullptr, to, nullptr), -FI_EAGAIN);
  EXPECT_EQ(fi_send(b.get(), &word, 8, nullptr, to, nullptr), -FI_EAGAIN);
  EXPECT_EQ(fi_send(c.get(), &word, 8, nullptr, to, &ops[kSize]), 0) << "it has another context";
  EXPECT_EQ(fi_cancel(&b->fid, &ops[0]), 0);
  EXPECT_EQ(hub.wait(&ops[0]).err, FI_ECANCELED);
  EXPECT_EQ(fi_send(a.get(), &word, 8, nullptr, to, &ops[0]), 0) << "there is room again";
}

TEST(SharedTransmit, what_does_not_go_together_is_refused) {
  Hub hub(transmitting());
  fi_tx_attr attr{.op_flags = FI_MULTICAST};
  EXPECT_EQ(code_of(fi_stx_context, hub.domain(), &attr), -FI_EBADFLAGS);
  attr = {.caps = FI_MULTICAST};
  EXPECT_EQ(code_of(fi_stx_context, hub.domain(), &attr), -FI_EINVAL);
  attr = {.inject_size = SIZE_MAX};
  EXPECT_EQ(code_of(fi_stx_context, hub.domain(), &attr), -FI_EINVAL);
  attr = {.size = SIZE_MAX};
  EXPECT_EQ(code_of(fi_stx_context, hub.domain(), &attr), -FI_EINVAL);
  EXPECT_EQ(fi_stx_context(hub.domain(), &attr, nullptr, nullptr), -FI_EINVAL);

  Fid<fid_stx> stx = hub.shared_transmit();
  EXPECT_EQ(fi_cancel(&stx->fid, &attr), -FI_ENOSYS);
  EXPECT_EQ(stx->fid.ops->bind(&stx->fid, &hub.cq()->fid, FI_TRANSMIT), -FI_EINVAL);
  Fid<fid_ep> ep = hub.open(nullptr);
  EXPECT_EQ(fi_enable(ep.get()), -FI_EOPBADSTATE) << "none is bound";
  EXPECT_EQ(fi_ep_bind(ep.get(), &stx->fid, FI_TRANSMIT), -FI_EBADFLAGS);
  Hub elsewhere(transmitting());
  Fid<fid_stx> theirs = elsewhere.shared_transmit();
  EXPECT_EQ(fi_ep_bind(ep.get(), &theirs->fid, 0), -FI_EDOMAIN);
  // "Endpoints must use a subset of the transmit context's attributes."
  for (const fi_tx_attr& less :
       {fi_tx_attr{.caps = FI_MSG | FI_SEND, .inject_size = hub.info()->tx_attr->inject_size},
        fi_tx_attr{.inject_size = hub.info()->tx_attr->inject_size, .size = 1},
        fi_tx_attr{.inject_size = 1},
        fi_tx_attr{.inject_size = hub.info()->tx_attr->inject_size, .iov_limit = 1},
        fi_tx_attr{.inject_size = hub.info()->tx_attr->inject_size, .rma_iov_limit = 1}}) {
    fi_tx_attr asked = less;
    Fid<fid_stx> lesser = DOOR_MADE(fi_stx_context, hub.domain(), &asked);
    EXPECT_EQ(fi_ep_bind(ep.get(), &lesser->fid, 0), -FI_EINVAL);
  }
  ASSERT_EQ(fi_ep_bind(ep.get(), &stx->fid, 0), 0);
  EXPECT_EQ(fi_ep_bind(ep.get(), &stx->fid, 0), -FI_EINVAL) << "twice";
  EXPECT_EQ(fi_enable(ep.get()), 0);

  Node own;
  EXPECT_LT(fi_ep_bind(own.ep(), &stx->fid, 0), 0) << "it has a queue of its own";
}

// What is 0 in its attributes is as in those of an endpoint.
TEST(SharedTransmit, attributes_that_are_left_out_are_the_defaults) {
  Hub hub(transmitting());
  fi_tx_attr attr{.caps = hub.info()->tx_attr->caps & ~(FI_SEND | FI_READ | FI_WRITE)};
  Fid<fid_stx> stx = DOOR_MADE(fi_stx_context, hub.domain(), &attr);
  Fid<fid_ep> ep = hub.open(nullptr);
  EXPECT_EQ(fi_ep_bind(ep.get(), &stx->fid, 0), 0);
  EXPECT_EQ(fi_enable(ep.get()), 0);
}

TEST(SharedContexts, are_told_and_asked_for) {
  const Info plain = Hub::ask({});
  EXPECT_EQ(plain->ep_attr->tx_ctx_cnt, 1u);
  EXPECT_EQ(plain->ep_attr->rx_ctx_cnt, 1u);
  EXPECT_GE(plain->domain_attr->max_ep_stx_ctx, 2u);
  EXPECT_GE(plain->domain_attr->max_ep_srx_ctx, 2u);
  const Info both = Hub::ask({.tx_contexts = FI_SHARED_CONTEXT, .rx_contexts = FI_SHARED_CONTEXT});
  EXPECT_EQ(both->ep_attr->tx_ctx_cnt, FI_SHARED_CONTEXT);
  EXPECT_EQ(both->ep_attr->rx_ctx_cnt, FI_SHARED_CONTEXT);
}

}  // namespace
}  // namespace aperture::doors
