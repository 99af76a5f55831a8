// Shared receive contexts: fi_srx_context with connected endpoints. fi_endpoint(3), "SHARED
// CONTEXTS".
#include <gtest/gtest.h>

#include "doors/connected.hpp"

namespace aperture::doors {
namespace {

StationOptions sharing() {
  StationOptions o;
  o.shared_receive = true;
  o.counters = true;
  return o;
}

// A server whose connections receive in one context, and a client with two endpoints.
class SharedReceive : public testing::Test {
 protected:
  SharedReceive() : pep(server.passive()), srx(server.shared_receive()) {}
  void connect(size_t n) {
    for (size_t i = 0; i < n; ++i) {
      here.push_back(ask_for_connection(client, pep.get()));
      const CmEvent request = server.expect(FI_CONNREQ);
      there.push_back(server.open(request.info.get(), srx.get()));
      ASSERT_EQ(fi_accept(there.back().get(), nullptr, 0), 0);
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
    ASSERT_EQ(post_to([&] { return fi_inject(here[i % 2].get(), &word, 8, 0); }), 0);
    EXPECT_EQ(server.wait(&ops[i]).err, 0);
    EXPECT_EQ(box[i], word);
  }
  ASSERT_EQ(post_to([&] { return fi_tinject(here[1].get(), &word, 8, 0, 7); }), 0);
  EXPECT_EQ(server.wait(&tagged).tag, 7u);
  EXPECT_EQ(fi_cntr_read(server.rx_cntr()), 4u) << "counted at the endpoints";
}

TEST_F(SharedReceive, unexpected_and_large_messages_are_matched_too) {
  connect(2);
  std::vector<uint8_t> out(kMiB), in(kMiB);
  fill(out, 3);
  Op sent;
  const uint64_t word = 5;
  ASSERT_EQ(post_to([&] { return fi_inject(here[0].get(), &word, 8, 0); }), 0);
  ASSERT_EQ(
      post_to([&] { return fi_send(here[1].get(), out.data(), out.size(), nullptr, 0, &sent); }),
      0);
  drive_until([] { return false; }, 30);  // both are there, unexpected
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
  ASSERT_EQ(post_to([&] { return fi_inject(here[1].get(), &word, 8, 0); }), 0);
  EXPECT_EQ(server.wait(&ops[0]).err, 0);
  EXPECT_EQ(box[0], 6u);
  // what came to an endpoint that is closed is gone with it
  ASSERT_EQ(post_to([&] { return fi_inject(here[1].get(), &word, 8, 0); }), 0);
  drive_until([] { return false; }, 20);
  there[1].reset();
  ASSERT_EQ(fi_recv(srx.get(), &box[1], 8, nullptr, 0, &ops[1]), 0);
  drive_until([] { return false; }, 20);
  EXPECT_EQ(box[1], 0u);
}

TEST_F(SharedReceive, cancel_and_close) {
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
  fi_rx_attr attr{};
  attr.caps = FI_SOURCE;
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
  fid_stx* stx = nullptr;
  EXPECT_EQ(fi_stx_context(server.domain(), server.info()->tx_attr, &stx, nullptr), -FI_ENOSYS);
}

}  // namespace
}  // namespace aperture::doors
