// Shared receive contexts: fi_srx_context with connected endpoints. fi_endpoint(3), "SHARED
// CONTEXTS".
#include <gtest/gtest.h>

#include "doors/connected.hpp"
#include "doors/window.hpp"

namespace aperture::doors {
namespace {

StationOptions sharing() {
  return {.shared_receive = true, .counters = true};
}

// A server whose connections receive in one context, and a client with two endpoints.
class SharedReceive : public testing::Test {
 protected:
  SharedReceive() : pep(server.passive()), srx(server.shared_receive()) {}
  void connect(size_t n) {
    for (size_t i = 0; i < n; ++i) {
      here.push_back(ask_for_connection(client, pep.get()));
      there.push_back(accept_next(server, nullptr, srx.get()));
      client.expect(FI_CONNECTED);
      server.expect(FI_CONNECTED);
    }
  }
  Station client;
  Station server{sharing()};
  Fid<fid_pep> pep;
  Fid<fid_ep> srx;
  std::vector<Fid<fid_ep>> here, there;
};

TEST_F(SharedReceive, any_endpoint_takes_the_next_receive) {
  uint64_t box[4] = {};
  Op ops[4], tagged;
  uint64_t tagged_box = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(fi_recv(srx.get(), &box[i], 8, nullptr, 0, &ops[i]), 0);  // before any endpoint
  }
  ASSERT_EQ(fi_trecv(srx.get(), &tagged_box, 8, nullptr, 0, 7, 0, &tagged), 0);
  connect(2);
  uint64_t word = 10;
  for (size_t i = 0; i < 3; ++i, ++word) {
    ASSERT_EQ(post(fi_inject, here[i % 2].get(), &word, 8, 0), 0);
    EXPECT_EQ(server.wait(&ops[i]).err, 0);
    EXPECT_EQ(box[i], word);
  }
  ASSERT_EQ(post(fi_tinject, here[1].get(), &word, 8, 0, 7), 0);
  EXPECT_EQ(server.wait(&tagged).tag, 7u);
  EXPECT_EQ(fi_cntr_read(server.rx_cntr()), 4u) << "counted at the endpoints";
}

TEST_F(SharedReceive, unexpected_and_large_messages_are_matched_too) {
  connect(2);
  std::vector<uint8_t> out(kMiB), in(kMiB);
  fill(out, 3);
  Op sent;
  const uint64_t word = 5;
  ASSERT_EQ(post(fi_inject, here[0].get(), &word, 8, 0), 0);
  ASSERT_EQ(post(fi_send, here[1].get(), out.data(), out.size(), nullptr, 0, &sent), 0);
  pump_until([] { return false; }, 30);  // both are there, unexpected
  // the order between two connections is free
  Op first, second;
  ASSERT_EQ(fi_recv(srx.get(), in.data(), in.size(), nullptr, 0, &first), 0);
  const Completion one = server.wait(&first);
  EXPECT_EQ(one.err, 0);
  std::vector<uint8_t> more(kMiB);
  ASSERT_EQ(fi_recv(srx.get(), more.data(), more.size(), nullptr, 0, &second), 0);
  const Completion two = server.wait(&second);
  EXPECT_EQ(two.err, 0);
  EXPECT_EQ(one.len + two.len, kMiB + 8);
  EXPECT_FALSE(first_difference(one.len == kMiB ? in : more, 3));
  EXPECT_EQ(client.wait(&sent).err, 0);
}

TEST_F(SharedReceive, one_connection_ends_and_the_receives_stay) {
  uint64_t box[2] = {};
  Op ops[2];
  connect(2);
  ASSERT_EQ(fi_recv(srx.get(), &box[0], 8, nullptr, 0, &ops[0]), 0);
  here[0].reset();
  server.expect(FI_SHUTDOWN, &there[0]->fid);
  there[0].reset();
  const uint64_t word = 6;
  ASSERT_EQ(post(fi_inject, here[1].get(), &word, 8, 0), 0);
  EXPECT_EQ(server.wait(&ops[0]).err, 0);
  EXPECT_EQ(box[0], 6u);
  // what came to an endpoint that is closed is gone with it
  ASSERT_EQ(post(fi_inject, here[1].get(), &word, 8, 0), 0);
  pump_until([] { return false; }, 20);
  there[1].reset();
  ASSERT_EQ(fi_recv(srx.get(), &box[1], 8, nullptr, 0, &ops[1]), 0);
  pump_until([] { return false; }, 20);
  EXPECT_EQ(box[1], 0u);
}

TEST_F(SharedReceive, a_receive_is_canceled_once_and_a_queue_in_use_stays_open) {
  connect(1);
  Op op;
  uint64_t box = 0;
  ASSERT_EQ(fi_recv(srx.get(), &box, 8, nullptr, 0, &op), 0);
  EXPECT_EQ(fi_cancel(&srx->fid, &op), 0);
  EXPECT_EQ(server.wait(&op).err, FI_ECANCELED);
  EXPECT_EQ(fi_cancel(&srx->fid, &op), -FI_ENOENT);
  EXPECT_EQ(fi_close(&srx->fid), -FI_EBUSY) << "an endpoint uses it";
}

TEST_F(SharedReceive, what_does_not_go_together_is_refused) {
  fid_ep* raw = nullptr;
  EXPECT_EQ(fi_srx_context(server.domain(), server.info()->rx_attr, nullptr, nullptr), -FI_EINVAL);
  fi_rx_attr attr{.caps = FI_MULTICAST};
  EXPECT_EQ(fi_srx_context(server.domain(), &attr, &raw, nullptr), -FI_EINVAL);
  attr.caps = 0;
  attr.op_flags = FI_MULTICAST;
  EXPECT_EQ(fi_srx_context(server.domain(), &attr, &raw, nullptr), -FI_EBADFLAGS);

  EXPECT_EQ(srx->fid.fclass, static_cast<size_t>(FI_CLASS_SRX_CTX));
  EXPECT_EQ(fi_ep_bind(srx.get(), &server.cq()->fid, FI_RECV), -FI_EINVAL)
      << "not associated with completion queues";
  EXPECT_EQ(fi_send(srx.get(), "x", 1, nullptr, 0, nullptr), -FI_EOPNOTSUPP);
  EXPECT_LT(fi_connect(srx.get(), "x", nullptr, 0), 0);

  Fid<fid_ep> own = client.open();  // has not asked for a shared context
  EXPECT_EQ(fi_ep_bind(own.get(), &srx->fid, 0), -FI_EINVAL);
  Fid<fid_ep> sharer = server.open();
  EXPECT_EQ(fi_enable(sharer.get()), -FI_EOPBADSTATE) << "none is bound";
  EXPECT_EQ(fi_ep_bind(sharer.get(), &srx->fid, FI_RECV), -FI_EBADFLAGS);
  Station elsewhere(sharing());
  Fid<fid_ep> theirs = elsewhere.shared_receive();
  EXPECT_EQ(fi_ep_bind(sharer.get(), &theirs->fid, 0), -FI_EDOMAIN);
  ASSERT_EQ(fi_ep_bind(sharer.get(), &srx->fid, 0), 0);
  EXPECT_EQ(fi_ep_bind(sharer.get(), &srx->fid, 0), -FI_EINVAL) << "twice";
  ASSERT_EQ(fi_enable(sharer.get()), 0);
  uint64_t box = 0;
  EXPECT_EQ(fi_recv(sharer.get(), &box, 8, nullptr, 0, nullptr), -FI_EOPNOTSUPP)
      << "receives are posted to the shared context";
}

TEST(SharedTransmitOfConnections, endpoints_send_through_one_context) {
  Station server, client({.shared_transmit = true});
  Fid<fid_pep> pep = server.passive();
  Fid<fid_stx> stx = DOOR_MADE(fi_stx_context, client.domain(), client.info()->tx_attr);
  std::vector<Fid<fid_ep>> here, there;
  for (int i = 0; i < 2; ++i) {
    here.push_back(client.open());
    fid_ep* const ep = here.back().get();
    const auto name = name_of(&pep->fid);
    EXPECT_EQ(fi_connect(ep, name.data(), nullptr, 0), -FI_EOPBADSTATE) << "none is bound";
    ASSERT_EQ(fi_ep_bind(ep, &stx->fid, 0), 0);
    ASSERT_EQ(fi_connect(ep, name.data(), nullptr, 0), 0);
    there.push_back(accept_next(server));
    client.expect(FI_CONNECTED);
    server.expect(FI_CONNECTED);
  }
  for (size_t i = 0; i < 4; ++i) {
    std::vector<uint8_t> out(i < 2 ? 8 : kMiB), in(out.size());
    fill(out, i + 1);
    Op sent, received;
    ASSERT_EQ(fi_recv(there[i % 2].get(), in.data(), in.size(), nullptr, 0, &received), 0);
    ASSERT_EQ(post(fi_send, here[i % 2].get(), out.data(), out.size(), nullptr, 0, &sent), 0);
    EXPECT_EQ(server.wait(&received).err, 0);
    EXPECT_FALSE(first_difference(in, i + 1));
    EXPECT_EQ(client.wait(&sent).err, 0);
  }
  EXPECT_EQ(fi_close(&stx->fid), -FI_EBUSY);
}

using Window = mr::WindowedMemory;

// aperture_fi_window(3) where the receives are those of a shared context.
class SharedReceiveWindows : public SharedReceive {
 protected:
  int write(fid_ep* from, const Window& window, uint64_t key) {
    uint8_t bytes[8];
    fill(bytes, 5);
    Op op;
    EXPECT_EQ(post(fi_write, from, bytes, 8, nullptr, FI_ADDR_UNSPEC, window.want.addr, key, &op),
              0);
    return client.wait(&op).err;
  }
  void post_inv(fid_ep* from, uint64_t key, std::span<const uint8_t> bytes, Op& op) {
    EXPECT_EQ(post(mr::window_ops(client.domain()).send_inv, from, bytes.data(), bytes.size(),
                   nullptr, FI_ADDR_UNSPEC, key, &op),
              0);
  }
  void expect_invalidated(Op& receive, uint64_t key, size_t len) {
    const Completion c = server.wait(&receive);
    EXPECT_EQ(c.err, 0);
    EXPECT_EQ(c.flags, FI_RECV | FI_MSG | APERTURE_INVALIDATED);
    EXPECT_EQ(c.data, key);
    EXPECT_EQ(c.len, len);
  }
  std::vector<uint8_t> in_ = std::vector<uint8_t>(kMiB);
};

TEST_F(SharedReceiveWindows, are_invalidated_by_the_peer_of_their_connection) {
  connect(2);
  Window window(server);
  for (const size_t len : {size_t{0}, size_t{8}, size_t{5000}, kMiB}) {
    for (size_t i = 0; i < 2; ++i) {
      const uint64_t key = window.bind_to(there[i].get());
      EXPECT_EQ(write(here[i].get(), window, key), 0);
      std::vector<uint8_t> out(len + 1);
      fill({out.data(), len}, 7);
      Op sent, received;
      ASSERT_EQ(fi_recv(srx.get(), in_.data(), in_.size(), nullptr, 0, &received), 0);
      post_inv(here[i].get(), key, {out.data(), len}, sent);
      expect_invalidated(received, key, len);
      EXPECT_EQ(client.wait(&sent).err, 0);
      EXPECT_FALSE(first_difference({in_.data(), len}, 7));
      EXPECT_EQ(write(here[i].get(), window, key), FI_EACCES);
    }
  }
}

TEST_F(SharedReceiveWindows, are_invalidated_before_there_is_a_receive) {
  connect(2);
  Window small(server), large(server);
  const uint64_t keys[] = {small.bind_to(there[0].get()), large.bind_to(there[1].get())};
  std::vector<uint8_t> out(kMiB);
  Op sent[2], received[2];
  post_inv(here[0].get(), keys[0], {out.data(), 8}, sent[0]);
  EXPECT_EQ(client.wait(&sent[0]).err, 0);
  EXPECT_EQ(write(here[0].get(), small, keys[0]), FI_EACCES);
  ASSERT_EQ(fi_recv(srx.get(), in_.data(), in_.size(), nullptr, 0, &received[0]), 0);
  expect_invalidated(received[0], keys[0], 8);
  post_inv(here[1].get(), keys[1], out, sent[1]);  // offered: it waits
  pump_until([] { return false; }, 30);
  ASSERT_EQ(fi_recv(srx.get(), in_.data(), in_.size(), nullptr, 0, &received[1]), 0);
  expect_invalidated(received[1], keys[1], kMiB);
  EXPECT_EQ(client.wait(&sent[1]).err, 0);
  EXPECT_EQ(write(here[1].get(), large, keys[1]), FI_EACCES);
}

// One context for both connections, and yet each has its own windows. What is refused takes no
// receive.
TEST_F(SharedReceiveWindows, are_not_invalidated_through_another_connection) {
  connect(2);
  Window window(server), of_nobody(server);
  const uint64_t key = window.bind_to(there[0].get());
  const uint64_t open = of_nobody.bind_to(nullptr);
  Op received, plain;
  ASSERT_EQ(fi_recv(srx.get(), in_.data(), in_.size(), nullptr, 0, &received), 0);
  std::vector<uint8_t> out(kMiB);
  for (const size_t len : {size_t{8}, size_t{5000}, kMiB}) {
    for (const auto& [from, wrong] :
         {std::pair{here[1].get(), key}, std::pair{here[0].get(), key ^ 1},
          std::pair{here[0].get(), open}}) {
      Op refused;
      post_inv(from, wrong, {out.data(), len}, refused);
      EXPECT_EQ(client.wait(&refused).err, FI_EACCES);
    }
  }
  EXPECT_EQ(write(here[0].get(), window, key), 0);
  EXPECT_EQ(write(here[1].get(), window, key), FI_EACCES);
  EXPECT_EQ(write(here[1].get(), of_nobody, open), 0);
  const uint64_t word = 9;
  ASSERT_EQ(post(fi_inject, here[1].get(), &word, 8, 0), 0);
  const Completion c = server.wait(&received);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.flags, FI_RECV | FI_MSG);
  EXPECT_EQ(c.len, 8u);
  ASSERT_EQ(fi_recv(srx.get(), in_.data(), in_.size(), nullptr, 0, &plain), 0);
  Op sent;
  post_inv(here[0].get(), key, {out.data(), 8}, sent);
  expect_invalidated(plain, key, 8);
  EXPECT_EQ(client.wait(&sent).err, 0);
}

// The window goes with the connection that it is bound to, and the context stays.
TEST_F(SharedReceiveWindows, outlive_their_connection_and_are_bound_again) {
  connect(2);
  Window window(server);
  window.bind_to(there[0].get());
  here[0].reset();
  server.expect(FI_SHUTDOWN, &there[0]->fid);
  EXPECT_EQ(mr::window_ops(server.domain()).invalidate(window.window.get()), 0);
  const uint64_t key = window.bind_to(there[1].get());
  Op sent, received;
  uint8_t bytes[8] = {};
  ASSERT_EQ(fi_recv(srx.get(), in_.data(), in_.size(), nullptr, 0, &received), 0);
  post_inv(here[1].get(), key, bytes, sent);
  expect_invalidated(received, key, 8);
  EXPECT_EQ(client.wait(&sent).err, 0);
}

}  // namespace
}  // namespace aperture::doors
