// Many regions at once, and none afterwards: the memory that they took is given back. As
// tests/doors/many_regions_test.cpp, by the other door.
//
// APERTURE_REGIONS: how many (default 60,000; ./dev soak: a million).
#include "base/held_memory.hpp"
#include "verbs/ends.hpp"

namespace aperture::test {
namespace {

// The hash tables in which the device finds its regions stay as large as they were, for those to
// come.
constexpr size_t kTables = 48;

TEST(ManyRegions, give_their_memory_back_when_they_are_closed) {
  Device device;
  ASSERT_NE(device.context, nullptr);
  ibv_pd* const pd = ibv_alloc_pd(device.context);
  ASSERT_NE(pd, nullptr);
  std::vector<uint8_t> memory(1 << 17);
  std::vector<ibv_mr*> regions(many_regions());
  const auto open = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      regions[i] = ibv_reg_mr(pd, memory.data() + i % 4096 * 16, 64, kEverything);
      ASSERT_NE(regions[i], nullptr) << i << ": " << errno;
    }
  };
  const auto close = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(ibv_dereg_mr(regions[i]), 0) << i;
  };
  open(1000);
  close(1000);
  const HeldMemory before = held_memory();
  for (int round = 0; round < 2; ++round) {
    open(regions.size());
    const HeldMemory full = held_memory();
    close(regions.size());
    expect_given_back(regions.size(), before, full, kTables);
  }
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
}

}  // namespace
}  // namespace aperture::test
