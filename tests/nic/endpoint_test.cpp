// The datagram endpoint over its engine: many peers, hot and cold, coming and going.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "nic/endpoint.hpp"

namespace aperture::nic {
namespace {

constexpr uint64_t kLimitNs = 20'000'000'000;

// An endpoint with an engine, a queue and an address table of its own.
struct Node {
  explicit Node(Engine* shared = nullptr, const Address& at = Address::v4(0x7f000001, 0)) {
    if (shared == nullptr) {
      auto made = Engine::create({.threaded = false});
      EXPECT_TRUE(made.ok());
      own = *std::move(made);
    }
    engine = shared != nullptr ? shared : own.get();
    EndpointOptions options;
    options.engine = engine;
    options.addresses = &addresses;
    options.tx_cq = &cq;
    options.rx_cq = &cq;
    options.local = at;
    EXPECT_TRUE(Endpoint::create(endpoint, options).ok());
  }

  std::unique_ptr<Engine> own;
  Engine* engine = nullptr;
  AddressTable addresses;
  qp::Cq cq{1024};
  std::unique_ptr<Endpoint> endpoint;
};

class Crowd : public testing::Test {
 protected:
  Node& join(const Address& at = Address::v4(0x7f000001, 0)) {
    peers_.push_back(std::make_unique<Node>(crowd_.get(), at));
    EXPECT_TRUE(peers_.back()->addresses.insert(hub_.endpoint->address()).ok());
    return *peers_.back();
  }

  bool receive(uint64_t& into) {
    const iovec to{&into, sizeof into};
    return hub_.endpoint->recv({.iov = &to, .iov_count = 1, .len = sizeof into}).ok();
  }
  static bool send(Node& peer, uint64_t value) {
    const iovec from{&value, sizeof value};
    qp::SendWr send{.iov = &from, .iov_count = 1, .len = sizeof value, .inject = true};
    send.completion = false;
    return peer.endpoint->send(send).ok();
  }
  // The next receive of the hub has come.
  bool received() {
    const uint64_t deadline = now_ns() + kLimitNs;
    while (hub_.cq.empty() && now_ns() < deadline) {
      crowd_->poll();
      hub_.engine->poll();
    }
    if (hub_.cq.empty() || hub_.cq.error_first()) return false;
    hub_.cq.pop();
    return true;
  }
  // One message from that peer to the hub, and its receive there.
  bool message_from(Node& peer, uint64_t value) {
    uint64_t got = 0;
    return receive(got) && send(peer, value) && received() && got == value;
  }
  // Until nothing of that peer waits for its connection. The hub does not poll.
  bool put(Node& peer, uint64_t value) {
    if (!send(peer, value)) return false;
    const uint64_t deadline = now_ns() + kLimitNs;
    while (peer.endpoint->has_pending() && now_ns() < deadline) crowd_->poll();
    return !peer.endpoint->has_pending();
  }

  std::unique_ptr<Engine> crowd_ = *Engine::create({.threaded = false});
  Node hub_;
  std::vector<std::unique_ptr<Node>> peers_;
};

TEST_F(Crowd, every_one_of_forty_peers_is_heard) {
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(message_from(join(), i)) << "peer " << i;
  for (int idle = 0; idle < 100'000; ++idle) hub_.engine->poll();  // most of them turn cold
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(message_from(*peers_[i], 100 + i)) << "peer " << i;
}

TEST_F(Crowd, who_turned_cold_is_heard_after_most_have_left) {
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(message_from(join(), i)) << "peer " << i;
  for (int idle = 0; idle < 100'000; ++idle) hub_.engine->poll();
  const size_t stay = 30;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (i < stay) peers_[i].reset();
  }
  for (int idle = 0; idle < 100'000; ++idle) hub_.engine->poll();
  for (size_t i = stay; i < peers_.size(); ++i) {
    ASSERT_TRUE(message_from(*peers_[i], 200 + i)) << "peer " << i;
  }
}

// The kernel gives a port out again, and who polls late meets both lives at once.
TEST_F(Crowd, what_a_peer_left_is_heard_although_its_address_has_come_again) {
  uint64_t got[3] = {};
  for (uint64_t& one : got) ASSERT_TRUE(receive(one));
  Address at = Address::v4(0x7f000001, 0);
  for (uint64_t i = 1; i <= 3; ++i) {
    Node& peer = join(at);
    at = peer.endpoint->address();
    ASSERT_TRUE(put(peer, i)) << i;
    if (i != 3) peers_.pop_back();
  }
  for (uint64_t i = 1; i <= 3; ++i) EXPECT_TRUE(received()) << i;
  EXPECT_EQ(got[0], 1u);
  EXPECT_EQ(got[1], 2u);
  EXPECT_EQ(got[2], 3u);
}

}  // namespace
}  // namespace aperture::nic
