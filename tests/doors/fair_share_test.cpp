// hostile 37: one peer sends as much as it can, and its neighbour keeps its share of a receiver
// that polls. The share is printed; that it is there at all is what fails, since timing never does.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <vector>

#include "doors/child.hpp"
#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kShort = 64;
constexpr size_t kLong = 16 * 1024;
constexpr size_t kReceives = 512;
constexpr int kPhaseMs = 400;

struct Order {
  Name to;
  size_t size = 0;
};

}  // namespace

// Sends messages of that size for as long as it lives.
DOOR_ROLE(sends_on) {
  Node node;
  Order order;
  if (!control.get(&order)) return 1;
  const fi_addr_t there = node.insert(order.to);
  const std::vector<uint8_t> payload(order.size, 1);
  std::vector<Op> ops(64);
  for (size_t n = 0;; ++n) {
    if (post([&] {
          return fi_send(node.ep(), payload.data(), payload.size(), nullptr, there,
                         &ops[n % ops.size()]);
        }) != 0) {
      return 2;
    }
    node.done().clear();
    if (n % 1024 == 0 && control.ready()) return 0;
  }
}

namespace {

// Receives for a while: how many messages of either length came.
class Receiver {
 public:
  Receiver() {
    for (size_t i = 0; i < kReceives; ++i) post_receive(i);
  }
  std::array<size_t, 2> count(int for_ms) {
    std::array<size_t, 2> counted{};
    for (const int64_t end = now_ns() + int64_t{for_ms} * 1'000'000; now_ns() < end;) {
      node_.poll();
      for (const Completion& c : node_.done()) {
        EXPECT_EQ(c.err, 0);
        ++counted[c.len == kLong];
        post_receive(static_cast<size_t>(static_cast<Op*>(c.context) - ops_.data()));
      }
      node_.done().clear();
    }
    return counted;
  }
  // Messages of that length (1: long) have begun to come.
  bool hears(size_t which) {
    for (int round = 0; round < 500; ++round) {
      if (count(20)[which] != 0) return true;
    }
    return false;
  }
  Name name() { return node_.name(); }

 private:
  void post_receive(size_t i) {
    ASSERT_EQ(fi_recv(node_.ep(), buffers_[i].data(), kLong, nullptr, FI_ADDR_UNSPEC, &ops_[i]), 0);
  }

  std::vector<Op> ops_ = std::vector<Op>(kReceives);
  std::vector<std::array<uint8_t, kLong>> buffers_ =
      std::vector<std::array<uint8_t, kLong>>(kReceives);
  Node node_;
};

TEST(FairShare, hostile_37_a_peer_beside_one_that_sends_all_it_can) {
  Receiver receiver;
  Child neighbour("sends_on");
  ASSERT_TRUE(neighbour.control().put(Order{receiver.name(), kShort}));
  ASSERT_TRUE(receiver.hears(0));
  const size_t alone = receiver.count(kPhaseMs)[0];
  Child hog("sends_on");
  ASSERT_TRUE(hog.control().put(Order{receiver.name(), kLong}));
  ASSERT_TRUE(receiver.hears(1));
  const auto [beside, of_hog] = receiver.count(kPhaseMs);
  std::printf("of 64 bytes: %zu alone, %zu beside %zu of 16 KiB: %.0f %% of half of what it had\n",
              alone, beside, of_hog,
              200.0 * static_cast<double>(beside) / static_cast<double>(alone));
  EXPECT_GT(of_hog, 0u);
  EXPECT_GT(beside, alone / 100);
}

}  // namespace
}  // namespace aperture::doors
