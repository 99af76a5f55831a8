// A key table with the little that each test of protect/ asks of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "protect/key_table.hpp"

namespace aperture::protect {

constexpr DomainId kPd = 7;
constexpr DomainId kOtherPd = 8;
constexpr uint64_t kBase = 0x100000;
constexpr uint64_t kLength = 4096;
constexpr Rights kReadWrite = Rights::remote_read | Rights::remote_write;

inline RegionSpec spec_of(uint64_t base = kBase, uint64_t length = kLength,
                          Rights rights = kReadWrite) {
  RegionSpec spec;
  spec.pd = kPd;
  spec.base = base;
  spec.length = length;
  spec.rights = rights;
  return spec;
}

inline AccessAsk ask_of(uint64_t key, uint64_t addr = kBase, uint64_t len = 8,
                        Rights need = Rights::remote_write) {
  AccessAsk ask;
  ask.pd = kPd;
  ask.key = Wild<uint64_t>(key);
  ask.addr = Wild<uint64_t>(addr);
  ask.len = Wild<uint64_t>(len);
  ask.need = need;
  return ask;
}

class TableTest : public ::testing::Test {
 protected:
  void SetUp() override { make(KeyTable::kDefaultRegions); }
  void make(uint32_t max_regions) {
    Result<std::unique_ptr<KeyTable>> made = KeyTable::create(max_regions);
    ASSERT_TRUE(made) << describe(made.error());
    table = *std::move(made);
  }
  RegionHandle add(const RegionSpec& spec = spec_of()) {
    Result<RegionHandle> made = table->add(spec);
    EXPECT_TRUE(made) << describe(made.error());
    return made ? *made : RegionHandle{};
  }
  void close(RegionHandle region) {
    const Status s = table->revoke(region, now_ns() + 1'000'000'000);
    EXPECT_TRUE(s) << describe(s.error());
  }
  Denial denial(const AccessAsk& ask, LookupHint* hint = nullptr) const {
    return table->check(ask, hint).denial();
  }

  std::unique_ptr<KeyTable> table;
};

}  // namespace aperture::protect
