// hostile 37: one peer sends as much as it can, and its neighbour keeps its share of a receiver
// that polls. What the share is must not depend on the scheduler: in the first test one thread is
// all three of them, and counts what each poll of the receiver takes of either, while both always
// have something ready (fair_share.hpp). The second one has three processes, and prints what it
// sees; that the neighbour's messages come at all is what fails, since timing never does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <vector>

#include "doors/child.hpp"
#include "doors/fair_share.hpp"
#include "doors/fixture.hpp"
#include "doors/region.hpp"

namespace aperture::doors {
namespace {

constexpr size_t kLong = 16 * 1024;
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
  std::array<size_t, 2> heard = receiver.count(kPhaseMs);
  // a hog that was kept from its core for all that time says nothing
  for (int more = 0; more < 5 && heard[1] == 0; ++more) heard = receiver.count(kPhaseMs);
  const auto [beside, of_hog] = heard;
  std::printf("of 64 bytes: %zu alone, %zu beside %zu of 16 KiB: %.0f %% of half of what it had\n",
              alone, beside, of_hog,
              200.0 * static_cast<double>(beside) / static_cast<double>(alone));
  EXPECT_GT(of_hog, 0u);
  EXPECT_GT(beside, alone / 100);
}

constexpr uint64_t kOfNeighbour = 1, kOfHog = 2;  // tags

Options by_hand() {
  return {.mr_mode = kBasicMr, .threading = FI_THREAD_DOMAIN, .progress = FI_PROGRESS_MANUAL};
}

class OneThread : public testing::TestWithParam<Attack> {
 protected:
  OneThread() {
    for (size_t i = 0; i < kReceives; ++i) receive(i);
    for (size_t i = 0; i < kHogOps; ++i) free_.push_back(&hog_ops_[i]);
    for (size_t i = 0; i < kHogOps && attack_.kind == Attack::Kind::send; ++i) receive_hogs(i);
  }

  void receive(size_t i) {
    ASSERT_EQ(fi_trecv(owner_.ep(), short_in_[i].data(), kShort, nullptr, FI_ADDR_UNSPEC,
                       kOfNeighbour, 0, &receives_[i]),
              0);
  }
  void receive_hogs(size_t i) {
    ASSERT_EQ(fi_trecv(owner_.ep(), long_in_[i].data(), attack_.size, nullptr, FI_ADDR_UNSPEC,
                       kOfHog, 0, &hog_receives_[i]),
              0);
  }
  // Puts as much as there is room for.
  void fill_neighbour() {
    while (fi_tinject(neighbour_.ep(), short_.data(), kShort, from_neighbour_, kOfNeighbour) == 0) {
    }
    neighbour_.poll();
  }
  void fill_hog() {
    for (; !free_.empty() && start(free_.back()) == 0; ++hogs_started_) free_.pop_back();
    hog_.poll();
    for (const Completion& c : hog_.done()) {
      EXPECT_EQ(c.err, 0);
      free_.push_back(static_cast<Op*>(c.context));
    }
    hog_.done().clear();
  }
  int64_t start(Op* op) {
    std::vector<uint8_t>& bytes = long_out_[static_cast<size_t>(op - hog_ops_.data())];
    switch (attack_.kind) {
      case Attack::Kind::send:
        return fi_tsend(hog_.ep(), bytes.data(), bytes.size(), nullptr, from_hog_, kOfHog, op);
      case Attack::Kind::write:
        return fi_write(hog_.ep(), bytes.data(), bytes.size(), nullptr, from_hog_, target_.base,
                        target_.key, op);
      default:
        return fi_read(hog_.ep(), bytes.data(), bytes.size(), nullptr, from_hog_, target_.base,
                       target_.key, op);
    }
  }
  // What so many polls take, each of which finds something of the neighbour's, and the hog's.
  Taken count(int polls, bool with_hog) {
    Taken taken;
    std::array<fi_cq_tagged_entry, 512> entries;
    const auto done_before = hogs_done();
    for (int i = 0; i < polls; ++i) {
      fill_neighbour();
      if (with_hog) fill_hog();
      const double began = thread_cpu_ns();
      const ssize_t n = fi_cq_read(owner_.cq(), entries.data(), entries.size());
      taken.cpu_ns += thread_cpu_ns() - began;
      for (ssize_t k = 0; k < n; ++k) {
        auto* op = static_cast<Op*>(entries[static_cast<size_t>(k)].op_context);
        if (op >= receives_.data() && op < receives_.data() + kReceives) {
          ++taken.messages;
          receive(static_cast<size_t>(op - receives_.data()));
        } else {
          ++hogs_received_;
          receive_hogs(static_cast<size_t>(op - hog_receives_.data()));
        }
      }
    }
    taken.hog_ops = hogs_done() - done_before;
    taken.hog_bytes = taken.hog_ops * static_cast<double>(attack_.size);
    return taken;
  }
  double hogs_done() const {
    if (attack_.kind == Attack::Kind::send) return static_cast<double>(hogs_received_);
    return static_cast<double>(hogs_started_ - (kHogOps - free_.size()));
  }

  const Attack attack_ = GetParam();
  const std::vector<uint8_t> short_ = std::vector<uint8_t>(kShort, 1);
  std::vector<std::array<uint8_t, kShort>> short_in_ =
      std::vector<std::array<uint8_t, kShort>>(kReceives);
  std::vector<std::vector<uint8_t>> long_in_ =
      std::vector<std::vector<uint8_t>>(kHogOps, std::vector<uint8_t>(attack_.size));
  std::vector<std::vector<uint8_t>> long_out_ = long_in_;
  std::vector<Op> receives_ = std::vector<Op>(kReceives), hog_receives_ = std::vector<Op>(kHogOps),
                  hog_ops_ = std::vector<Op>(kHogOps);
  std::vector<Op*> free_;
  size_t hogs_received_ = 0, hogs_started_ = 0;
  Node owner_{by_hand()}, neighbour_{by_hand()}, hog_{by_hand()};
  Region memory_{owner_, attack_.size, kAllAccess, 0};
  const Remote target_ = memory_.remote();
  const fi_addr_t from_neighbour_ = neighbour_.insert(owner_.name());
  const fi_addr_t from_hog_ = hog_.insert(owner_.name());
};

TEST_P(OneThread, hostile_37_the_neighbour_has_its_share_of_each_poll) {
  // both are connected, and have filled their lanes
  for (int i = 0; i < 5000 && (count(1, true).messages == 0 || hogs_done() == 0); ++i) usleep(100);
  count(100, true);
  constexpr int kPolls = 1000;
  const Taken both = count(kPolls, true);
  const Taken alone = count(kPolls, false);
  expect_share(attack_, both, alone, kPolls);
}

INSTANTIATE_TEST_SUITE_P(Attacks, OneThread, testing::ValuesIn(kAttacks), kByName);

}  // namespace
}  // namespace aperture::doors
