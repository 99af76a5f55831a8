// Registration: which specs and keys are refused, growth, a full table, entries used again.
#include <unordered_map>
#include <utility>

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

TEST_F(KeyTableTest, key_that_is_in_use_again_outlives_the_rest_of_its_entry) {
  RegionSpec spec = spec_with({.key = 42});
  close(add(spec));
  const RegionHandle again = add(spec);
  for (int i = 0; i < 1000; ++i) close(add());  // every entry that rested is woken
  EXPECT_EQ(denial(ask_of(42)), Denial::none);
  close(again);
}

// Chains are per bucket: the same key of two domains may meet in one.
TEST_F(KeyTableTest, same_key_of_two_domains_in_one_chain) {
  const auto bucket = [](DomainId pd, uint64_t key) {
    return bucket_of(hash_key(pd, key), kBucketsAtStart);
  };
  RegionSpec spec = spec_of(), other = spec_of(0x900000, 8);
  uint64_t key = 0;
  DomainId elsewhere = kPd;
  do {  // most pairs of domains have such a key soon, some never
    if (key % 4096 == 0) ++elsewhere;
    ++key;
  } while (bucket(kPd, key) != bucket(elsewhere, key));
  other.pd = elsewhere;
  spec.requested_key = other.requested_key = key;
  const RegionHandle first = add(other);
  EXPECT_EQ(denial(ask_of(key)), Denial::wrong_domain);
  const RegionHandle second = add(spec);  // refused to nobody: domains have their own keys
  EXPECT_EQ(denial(ask_of(key)), Denial::none);
  EXPECT_EQ(denial(ask_with({.key = key, .addr = 0x900000, .pd = elsewhere})), Denial::none)
      << "behind the other one in its chain";
  for (const RegionHandle r : {first, second}) close(r);
}

TEST_F(KeyTableTest, closing_twice_or_with_a_stale_handle_is_no_entry) {
  const RegionHandle r = add();
  close(r);
  EXPECT_EQ(table->revocation().revoke(r, kMax).error(), Errc::no_entry);
  EXPECT_EQ(table->revocation().begin(r).error(), Errc::no_entry);
  EXPECT_TRUE(table->revocation().poll(r));
  EXPECT_EQ(table->revocation().revoke(RegionHandle{}, kMax).error(), Errc::no_entry);
  EXPECT_EQ(table->revocation().revoke(RegionHandle{~0u, 1, 0}, kMax).error(), Errc::no_entry);
  EXPECT_EQ(table->revocation().revoke(RegionHandle{5, 77, 0}, kMax).error(), Errc::no_entry);
  for (int i = 0; i < 300; ++i) close(add());
  const RegionHandle other = add();
  EXPECT_EQ(
      table->revocation().revoke(RegionHandle{other.index, r.generation, r.key}, kMax).error(),
      Errc::no_entry);
  EXPECT_EQ(denial(ask_of(other.key)), Denial::none);
}

TEST_F(KeyTableTest, full_table_is_an_error_and_every_place_can_be_used_again) {
  make(1000);
  for (int round = 0; round < 3; ++round) {
    std::vector<RegionHandle> all;
    for (int i = 0; i < 1000; ++i) all.push_back(add());
    EXPECT_EQ(table->add(spec_of()).error(), Errc::no_space);
    EXPECT_EQ(table->entries().regions(), 1000u);
    for (const RegionHandle& r : all) EXPECT_EQ(denial(ask_of(r.key)), Denial::none);
    for (const RegionHandle& r : all) close(r);
    EXPECT_EQ(table->entries().regions(), 0u);
  }
}

TEST_F(KeyTableTest, generations_are_never_used_twice) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 5000; ++i) {
    const RegionHandle r = add();
    EXPECT_TRUE(seen.insert(r.generation).second);
    if (i % 3 != 0) close(r);
  }
}

TEST_F(KeyTableTest, keys_are_found_through_growth_and_among_closed_ones) {
  constexpr int kRegions = 20000;
  std::vector<RegionHandle> all;
  for (int i = 0; i < kRegions; ++i) {
    RegionSpec spec = spec_of(kBase + static_cast<uint64_t>(i) * 16, 16);
    if (i % 2 == 0) spec.requested_key = static_cast<uint64_t>(i);
    all.push_back(add(spec));
  }
  for (int i = 0; i < kRegions; i += 3) close(all[static_cast<size_t>(i)]);
  int unknown = 0;
  for (int i = 0; i < kRegions; ++i) {
    const Denial d =
        denial(ask_of(all[static_cast<size_t>(i)].key, kBase + static_cast<uint64_t>(i) * 16, 16));
    if (i % 3 != 0) {
      EXPECT_EQ(d, Denial::none) << i;
    } else {
      EXPECT_TRUE(d == Denial::unknown_key || d == Denial::closed) << i;
      unknown += d == Denial::unknown_key;
    }
  }
  EXPECT_GT(unknown, 0);
}

// Applications choose keys that count, in their low bits or anywhere else: no chain may grow long.
TEST(HashKey, keys_that_count_in_any_bit_are_spread) {
  constexpr uint32_t kKeys = 8192;
  constexpr uint32_t kBuckets = 16384 + 777;
  for (int shift = 0; shift < 64; ++shift) {
    std::vector<uint32_t> chain(kBuckets);
    std::set<uint64_t> different;
    uint32_t longest = 0;
    for (uint64_t i = 0; i < kKeys; ++i) {
      const uint64_t key = i << shift;
      if (!different.insert(key).second) continue;
      longest = std::max(longest, ++chain[bucket_of(hash_key(kPd, key), kBuckets)]);
    }
    EXPECT_LE(longest, 16u) << "shift " << shift;
  }
}

TEST_F(KeyTableTest, million_regions) {
  constexpr size_t kRegions = 1'000'000;
  std::vector<uint64_t> keys;
  keys.reserve(kRegions);
  for (size_t i = 0; i < kRegions; ++i) keys.push_back(add(spec_of(kBase + i * 64, 64)).key);
  EXPECT_EQ(table->entries().regions(), kRegions);
  for (size_t i = 0; i < kRegions; i += 97) {
    ASSERT_EQ(denial(ask_of(keys[i], kBase + i * 64, 64)), Denial::none);
    ASSERT_EQ(denial(ask_of(keys[i], kBase + i * 64, 65)), Denial::out_of_range);
  }
}

TEST_F(KeyTableTest, the_file_cannot_be_written_by_whoever_holds_the_descriptor) {
  const uint64_t word = 0;
  EXPECT_LT(::pwrite(table->own_file().fd(), &word, sizeof word, 0), 0);
  EXPECT_FALSE(Mapping::map_shared(table->own_file().fd(), table->own_file().size_bytes(),
                                   Mapping::Access::read_write));
  EXPECT_TRUE(is_sealed_and_at_least(table->own_file().fd(), table->own_file().size_bytes()));
}

// Two domains in which one key has the same 32 bits of hash, as far as the owner keeps it.
std::pair<DomainId, DomainId> domains_that_collide(uint64_t key) {
  std::unordered_map<uint32_t, DomainId> seen;
  for (DomainId pd = 1; pd < 2'000'000; ++pd) {
    const auto [it, fresh] = seen.emplace(static_cast<uint32_t>(hash_key(pd, key)), pd);
    if (!fresh) return {it->second, pd};
  }
  return {};
}

TEST_F(KeyTableTest, a_key_is_in_use_in_its_own_domain_only_even_where_hashes_agree) {
  const auto [first, second] = domains_that_collide(4711);
  ASSERT_NE(first, 0u);
  RegionSpec spec = spec_with({.pd = first, .key = 4711});
  add(spec);
  spec.pd = second;
  EXPECT_TRUE(table->add(spec)) << first << " and " << second;
  EXPECT_EQ(table->add(spec).error(), Errc::no_key);
}

}  // namespace
}  // namespace aperture::protect
