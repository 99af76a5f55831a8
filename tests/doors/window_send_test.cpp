// Sending with invalidation: aperture_fi_window(3). The receive completion says which key is no
// more, and what may not be invalidated so leaves the message undelivered and both ends alive.
#include "doors/connected.hpp"
#include "doors/demand.hpp"
#include "doors/window.hpp"

namespace aperture::doors::mr {
namespace {

class WindowSends : public Windows {
 protected:
  // Refused; the receive that stood there takes the next message.
  void not_delivered(uint64_t key, size_t len = 8) {
    target->recv(50, 1 << 21);
    EXPECT_EQ(send_inv(key, len), FI_EACCES);
    EXPECT_TRUE(target->still_waits(50));
    send_plain(100);
    const Reply r = target->received(50);
    EXPECT_EQ(r.code, 0);
    EXPECT_EQ(r.remote.size, 100u);
    EXPECT_EQ(r.flags & APERTURE_INVALIDATED, 0u);
    EXPECT_EQ(r.value, 0u);
  }
  // Binds window 1 to the endpoint, and a message of 8 bytes ends it.
  void bound_and_ended(uint32_t window = 1) {
    const Remote w = bind(window, {0, 64}, kBoth, kToEndpoint);
    target->recv(1, 64);
    EXPECT_EQ(send_inv(w.key, 8), 0);
    arrives(1, w.key, 8);
  }
  void arrives(uint32_t id, uint64_t key, size_t len) {
    const Reply r = target->received(id);
    EXPECT_EQ(r.code, 0) << len;
    EXPECT_EQ(r.remote.size, len);
    EXPECT_EQ(r.flags, FI_RECV | FI_MSG | APERTURE_INVALIDATED);
    EXPECT_EQ(r.value, key);
  }
};
INSTANTIATE_TEST_SUITE_P(reach, WindowSends, every_reach(), reach_name);

TEST_P(WindowSends, invalidate_before_they_arrive) {
  open_with_region();
  for (const size_t len : {size_t{0}, size_t{8}, size_t{48}, size_t{300}, size_t{5000}, kMiB}) {
    for (const uint64_t to_whom : {kToEndpoint, kToEndpoint | kToPeer}) {
      const Remote w = bind(1, {0, 64}, kBoth, to_whom);
      allowed(w, 0, 64);
      target->recv(1, 1 << 21);
      EXPECT_EQ(send_inv(w.key, len), 0);
      arrives(1, w.key, len);
      refused(w, 0, 8);
    }
  }
}

TEST_P(WindowSends, may_come_before_their_receive) {
  open_with_region();
  for (const size_t len : {size_t{8}, size_t{5000}}) {
    const Remote w = bind(1, {0, 64}, kBoth, kToEndpoint);
    EXPECT_EQ(send_inv(w.key, len), 0);
    refused(w, 0, 8);
    target->recv(1, 1 << 21);
    arrives(1, w.key, len);
  }
  const Remote w = bind(1, {0, 64}, kBoth, kToEndpoint);  // offered: it waits for its receive
  std::vector<uint8_t> bytes(kMiB);
  fill(bytes, kMiB);
  Op op;
  ASSERT_EQ(
      node->post(window_ops(node->domain()).send_inv, bytes.data(), kMiB, nullptr, to, w.key, &op),
      0);
  pump_for(20);
  target->recv(1, 1 << 21);
  arrives(1, w.key, kMiB);
  EXPECT_EQ(node->wait(&op).err, 0);
}

// A window that a peer has invalidated is free: for the next bind, for its region, for closing.
TEST_P(WindowSends, leave_the_window_to_be_bound_again) {
  open_with_region();
  for (int i = 0; i < 3; ++i) bound_and_ended();
  EXPECT_EQ(target->invalidate(1), 0) << "the peer was first";
  EXPECT_EQ(target->invalidate(1), -FI_EOPBADSTATE);
  bound_and_ended();
  EXPECT_EQ(target->close(1), 0) << "nothing is bound to the region";
  EXPECT_EQ(target->close_window(1), 0);
}

// Everything that was sent before it is in place, and nothing that comes after it lands.
TEST_P(WindowSends, stand_in_order_with_writes) {
  open_with_region();
  for (const uint64_t to_whom : {kToEndpoint, kToEndpoint | kToPeer}) {
    const Remote w = bind(1, {0, 2 * kPage}, kBoth, to_whom);
    std::vector<uint8_t> first(2 * kPage), second(2 * kPage);
    fill(first, 1);
    fill(second, 2);
    target->recv(1, 64);
    uint8_t message[8];
    fill(message, sizeof message);
    Op before, inv, after;
    const auto write_of = [&](const std::vector<uint8_t>& bytes, Op& op) {
      return node->post(fi_write, bytes.data(), bytes.size(), nullptr, to, w.base, w.key, &op);
    };
    ASSERT_EQ(write_of(first, before), 0);
    ASSERT_EQ(node->post(window_ops(node->domain()).send_inv, message, 8, nullptr, to, w.key, &inv),
              0);
    ASSERT_EQ(write_of(second, after), 0);
    EXPECT_EQ(node->wait(&before).err, 0);
    EXPECT_EQ(node->wait(&inv).err, 0);
    EXPECT_EQ(node->wait(&after).err, FI_EACCES);
    arrives(1, w.key, 8);
    EXPECT_TRUE(target->holds({kPage, 2 * kPage}, 1));
  }
}

// 23, and its neighbours.
TEST_P(WindowSends, invalidate_nothing_but_what_is_bound_to_their_connection) {
  open_with_region();
  target->open_sibling(options_of(0));
  const Remote open_region = registered(2, {{0, kPage}});
  const Remote of_all = bind(1, {0, 64}, kBoth);
  const Remote of_sibling = bind(2, {0, 64}, kBoth, kToSibling);
  const Remote gone = bind(3, {0, 64}, kBoth, kToEndpoint);
  ASSERT_EQ(target->invalidate(3), 0);
  for (const size_t len : {size_t{8}, size_t{5000}, kMiB}) {
    not_delivered(0x1234567812345678, len);
    not_delivered(open_region.key, len);
    not_delivered(region.key, len);
    not_delivered(of_all.key, len);
    not_delivered(of_sibling.key, len);
    not_delivered(gone.key, len);
  }
  allowed(of_all, 0, 64);
  allowed(open_region, 0, 64);
  bound_and_ended(3);
}

// 19 and 23: another peer of the same endpoint.
TEST_P(WindowSends, of_another_peer_do_not_end_what_is_bound_to_one) {
  open_with_region();
  const Remote of_peer = bind(1, {0, 64}, kBoth, kToEndpoint | kToPeer);
  const Remote of_endpoint = bind(2, {0, 64}, kBoth, kToEndpoint);
  allowed(of_peer, 0, 64);
  {
    Other other(*this);
    not_delivered(of_peer.key);
    target->recv(1, 64);
    EXPECT_EQ(send_inv(of_endpoint.key, 8), 0) << "anybody may who comes to that endpoint";
    arrives(1, of_endpoint.key, 8);
  }
  allowed(of_peer, 0, 64);
}

// Many in flight, each with its window; every other one is refused.
TEST_P(WindowSends, end_each_with_its_own_result) {
  open_with_region();
  constexpr uint32_t kMany = 40;
  std::vector<uint64_t> keys;
  for (uint32_t i = 0; i < kMany; ++i) {
    keys.push_back(bind(i + 10, {0, 64}, kBoth, kToEndpoint).key);
    if (i % 2 == 0) target->recv(i + 100, 8192);
  }
  std::vector<Op> ops(kMany);
  const size_t sizes[] = {8, 200, 5000};
  std::vector<uint8_t> bytes[3];
  for (int k = 0; k < 3; ++k) {
    bytes[k].resize(sizes[k]);
    fill(bytes[k], sizes[k]);
  }
  for (uint32_t i = 0; i < kMany; ++i) {
    const auto& payload = bytes[i / 2 % 3];
    ASSERT_EQ(post([&] {
                return window_ops(node->domain())
                    .send_inv(node->ep(), payload.data(), payload.size(), nullptr, to,
                              i % 2 == 0 ? keys[i] : keys[i] + 1, &ops[i]);
              }),
              0);
  }
  for (uint32_t i = 0; i < kMany; ++i) {
    EXPECT_EQ(node->wait(&ops[i]).err, i % 2 == 0 ? 0 : FI_EACCES) << i;
    if (i % 2 == 0) arrives(i + 100, keys[i], sizes[i / 2 % 3]);
  }
}

// ---- connected endpoints, in this process -------------------------------------------------------

void expect_connected_window(Station& b, fid_ep* from, Station& at, fid_ep* to, fid_ep* receiver) {
  WindowedMemory memory(b);
  aperture_window_ops& ops = window_ops(b.domain());
  memory.want.ep = to;
  uint64_t key = 0;
  memory.want.peer = 0;
  EXPECT_EQ(ops.bind(memory.window.get(), &memory.want, &key), -FI_EINVAL) << "it has one peer";
  memory.want.peer = FI_ADDR_UNSPEC;
  ASSERT_EQ(ops.bind(memory.window.get(), &memory.want, &key), 0);
  uint8_t bytes[8];
  fill(bytes, 5);
  Op write, send, wrong, receive, late;
  const auto put = [&](Op& op) {
    return post(fi_write, from, bytes, 8, nullptr, FI_ADDR_UNSPEC, memory.want.addr, key, &op);
  };
  ASSERT_EQ(put(write), 0);
  EXPECT_EQ(at.wait(&write).err, 0);
  EXPECT_FALSE(first_difference({memory.bytes.data(), 8}, 5));
  uint8_t inbox[16] = {};
  ASSERT_EQ(post(fi_recv, receiver, inbox, 16, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  const auto invalidate = [&](uint64_t what, Op& op) {
    return post(ops.send_inv, from, bytes, 8, nullptr, FI_ADDR_UNSPEC, what, &op);
  };
  ASSERT_EQ(invalidate(key ^ 1, wrong), 0);
  EXPECT_EQ(at.wait(&wrong).err, FI_EACCES);
  ASSERT_EQ(invalidate(key, send), 0);
  EXPECT_EQ(at.wait(&send).err, 0);
  const Completion c = b.wait(&receive);
  EXPECT_EQ(c.err, 0);
  EXPECT_EQ(c.flags, FI_RECV | FI_MSG | APERTURE_INVALIDATED);
  EXPECT_EQ(c.data, key);
  EXPECT_EQ(c.len, 8u);
  ASSERT_EQ(put(late), 0);
  EXPECT_EQ(at.wait(&late).err, FI_EACCES);
  EXPECT_TRUE(memory.bytes.intact());
}

TEST(WindowOfConnection, is_reached_and_invalidated_by_its_peer) {
  Station a, b;
  Connected pair(a, b);
  expect_connected_window(b, pair.at_a.get(), a, pair.at_b.get(), pair.at_b.get());
}

TEST(WindowOfConnection, is_not_reached_by_another_connection) {
  Station a, b;
  Connected first(a, b), second(a, b);
  WindowedMemory memory(b);
  aperture_window_ops& ops = window_ops(b.domain());
  const uint64_t key = memory.bind_to(first.at_b.get());
  uint8_t bytes[8] = {};
  for (Connected* pair : {&first, &second}) {
    ASSERT_EQ(a.run_at(pair->at_a.get(), fi_write, bytes, 8, nullptr, FI_ADDR_UNSPEC,
                       memory.want.addr, key),
              pair == &first ? 0 : FI_EACCES);
  }
  ASSERT_EQ(a.run_at(second.at_a.get(), ops.send_inv, bytes, 8, nullptr, FI_ADDR_UNSPEC, key),
            FI_EACCES);
  EXPECT_EQ(ops.invalidate(memory.window.get()), 0);
}

}  // namespace
}  // namespace aperture::doors::mr
