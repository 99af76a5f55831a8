// A receiver that does not look for what arrives: 100,000 unexpected messages of tag A, then B
// received first, from one peer and from three; large ones keep their payload with the sender.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "doors/child.hpp"
#include "doors/fixture.hpp"
#include "doors/payload.hpp"

namespace aperture::doors {
namespace {

constexpr uint64_t kTagA = 0xA;
constexpr uint64_t kTagB = 0xB;

struct Plan {
  uint32_t count = 0;
  uint32_t size = 0;
  uint32_t peer = 0;
  Name name;
};

struct Report {
  int64_t status = 0;
  uint64_t sent = 0;
};

Options flood_options() {
  return {.caps = kUsualCaps | FI_SOURCE | FI_DIRECTED_RECV, .cq_data_size = 4};
}

size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Sends `count` messages of tag A, each with its number as CQ data, then one of tag B.
DOOR_ROLE(flooder) {
  Node node(flood_options());
  if (!control.put(Name(node.name()))) return 1;
  Plan plan;
  if (!control.get(&plan)) return 1;
  const fi_addr_t to = node.insert(plan.name);
  std::vector<uint8_t> payload(plan.size);
  fill(payload, plan.peer);
  std::vector<Op> ops(plan.count + 1);
  Report report;
  size_t completed = 0;
  const auto drain = [&] {
    for (const Completion& c : node.done())
      if (c.err != 0) report.status = -c.err;
    completed += node.done().size();
    node.done().clear();
  };
  for (uint32_t i = 0; i <= plan.count && report.status == 0; ++i) {
    const uint64_t tag = i < plan.count ? kTagA : kTagB;
    const int64_t r = post(
        [&] {
          drain();
          return fi_tsenddata(node.ep(), payload.data(), payload.size(), nullptr, i, to, tag,
                              &ops[i]);
        },
        40000);
    if (r != 0) report.status = r;
    report.sent += r == 0;
  }
  if (!control.put(report)) return 1;
  // stay, and serve what is still on the way, until the receiver has all
  uint8_t end = 0;
  pump_until([&] { return drain(), control.ready(); }, 100000);
  control.get(&end);
  pump_until([&] { return drain(), completed == report.sent; }, 10000);
  report.status = completed == report.sent ? report.status : -FI_EOTHER;
  control.put(report);
  return 0;
}

struct Flood {
  const char* name;
  int peers;
  uint32_t count;
  uint32_t size;
  size_t growth_limit;  // of the receiver's resident memory
};

void PrintTo(const Flood& f, std::ostream* out) {
  *out << f.name;
}

class Unexpected : public testing::TestWithParam<Flood> {
 protected:
  void start() {
    for (int i = 0; i < GetParam().peers; ++i) {
      auto child = std::make_unique<Child>("flooder");
      Name name;
      ASSERT_TRUE(pump_until([&] { return child->control().ready(); }));
      ASSERT_TRUE(child->control().get(&name));
      from.push_back(node.insert(name));
      children.push_back(std::move(child));
    }
    for (size_t i = 0; i < children.size(); ++i) {
      const Plan plan{GetParam().count, GetParam().size, static_cast<uint32_t>(i + 1), node.name()};
      ASSERT_TRUE(children[i]->control().put(plan));
    }
  }
  Completion receive(uint64_t tag, fi_addr_t source, Guarded* in, Op* op) {
    EXPECT_EQ(node.post(fi_trecv, in->data(), in->size(), nullptr, source, tag, 0, op), 0);
    return node.wait(op, 40000);
  }
  // From whoever comes: each peer's messages keep their order among themselves.
  void take_all_of_tag_a() {
    std::vector<uint32_t> next(children.size(), 0);
    const size_t total = children.size() * GetParam().count;
    for (size_t i = 0; i < total; ++i) {
      Guarded in(GetParam().size);
      Op op;
      const Completion c = receive(kTagA, FI_ADDR_UNSPEC, &in, &op);
      ASSERT_EQ(c.err, 0) << i;
      const size_t peer = std::find(from.begin(), from.end(), c.source) - from.begin();
      ASSERT_LT(peer, children.size()) << "source";
      ASSERT_EQ(c.data, next[peer]++) << "order of peer " << peer;
      if (i % 97 != 0) continue;
      ASSERT_FALSE(first_difference(in.span(), peer + 1)) << i;
    }
  }

  Node node{flood_options()};
  std::vector<std::unique_ptr<Child>> children;
  std::vector<fi_addr_t> from;
};

TEST_P(Unexpected, then_the_later_tag_is_received_first) {
  const Flood& flood = GetParam();
  const size_t before = resident_bytes();
  ASSERT_NO_FATAL_FAILURE(start());
  for (size_t peer = 0; peer < children.size(); ++peer) {
    Guarded in(flood.size);
    Op op;
    const Completion c = receive(kTagB, from[peer], &in, &op);
    ASSERT_EQ(c.err, 0) << "tag B of peer " << peer;
    ASSERT_EQ(c.data, flood.count);
    ASSERT_EQ(c.source, from[peer]);
    ASSERT_FALSE(first_difference(in.span(), peer + 1));
  }
  // read once: it may also shrink, and between two readings
  const size_t after = resident_bytes();
  const size_t growth = after > before ? after - before : 0;
  std::printf("%s: resident memory grew by %.1f MiB\n", flood.name,
              static_cast<double>(growth) / static_cast<double>(kMiB));
  if (on_aperture()) {
    EXPECT_LT(growth, flood.growth_limit);
  }
  ASSERT_NO_FATAL_FAILURE(take_all_of_tag_a());
  for (auto& child : children) {
    Report report;
    ASSERT_TRUE(child->control().get(&report, 10000));
    EXPECT_EQ(report.status, 0);
    EXPECT_EQ(report.sent, flood.count + 1u);
    const uint8_t end = 1;
    child->control().put(end);
    ASSERT_TRUE(pump_until([&] { return child->control().ready(); }, 15000));
    ASSERT_TRUE(child->control().get(&report, 0));
    EXPECT_EQ(report.status, 0) << "each send completes once";
  }
  EXPECT_TRUE(node.quiet());
}

INSTANTIATE_TEST_SUITE_P(Floods, Unexpected,
                         testing::Values(Flood{"one_peer", 1, 100000, 8, 100 * kMiB},
                                         Flood{"three_peers", 3, 100000, 8, 300 * kMiB},
                                         Flood{"large_messages", 1, 500, 256 * kKiB, 96 * kMiB},
                                         Flood{"large_from_three", 3, 200, kMiB, 200 * kMiB}),
                         kByName);

}  // namespace
}  // namespace aperture::doors
