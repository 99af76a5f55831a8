// Refusals explained: every part that a person needs is in the one sentence.
#include "protect/table_fixture.hpp"

extern "C" __attribute__((visibility("default"), noinline)) void place_of_registration() {
  asm volatile("");
}

namespace aperture::protect {
namespace {

class Explain : public TableTest {
 protected:
  std::string explain(const AccessAsk& ask) {
    return protect::explain(table->access(), ask, denial(ask));
  }
};

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(text.back(), '.');
}

TEST_F(Explain, out_of_range_names_attempt_key_region_distance_and_fix) {
  RegionSpec spec = spec_of();
  spec.requested_key = 0xabc;
  spec.registered_at = reinterpret_cast<const char*>(&place_of_registration) + 1;
  add(spec);
  expect_parts(explain(ask_of(0xabc, kBase + kLength - 4, 8)),
               {"remote write of 0x100ffc..0x101003 (8 bytes)", "key 0xabc", "domain 7",
                "the range leaves the region", "0x100000..0x100fff (4096 bytes)",
                "remote read and remote write", "ends 4 byte(s) past its end",
                "registered in place_of_registration at explain_test.cpp:", "to make it legal",
                "give virtual addresses"});
  expect_parts(explain(ask_of(0xabc, kBase - 3, 8)), {"begins 3 byte(s) before it"});
  expect_parts(explain(ask_of(0xabc, kBase + kLength + 2, 8)), {"begins 2 byte(s) past its end"});
  expect_parts(explain(ask_of(0xabc, ~uint64_t{0}, 8)), {"wraps round"});
}

TEST_F(Explain, offsets_are_called_offsets) {
  const RegionHandle r = add(spec_with({.zero_based = true}));
  expect_parts(explain(ask_of(r.key, 4095, 2)), {"offset 0xfff..0x1000", "offset 0x0..0xfff",
                                                 "ends 1 byte(s) past its end", "give offsets"});
}

TEST_F(Explain, missing_right_names_both_sides) {
  const RegionHandle r = add(spec_of(kBase, kLength, Rights::remote_read));
  expect_parts(explain(ask_of(r.key)),
               {"remote write of", "does not grant this right", "for remote read", "access flags"});
}

TEST_F(Explain, closed_region_is_still_described) {
  const RegionHandle r = add();
  close(r);
  expect_parts(explain(ask_of(r.key)), {"has been closed", "0x100000..0x100fff"});
}

TEST_F(Explain, closed_region_with_a_side_record_is_described_without_it) {
  const RegionSpec spec = spec_of();
  auto side = side_over(reinterpret_cast<std::byte*>(spec.base), spec.length);
  side->secret = 5;
  const RegionHandle r = *table->add(spec, std::move(side));
  ASSERT_TRUE(table->revocation().revoke(r, now_ns() + 1'000'000'000));
  expect_parts(explain(ask_of(r.key)), {"has been closed", "0x100000..0x100fff"});
}

TEST_F(Explain, unknown_and_foreign_keys_are_told_apart) {
  add(spec_with({.pd = kOtherPd, .key = 77}));
  expect_parts(explain(ask_of(77)), {"another domain", "of domain 8"});
  expect_parts(explain(ask_of(78)), {"no region has this key", "1 region(s) are registered"});
}

TEST_F(Explain, every_denial_has_a_remedy) {
  const RegionHandle r = add();
  for (uint8_t d = 1; d < kDenials; ++d) {
    const std::string text =
        protect::explain(table->access(), ask_of(r.key), static_cast<Denial>(d));
    EXPECT_EQ(text.find("nothing needs to change"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace aperture::protect
