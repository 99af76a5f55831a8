// What an application reads of a refusal: fi_cq_readerr and fi_cq_strerror. One sentence with the
// attempt, the key, the region and how near it was, the rule, where the region was registered, and
// what would make the access legal. fi_cq(3).
#include <gtest/gtest.h>

#include "doors/fixture.hpp"

namespace aperture::doors {
namespace {

char g_memory[64];

// The line of the registration that the sentence has to name.
constexpr int kLine = __LINE__ + 3;
Fid<fid_mr> register_memory(Node& node) {
  fid_mr* mr = nullptr;
  DOOR(
      fi_mr_reg(node.domain(), g_memory, sizeof g_memory, FI_REMOTE_WRITE, 0, 77, 0, &mr, nullptr));
  return Fid<fid_mr>(mr);
}

std::string refusal_of(Node& from, fi_addr_t to) {
  Op op;
  const uint64_t value = 1;
  DOOR(from.post(fi_write, &value, sizeof value, nullptr, to, 60, 77, &op));
  fi_cq_tagged_entry entry;
  int64_t rc = -FI_EAGAIN;
  const int64_t until = now_ns() + 20'000'000'000;
  while ((rc = fi_cq_read(from.cq(), &entry, 1)) == -FI_EAGAIN && now_ns() < until) {
  }
  EXPECT_EQ(rc, -FI_EAVAIL);
  fi_cq_err_entry e{};
  EXPECT_EQ(fi_cq_readerr(from.cq(), &e, 0), 1);
  EXPECT_EQ(e.err, FI_EACCES);
  EXPECT_NE(e.err_data_size, 0u);
  char text[1024];
  return fi_cq_strerror(from.cq(), e.prov_errno, e.err_data, text, sizeof text);
}

void expect_whole(const std::string& text) {
  const std::string place = "explain_test.cpp:";
  const size_t at = text.find(place);
  ASSERT_NE(at, std::string::npos) << text;
  const int line = std::stoi(text.substr(at + place.size()));
  EXPECT_TRUE(line >= kLine && line <= kLine + 1) << text;
  for (const char* part : {"remote write", "8 bytes", "0x3c", "0x4d", "the range leaves the region",
                           "offset 0x0..0x3f (64 bytes)", "ends 4 byte(s) past its end",
                           "registered in ", "register_memory", "to make it legal, give offsets"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

TEST(ExplainDoor, a_peer_reads_the_whole_story) {
  NodePair pair;
  const auto mr = register_memory(pair.b);
  expect_whole(refusal_of(pair.a, pair.to_b));
}

TEST(ExplainDoor, so_does_who_accesses_itself) {
  Node node;
  const fi_addr_t self = node.insert(node.name());
  const auto mr = register_memory(node);
  expect_whole(refusal_of(node, self));
}

}  // namespace
}  // namespace aperture::doors
