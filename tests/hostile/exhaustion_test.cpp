// Hostile input 34, lanes and descriptors: processes of another user open endpoint after endpoint,
// connect each to a victim that has few descriptors, and keep them. Others still get in, what they
// have goes on, and all of it comes back.
#include <gtest/gtest.h>
#include <unistd.h>

#include "doors/few_descriptors.hpp"
#include "doors/nursery.hpp"
#include "doors/region.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::Control;
using doors::Node;
using doors::Op;
using doors::Seedling;

constexpr int kAttackers = 20, kEndpoints = 20;
constexpr rlim_t kDescriptors = 256;
constexpr int kWait_ms = 30000;

doors::Options options() {
  return {.mr_mode = doors::kBasicMr};
}

DOOR_ROLE(greedy_nursery) {
  doors::get_info(options());
  return doors::serve_nursery(control);
}

// Connects as often as it can, and keeps that. Tells how often it could.
DOOR_ROLE(greedy) {
  doors::Name victim;
  if (!control.get(&victim)) return 1;
  Node host(options());
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Op> ops(kEndpoints);
  for (Op& op : ops) {
    nodes.push_back(std::make_unique<Node>(options(), host));
    const fi_addr_t to = nodes.back()->insert(victim);
    fi_tsend(nodes.back()->ep(), "g", 1, nullptr, to, 9, &op);
  }
  // a send that has not ended after a while waits for a connection
  doors::pump_for(1500);
  uint32_t connected = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto ended = nodes[i]->take(&ops[i]);
    connected += ended && ended->err == 0;
  }
  if (!control.put(connected)) return 1;
  while (!control.ready()) pause();
  return 0;
}

// Passes messages for as long as it is asked to. How long each took, or a negative code.
DOOR_ROLE(modest) {
  doors::Name victim;
  if (!control.get(&victim)) return 1;
  Node node(options());
  const fi_addr_t to = node.insert(victim);
  for (char word = 0; control.get(&word);) {
    const int64_t began = doors::now_ns();
    const int64_t code = node.run(fi_tsend, "m", 1, nullptr, to, uint64_t{7});
    const int64_t answer = code == 0 ? doors::now_ns() - began : code < 0 ? code : -code;
    if (!control.put(answer)) return 1;
  }
  return 0;
}

class Exhaustion : public testing::Test {
 protected:
  // That process passes a message with us: how long it took.
  int64_t passes(Control& control) {
    char byte = 0;
    Op op;
    EXPECT_EQ(fi_trecv(node_->ep(), &byte, 1, nullptr, FI_ADDR_UNSPEC, 7, 0, &op), 0);
    EXPECT_TRUE(control.put('m'));
    EXPECT_EQ(node_->wait(&op).err, 0);
    EXPECT_TRUE(doors::pump_until([&] { return control.ready(); }));
    int64_t answer = -1;
    EXPECT_TRUE(control.get(&answer, 0));
    EXPECT_GE(answer, 0) << fi_strerror(static_cast<int>(-answer));
    return answer;
  }

  doors::FewDescriptors few_{kDescriptors};  // before the first endpoint looks
  std::unique_ptr<Node> node_ = std::make_unique<Node>(options());
};

TEST_F(Exhaustion, hostile_34_lanes_and_descriptors_of_one_user_leave_room_for_others) {
  if (geteuid() != 0) GTEST_SKIP() << "needs processes of other users";
  const doors::Name name(node_->name());
  Child early("modest", {.uid = 4713});
  ASSERT_TRUE(early.control().put(name));
  passes(early.control());
  const size_t fds_at_first = doors::count_holdings().fds;
  doors::Nursery nursery("greedy_nursery");
  std::vector<std::unique_ptr<Seedling>> attackers;
  for (int i = 0; i < kAttackers; ++i) {
    attackers.emplace_back(new Seedling(nursery.start("greedy", "APERTURE_TEST_UID", "4712")));
    ASSERT_TRUE(attackers.back()->control().put(name));
  }
  uint32_t lanes = 0;
  for (const auto& attacker : attackers) {
    ASSERT_TRUE(doors::pump_until([&] { return attacker->control().ready(); }, kWait_ms));
    uint32_t connected = 0;
    ASSERT_TRUE(attacker->control().get(&connected, 0)) << "an attacker has ended";
    lanes += connected;
  }
  const size_t taken = doors::count_holdings().fds - fds_at_first;
  EXPECT_GT(lanes, 0u);
  // its share is a quarter; about as many again are the half-open connections, bounded for all
  // users together, of those that go on asking
  EXPECT_LT(taken, kDescriptors * 3 / 4);
  const int64_t goes_on = passes(early.control());
  for (const uid_t user : {uid_t{4714}, uid_t{0}}) {
    Child newcomer("modest", {.uid = user});
    ASSERT_TRUE(newcomer.control().put(name));
    const int64_t took = passes(newcomer.control());
    std::printf("user %u got in and passed a message in %.1f ms\n", user,
                static_cast<double>(took) / 1e6);
  }
  std::printf(
      "%d processes hold %u lanes and %zu of our descriptors; one that was there before "
      "passed a message in %.1f ms\n",
      kAttackers, lanes, taken, static_cast<double>(goes_on) / 1e6);
  attackers.clear();
  EXPECT_TRUE(
      doors::pump_until([&] { return doors::count_holdings().fds <= fds_at_first + 4; }, kWait_ms))
      << doors::count_holdings().fds << " descriptors, " << fds_at_first << " at first";
}

}  // namespace
}  // namespace aperture::hostile
