// The chains of the key file: what is linked is found, by its owner and by who reads the file.
#include "protect/key_chains.hpp"

#include <set>
#include <unordered_map>
#include <utility>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

// Chains without a table: entries are filled by hand.
class Chains : public ::testing::Test {
 protected:
  static constexpr uint32_t kCapacity = 4096;

  void put(uint32_t index, DomainId pd, uint64_t key, EntryState state = EntryState::valid) {
    ASSERT_TRUE(own_.have_entries(index + 1));
    KeyEntry& entry = own_.layout().entries[index];
    entry.key = key;
    entry.pd = pd;
    entry.state_gen = state_gen_of(index + 1, state);
    own_.layout().header->entries_used = std::max<uint32_t>(used_, index + 1);
    used_ = std::max(used_, index + 1);
    chains_.link(index, hash_key(pd, key));
  }
  void free(uint32_t index) {
    own_.layout().entries[index].state_gen = state_gen_of(index + 1, EntryState::free);
  }
  bool is_taken(DomainId pd, uint64_t key) {
    return chains_.is_taken(hash_key(pd, key), pd, key, resting_);
  }
  Search found(DomainId pd, uint64_t key) {
    EntryCopy ignored;
    return search(own_.layout(), pd, key, ignored);
  }
  uint64_t version() { return own_.layout().header->version; }

  OwnKeyFile own_{*OwnKeyFile::make(kCapacity)};
  KeyChains chains_{own_};
  uint32_t used_ = 0;
  uint32_t resting_ = 0;
};

TEST_F(Chains, what_is_linked_is_taken_and_found_in_its_domain_alone) {
  ASSERT_TRUE(chains_.is_made());
  put(0, kPd, 42);
  EXPECT_TRUE(is_taken(kPd, 42));
  EXPECT_FALSE(is_taken(kOtherPd, 42));
  EXPECT_FALSE(is_taken(kPd, 43));
  EXPECT_EQ(found(kPd, 42), Search::valid);
  EXPECT_EQ(found(kOtherPd, 42), Search::unknown);
  EXPECT_EQ(chains_.linked(), 1u);
}

TEST_F(Chains, an_entry_that_is_being_closed_keeps_its_key_and_a_free_one_only_remembers_it) {
  put(0, kPd, 42, EntryState::revoking);
  EXPECT_TRUE(is_taken(kPd, 42));
  free(0);
  EXPECT_FALSE(is_taken(kPd, 42));
  EXPECT_EQ(resting_, 1u) << "its next life can be the new one";
  EXPECT_EQ(found(kPd, 42), Search::closed);
  EXPECT_FALSE(is_taken(kPd, 43));
  EXPECT_EQ(resting_, 0u);
}

TEST_F(Chains, who_leaves_a_chain_is_announced_and_forgets_its_key) {
  for (uint32_t i = 0; i < 600; ++i) put(i, kPd, i * 16);
  const uint64_t before = version();
  EXPECT_EQ(before % 2, 0u);
  for (const uint32_t i : {0u, 599u, 300u}) {
    free(i);
    chains_.unlink(i);
    EXPECT_EQ(found(kPd, i * 16), Search::unknown);
    EXPECT_FALSE(is_taken(kPd, i * 16));
    EXPECT_EQ(resting_, 0u);
    EXPECT_EQ(own_.layout().entries[i].pd, 0u);
    EXPECT_EQ(own_.layout().entries[i].key, 0u);
  }
  EXPECT_EQ(version(), before + 6) << "a walk that met one of them is made again";
  EXPECT_EQ(chains_.linked(), 597u);
  for (const uint32_t i : {1u, 299u, 301u, 598u}) EXPECT_EQ(found(kPd, i * 16), Search::valid);
}

TEST_F(Chains, splits_move_nothing_out_of_reach_and_end_with_the_file) {
  for (uint32_t i = 0; i < kCapacity; ++i) {
    put(i, kPd, i * 0x9e3779b97f4a7c15u);
    chains_.split_if_crowded();
    ASSERT_EQ(version() % 2, 0u);
  }
  KeyHeader& header = *own_.layout().header;
  EXPECT_GT(header.bucket_count, kBucketsAtStart);
  EXPECT_LE(header.bucket_count, own_.layout().max_buckets);
  for (uint32_t i = 0; i < kCapacity; ++i) {
    ASSERT_EQ(found(kPd, i * 0x9e3779b97f4a7c15u), Search::valid) << i;
    ASSERT_TRUE(is_taken(kPd, i * 0x9e3779b97f4a7c15u)) << i;
  }
  for (uint32_t i = 0; i < 3 * kCapacity; ++i) chains_.split_if_crowded();
  EXPECT_EQ(header.bucket_count, own_.layout().max_buckets) << "two for each region";
}

class ChainsOfTable : public TableTest {};

// Chains are per bucket: the same key of two domains may meet in one.
TEST_F(ChainsOfTable, same_key_of_two_domains_in_one_chain) {
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

TEST_F(ChainsOfTable, keys_are_found_through_growth_and_among_closed_ones) {
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

TEST_F(ChainsOfTable, a_million_regions_are_found_by_their_keys) {
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

// Two domains in which one key has the same 32 bits of hash, as far as the owner keeps it.
std::pair<DomainId, DomainId> domains_that_collide(uint64_t key) {
  std::unordered_map<uint32_t, DomainId> seen;
  for (DomainId pd = 1; pd < 2'000'000; ++pd) {
    const auto [it, fresh] = seen.emplace(static_cast<uint32_t>(hash_key(pd, key)), pd);
    if (!fresh) return {it->second, pd};
  }
  return {};
}

TEST_F(ChainsOfTable, a_key_is_in_use_in_its_own_domain_only_even_where_hashes_agree) {
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
