// Registration: which specs and keys are refused, and when a key is free again.
#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

class KeyTableTest : public TableTest {};

constexpr uint64_t kMax = ~uint64_t{0};

TEST_F(KeyTableTest, bad_sizes_are_refused) {
  EXPECT_EQ(KeyTable::create(0).error(), Errc::invalid);
  EXPECT_EQ(KeyTable::create((1u << 24) + 1).error(), Errc::invalid);
  EXPECT_TRUE(KeyTable::create(1));
}

TEST_F(KeyTableTest, bad_specs_are_refused_and_change_nothing) {
  EXPECT_EQ(table->add(spec_of(kBase, kMax)).error(), Errc::invalid);
  EXPECT_EQ(table->add(spec_of(kMax, 2)).error(), Errc::invalid);
  EXPECT_EQ(table->add(spec_of(kMax - 4094, 4096)).error(), Errc::invalid);
  EXPECT_EQ(table->add(spec_with({.pd = 0})).error(), Errc::invalid);
  EXPECT_EQ(table->add(spec_of(kBase, 8, static_cast<Rights>(0x400))).error(), Errc::invalid);
  EXPECT_EQ(table->entries().regions(), 0u);
}

TEST_F(KeyTableTest, chosen_key_is_honoured_once_in_a_domain) {
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{42}, kMax - 1}) {
    RegionSpec spec = spec_with({.key = key});
    EXPECT_EQ(add(spec).key, key);
    EXPECT_EQ(table->add(spec).error(), Errc::no_key);
    spec.pd = kOtherPd;
    EXPECT_EQ(add(spec).key, key);
    EXPECT_EQ(denial(ask_of(key)), Denial::none);
  }
}

TEST_F(KeyTableTest, not_avail_cannot_be_chosen) {
  EXPECT_EQ(table->add(spec_with({.key = kMax})).error(), Errc::key_rejected);
}

TEST_F(KeyTableTest, chosen_key_is_free_again_only_when_its_region_is_closed_for_good) {
  RegionSpec spec = spec_with({.key = 42});
  for (int i = 0; i < 1000; ++i) {
    const RegionHandle r = add(spec);
    ASSERT_TRUE(table->revocation().begin(r));
    EXPECT_EQ(table->add(spec).error(), Errc::no_key);
    EXPECT_TRUE(table->revocation().poll(r));
  }
  EXPECT_EQ(table->entries().regions(), 0u);
}

TEST_F(KeyTableTest, a_key_is_in_use_until_its_region_is_closed_for_good) {
  auto side = std::make_unique<SideRecord>();
  side->segments.push_back({reinterpret_cast<std::byte*>(kBase), kLength, std::nullopt, nullptr});
  side->secret = 5;  // whoever asks does not have it
  const RegionHandle raw = table->add(spec_with({.key = 42}), std::move(side)).value();
  const RegionHandle shut = add(spec_with({.key = 43, .enabled = false}));
  const RegionHandle bound = add(spec_with({.key = 44, .bound_to = 9}));
  for (const RegionHandle& r : {raw, shut, bound}) {
    EXPECT_TRUE(table->is_in_use(kPd, r.key)) << r.key;
    EXPECT_FALSE(table->is_in_use(kOtherPd, r.key)) << r.key;
    ASSERT_TRUE(table->revocation().begin(r));
    EXPECT_TRUE(table->is_in_use(kPd, r.key)) << "it is being closed";
    EXPECT_TRUE(table->revocation().poll(r));
    EXPECT_FALSE(table->is_in_use(kPd, r.key)) << r.key;
  }
  EXPECT_FALSE(table->is_in_use(kPd, 45));
}

}  // namespace
}  // namespace aperture::protect
