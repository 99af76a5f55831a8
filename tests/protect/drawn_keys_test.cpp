// Drawn keys cannot be guessed from one another: hostile inputs 1, 2, 3 and 6.
#include <unordered_set>

#include "base/forked.hpp"
#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

class Keys : public TableTest {};

// 1: no repeat; no delta more likely than 2^-16; a predictor does no better than chance
TEST_F(Keys, hostile_1_no_key_repeats_and_none_tells_of_the_next) {
  constexpr size_t kKeys = 1u << 20;
  std::vector<uint64_t> keys;
  keys.reserve(kKeys);
  for (size_t i = 0; i < kKeys; ++i) {
    const RegionHandle r = add();
    keys.push_back(r.key);
    if (i % 2 == 0) close(r);
  }
  std::vector<uint64_t> deltas(kKeys - 1);
  for (size_t i = 1; i < kKeys; ++i) deltas[i - 1] = keys[i] - keys[i - 1];
  std::sort(deltas.begin(), deltas.end());
  size_t most = 0;
  for (size_t i = 0, run = 0; i < deltas.size(); ++i) {
    run = i > 0 && deltas[i] == deltas[i - 1] ? run + 1 : 1;
    most = std::max(most, run);
  }
  EXPECT_LE(most, kKeys >> 16);
  // each bit given the same bit before it: 8 standard deviations
  for (int b = 0; b < 64; ++b) {
    size_t same = 0;
    for (size_t i = 1; i < kKeys; ++i) same += ((keys[i] ^ keys[i - 1]) >> b & 1) == 0;
    EXPECT_NEAR(static_cast<double>(same), static_cast<double>(kKeys) / 2, 8 * 512) << b;
  }
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
  EXPECT_NE(keys.front(), 0u);
  EXPECT_NE(keys.back(), ~uint64_t{0});
}

// Draws keys in a new process, from a table of its own.
std::vector<uint64_t> keys_of_child(int n) {
  std::unique_ptr<KeyTable> table;
  return test::drawn_in_child<uint64_t>(n, [&](uint64_t& key) {
    if (table == nullptr) table = *KeyTable::create(1024);
    Result<RegionHandle> r = table->add(spec_of());
    if (r) key = r->key;
    return r.ok();
  });
}

// 2 and 3: a hundred restarts and forks share no key, with one another or with us
TEST_F(Keys, hostile_2_and_3_restarted_and_forked_processes_share_no_key) {
  std::unordered_set<uint64_t> seen;
  size_t drawn = 0;
  for (int i = 0; i < 32; ++i, ++drawn) seen.insert(add().key);
  for (int round = 0; round < 100; ++round) {
    const std::vector<uint64_t> keys = keys_of_child(32);
    EXPECT_EQ(keys.size(), 32u);
    for (const uint64_t key : keys) seen.insert(key);
    drawn += keys.size();
    seen.insert(add().key);
    ++drawn;
  }
  EXPECT_EQ(seen.size(), drawn);
}

// Drawn in advance, when another domain was the last to register: the hash must be of this one.
TEST(Draw, a_key_is_hashed_in_the_domain_that_it_is_for) {
  OwnKeyFile own(*OwnKeyFile::make(1024));
  const KeyChains chains(own);
  DrawnKeys keys;
  for (uint32_t i = 0; i < 10 * DrawnKeys::kAhead; ++i) {
    const DomainId pd = i % 5 == 0 ? kOtherPd : kPd;
    const DrawnKeys::Drawn drawn = keys.draw(pd, chains);
    EXPECT_EQ(drawn.hash, hash_key(pd, drawn.key));
    EXPECT_NE(drawn.key, 0u);
  }
}

// 6
TEST_F(Keys, hostile_6_a_million_guesses_find_nothing) {
  for (int i = 0; i < 1000; ++i) add();
  const uint64_t mine = add().key;
  uint64_t guess = 0x9e3779b97f4a7c15;
  for (int i = 0; i < 1'000'000; ++i) {
    guess = i % 2 == 0 ? guess * 6364136223846793005u + 1442695040888963407u
                       : mine + static_cast<uint64_t>(i) - 500'000;  // near a key of our own
    if (guess == mine) continue;
    ASSERT_EQ(denial(ask_of(guess)), Denial::unknown_key);
  }
}

}  // namespace
}  // namespace aperture::protect
