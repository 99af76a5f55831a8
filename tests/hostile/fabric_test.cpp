// Hostile inputs 21 and 32 through libfabric, between two processes: a peer that goes on when the
// endpoint is gone, and one that sends more than was posted, or to nobody who waits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "doors/child.hpp"
#include "doors/region.hpp"

namespace aperture::hostile {
namespace {

using doors::Child;
using doors::Control;
using doors::Guarded;
using doors::Node;
using doors::Op;
using doors::Region;

constexpr size_t kBytes = size_t{16} << 20;  // a write is under way for milliseconds
constexpr int kWait_ms = 20000;

enum class Deed : uint32_t { write, send, flood };

struct Errand {
  Deed deed = Deed::write;
  doors::Name victim;
  doors::Remote remote;
  uint64_t size = 0;
};

doors::Options options() {
  return {.mr_mode = doors::kBasicMr};
}

// Sends as long as it is let, and does not wait for anything.
int64_t flood(Node& node, fi_addr_t to, Control& control) {
  const std::vector<uint8_t> small(1000, 1), large(300'000, 2);
  std::vector<Op> ops(4096);
  for (size_t next = 0; !control.ready(); ++next) {
    const auto& bytes = next % 64 == 0 ? large : small;
    fi_send(node.ep(), bytes.data(), bytes.size(), nullptr, to, &ops[next % ops.size()]);
    node.poll();
    node.done().clear();
  }
  node.close_endpoint();  // before what it sends
  // a socket that is closed with something unread resets, and what was said last is lost
  int64_t word = 0;
  return control.get(&word) ? 0 : -1;
}

// Tells how its errand has ended.
DOOR_ROLE(attacker_by_fabric) {
  Node node(options());
  Errand errand;
  if (!control.get(&errand)) return 1;
  const fi_addr_t to = node.insert(errand.victim);
  std::vector<uint8_t> bytes(std::max<size_t>(kBytes, errand.size));
  int64_t code = 0;
  switch (errand.deed) {
    case Deed::write:
      for (uint8_t fill = 1; code == 0; ++fill) {
        std::fill(bytes.begin(), bytes.end(), fill);
        code = node.run(fi_write, bytes.data(), kBytes, nullptr, to, errand.remote.base,
                        errand.remote.key);
      }
      break;
    case Deed::send: code = node.run(fi_send, bytes.data(), errand.size, nullptr, to); break;
    case Deed::flood: code = flood(node, to, control); break;
  }
  return control.put(code) ? 0 : 1;
}

// Sends back what it is told to.
DOOR_ROLE(honest_by_fabric) {
  Node node(options());
  doors::Name victim;
  if (!control.put(doors::Name(node.name())) || !control.get(&victim)) return 1;
  const fi_addr_t to = node.insert(victim);
  for (int64_t asked = 0; control.get(&asked) && asked != 0;) {
    if (!control.put(node.run(fi_tsend, "honest", 6, nullptr, to, uint64_t{7}))) return 1;
  }
  return 0;
}

class HostileFabric : public testing::Test {
 protected:
  void send_errand(Deed deed, size_t size = 0) {
    const Errand errand{deed, node_.name(), region_.remote(), size};
    ASSERT_TRUE(attacker_.control().put(errand));
  }
  int64_t outcome() {
    int64_t code = -1;
    EXPECT_TRUE(doors::pump_until([&] { return attacker_.control().ready(); }));
    EXPECT_TRUE(attacker_.control().get(&code, 0)) << "the attacker has ended";
    return code;
  }

  Child attacker_{"attacker_by_fabric"};
  Node node_{options()};
  Region region_{node_, kBytes, doors::kAllAccess, 0};
};

TEST_F(HostileFabric, hostile_21_nothing_lands_when_the_endpoint_is_closed) {
  send_errand(Deed::write);
  const volatile uint8_t* first = region_.memory().data();
  ASSERT_TRUE(doors::pump_until([&] { return *first != 0; })) << "the attacker never wrote";
  usleep(20'000);  // nobody polls: it copies by itself
  node_.close_endpoint();
  const auto span = region_.memory().span();
  const std::vector<uint8_t> before(span.begin(), span.end());
  for (int i = 0; i < 50; ++i) {
    usleep(1000);
    ASSERT_EQ(std::memcmp(before.data(), span.data(), before.size()), 0)
        << "something landed " << i << " ms later";
  }
  EXPECT_NE(outcome(), 0);
  EXPECT_TRUE(region_.memory().intact());
}

class LargerThanPosted : public HostileFabric, public testing::WithParamInterface<size_t> {};

TEST_P(LargerThanPosted, hostile_32_is_cut_off_and_told) {
  const size_t posted = GetParam();
  Guarded memory(posted);
  Op op;
  ASSERT_EQ(fi_recv(node_.ep(), memory.data(), posted, nullptr, FI_ADDR_UNSPEC, &op), 0);
  send_errand(Deed::send, posted + 100);
  const doors::Completion c = node_.wait(&op);
  EXPECT_EQ(c.err, FI_ETRUNC);
  EXPECT_EQ(c.len, posted);
  EXPECT_EQ(c.olen, 100u);
  EXPECT_TRUE(memory.intact());
  outcome();  // what its sender is told is not ours to say
  EXPECT_TRUE(node_.quiet());
}

INSTANTIATE_TEST_SUITE_P(Sizes, LargerThanPosted, testing::Values(0, 16, 1000, 40000, 300000));

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST_F(HostileFabric, hostile_32_sends_that_nobody_receives_are_kept_up_to_a_bound) {
  Child honest("honest_by_fabric");
  doors::Name name;
  ASSERT_TRUE(honest.control().get(&name, kWait_ms));
  node_.insert(name);
  ASSERT_TRUE(honest.control().put(doors::Name(node_.name())));
  const size_t before = resident_bytes();
  send_errand(Deed::flood);
  for (int i = 0; i < 50; ++i) {
    uint8_t bytes[16];
    Op op;
    ASSERT_EQ(fi_trecv(node_.ep(), bytes, sizeof bytes, nullptr, FI_ADDR_UNSPEC, 7, 0, &op), 0);
    ASSERT_TRUE(honest.control().put(int64_t{1}));
    ASSERT_EQ(node_.wait(&op).err, 0);
    ASSERT_EQ(std::memcmp(bytes, "honest", 6), 0);
    ASSERT_TRUE(doors::pump_until([&] { return honest.control().ready(); }));
    int64_t code = -1;
    ASSERT_TRUE(honest.control().get(&code, 0));
    EXPECT_EQ(code, 0);
    doors::pump_for(5);
  }
  const size_t grown = resident_bytes() - before;
  std::printf("%.1f MB of messages that nobody receives\n", static_cast<double>(grown) / 1e6);
  EXPECT_LT(grown, size_t{96} << 20);
  ASSERT_TRUE(attacker_.control().put(int64_t{0}));
  outcome();
  ASSERT_TRUE(honest.control().put(int64_t{0}));
  EXPECT_EQ(honest.join(), 0);
}

}  // namespace
}  // namespace aperture::hostile
