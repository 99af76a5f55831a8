// Endpoint after endpoint of a peer connects, passes a message and goes: each is served, and what
// the one that stays holds (descriptors, mappings, threads, memory) does not grow.
//
// APERTURE_CONNECTS sets their number (default 300; ./dev soak: 100,000).
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "doors/child.hpp"
#include "doors/region.hpp"

namespace aperture::faults {
namespace {

using doors::Child;
using doors::Node;
using doors::Op;

// So many come one after the other without a pause. Where the server is kept from its core they
// have come and gone before it hears of the first: it keeps a segment for each 16 of them that were
// there at once.
constexpr uint64_t kRow = 50;
constexpr size_t kSegments = 2 * kRow / 16 + 1;  // beside the last of the row before

doors::Options options() {
  return {.mr_mode = doors::kBasicMr};
}

struct Errand {
  doors::Name server;
  uint64_t count = 0;
};

// Opens and closes an endpoint for each. What it answers is how many.
DOOR_ROLE(connector) {
  Node host(options());
  for (Errand errand; control.get(&errand) && errand.count != 0;) {
    for (uint64_t i = 0; i < errand.count; ++i) {
      Node node(options(), host);
      const fi_addr_t to = node.insert(errand.server);
      if (const int64_t code = node.run(fi_send, &i, sizeof i, nullptr, to); code != 0) {
        std::fprintf(stderr, "connect %llu: %lld\n", static_cast<unsigned long long>(i),
                     static_cast<long long>(code));
        return 1;
      }
    }
    if (!control.put(errand.count)) return 1;
  }
  return 0;
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Messages of several endpoints have no order: who goes has left its own in the server's ring.
void serve(Node& node, Child& connector, uint64_t count) {
  ASSERT_TRUE(connector.control().put(Errand{node.name(), count}));
  std::vector<bool> came(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t word = ~uint64_t{0};
    Op op;
    ASSERT_EQ(fi_recv(node.ep(), &word, sizeof word, nullptr, FI_ADDR_UNSPEC, &op), 0);
    ASSERT_EQ(node.wait(&op).err, 0) << "connect " << i;
    ASSERT_LT(word, count);
    ASSERT_FALSE(came[word]) << word << " comes a second time";
    came[word] = true;
  }
  uint64_t served = 0;
  ASSERT_TRUE(doors::pump_until([&] { return connector.control().ready(); }));
  ASSERT_TRUE(connector.control().get(&served, 0)) << "it has ended";
  ASSERT_EQ(served, count);
}

// What each descriptor is of, a line each.
std::string open_files() {
  std::string lines;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    lines += entry.path().filename().string() + " " +
             std::filesystem::read_symlink(entry.path(), gone).string() + "\n";
  }
  return lines;
}

// Descriptors: segments of lanes, and all others.
struct Descriptors {
  size_t segments = 0, others = 0;
};
Descriptors count_descriptors() {
  Descriptors d;
  std::istringstream lines(open_files());
  for (std::string line; std::getline(lines, line);) {
    ++(line.find("memfd:aperture-lanes") != std::string::npos ? d.segments : d.others);
  }
  return d;
}

// Its end is seen soon, or on a busy machine somewhat later.
Descriptors count_when_gone(const Descriptors& before) {
  Descriptors now;
  doors::pump_until([&] {
    now = count_descriptors();
    return now.others <= before.others && now.segments <= before.segments + kSegments;
  });
  return now;
}

TEST(Connects, of_many_endpoints_leave_nothing_behind) {
  const char* text = std::getenv("APERTURE_CONNECTS");
  const uint64_t count = text != nullptr ? std::strtoull(text, nullptr, 0) : 300;
  Node node(options());
  Child connector("connector");
  ASSERT_NO_FATAL_FAILURE(serve(node, connector, kRow));
  doors::pump_for(200);
  const doors::Holdings before = doors::count_holdings();
  const Descriptors open_before = count_descriptors();
  const size_t resident = resident_bytes();
  int64_t took_ns = 0;
  Descriptors open_after;
  for (uint64_t served = 0; served < count; served += kRow) {
    const int64_t began = doors::now_ns();
    ASSERT_NO_FATAL_FAILURE(serve(node, connector, std::min(kRow, count - served)));
    took_ns += doors::now_ns() - began;
    open_after = count_when_gone(open_before);
  }
  EXPECT_LE(open_after.others, open_before.others) << open_files();
  EXPECT_LE(open_after.segments, open_before.segments + kSegments) << open_files();
  const doors::Holdings after = doors::count_holdings();
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.mappings, before.mappings + kSegments + 8) << "a few for the allocator's arenas";
  const size_t grown = std::max(resident_bytes(), resident) - resident;
#ifndef __SANITIZE_ADDRESS__  // it keeps what was freed
  EXPECT_LE(grown, (kSegments + 8) << 20) << "bytes";
#endif
  std::printf("%llu connects, %.0f us each with opening and closing; %.1f MB more\n",
              static_cast<unsigned long long>(count),
              static_cast<double>(took_ns) / 1e3 / static_cast<double>(count),
              static_cast<double>(grown) / 1e6);
  ASSERT_TRUE(connector.control().put(Errand{}));
  EXPECT_EQ(connector.join(), 0);
}

}  // namespace
}  // namespace aperture::faults
