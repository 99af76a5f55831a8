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
  explicit Node(Engine* shared = nullptr) {
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
    options.local = Address::v4(0x7f000001, 0);
    auto made = Endpoint::create(options);
    EXPECT_TRUE(made.ok());
    endpoint = *std::move(made);
  }

  std::unique_ptr<Engine> own;
  Engine* engine = nullptr;
  AddressTable addresses;
  qp::Cq cq{1024};
  std::unique_ptr<Endpoint> endpoint;
};

class Crowd : public testing::Test {
 protected:
  Node& join() {
    peers_.push_back(std::make_unique<Node>(crowd_.get()));
    EXPECT_TRUE(peers_.back()->addresses.insert(hub_.endpoint->address()).ok());
    return *peers_.back();
  }

  // One message from that peer to the hub, and its receive there.
  bool message_from(Node& peer, uint64_t value) {
    uint64_t got = 0;
    const iovec to{&got, sizeof got};
    const qp::RecvWr recv{.iov = &to, .iov_count = 1, .len = sizeof got};
    if (!hub_.endpoint->recv(recv)) return false;
    const iovec from{&value, sizeof value};
    qp::SendWr send{.iov = &from, .iov_count = 1, .len = sizeof value};
    send.completion = false;
    const uint64_t deadline = now_ns() + kLimitNs;
    bool sent = false;
    while (hub_.cq.empty() && now_ns() < deadline) {
      if (!sent) sent = peer.endpoint->send(send).ok();
      crowd_->poll();
      hub_.engine->poll();
    }
    if (hub_.cq.empty() || hub_.cq.error_first()) return false;
    hub_.cq.pop();
    return got == value;
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

}  // namespace
}  // namespace aperture::nic
