// Numbers of verbs keys: unique, unpredictable, and not seen again soon. Hostile inputs 1 to 3 for
// keys of 32 bits.
#include "protect/key_numbers.hpp"

#include <algorithm>
#include <deque>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/forked.hpp"
#include "base/random.hpp"

namespace aperture::protect {
namespace {

std::unique_ptr<KeyNumbers> make(unsigned bits = kKeyNumberBits) {
  Result<std::unique_ptr<KeyNumbers>> made = KeyNumbers::create(bits);
  EXPECT_TRUE(made);
  return *std::move(made);
}

uint32_t take(KeyNumbers& numbers) {
  Result<uint32_t> taken = numbers.take();
  EXPECT_TRUE(taken);
  return taken ? *taken : 0;
}

TEST(KeyNumbers, a_key_is_its_number_and_its_tag) {
  EXPECT_EQ(verbs_key(0x123456, 0x78), 0x12345678u);
  EXPECT_EQ(number_of_key(0x12345678), 0x123456u);
  EXPECT_EQ(tag_of_key(0x12345678), 0x78);
  EXPECT_EQ(next_tag(0x12345678), 0x12345679u);
  EXPECT_EQ(next_tag(0x123456ff), 0x12345600u) << "the number stays";
}

TEST(KeyNumbers, need_a_size_that_makes_sense) {
  for (const unsigned bits : {0u, 3u, 25u, 32u}) {
    EXPECT_EQ(KeyNumbers::create(bits).error(), Errc::invalid) << bits;
  }
  EXPECT_TRUE(KeyNumbers::create(4));
}

TEST(KeyNumbers, never_zero_nor_all_ones) {
  auto numbers = make(4);
  std::unordered_set<uint32_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t n = take(*numbers);
    EXPECT_LT(n, 16u);
    seen.insert(n);
    numbers->give_back(n);
  }
  EXPECT_EQ(seen.size(), 14u) << "all others come round";
  EXPECT_EQ(seen.count(0), 0u);
  EXPECT_EQ(seen.count(15), 0u);
}

TEST(KeyNumbers, are_unique_among_those_that_are_out_up_to_a_quarter) {
  auto numbers = make(10);
  for (int round = 0; round < 20; ++round) {
    std::unordered_set<uint32_t> out;
    for (int i = 0; i < 256; ++i) EXPECT_TRUE(out.insert(take(*numbers)).second);
    EXPECT_EQ(numbers->out(), 256u);
    EXPECT_EQ(numbers->take().error(), Errc::no_space);
    for (const uint32_t n : out) numbers->give_back(n);
    EXPECT_EQ(numbers->out(), 0u);
  }
}

TEST(KeyNumbers, stay_out_for_as_long_as_they_are_held) {
  auto numbers = make(10);
  std::unordered_set<uint32_t> held;
  for (int i = 0; i < 200; ++i) held.insert(take(*numbers));
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t n = take(*numbers);
    ASSERT_EQ(held.count(n), 0u);
    numbers->give_back(n);
  }
}

// From its last use on: while it is drawn, held for long, and given back.
TEST(KeyNumbers, are_not_drawn_again_before_half_of_all_have_been) {
  constexpr uint32_t kCount = 1u << 12;
  auto numbers = make(12);
  std::unordered_map<uint32_t, uint64_t> last;  // draws made when it was drawn or came back
  std::deque<uint32_t> held;
  uint64_t draws = 0;
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < 100'000; ++i) {
    const uint32_t n = take(*numbers);
    ++draws;
    if (const auto at = last.find(n); at != last.end()) least = std::min(least, draws - at->second);
    last[n] = draws;
    held.push_back(n);
    while (held.size() > static_cast<size_t>(random_u64() % 700)) {
      const size_t which = random_u64() % held.size();
      numbers->give_back(held[which]);
      last[held[which]] = draws;
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  EXPECT_GE(least, kCount / 2);
  EXPECT_EQ(last.size(), kCount - 2) << "and every one comes round";
}

TEST(KeyNumbers, come_from_any_thread) {
  auto numbers = make(16);
  constexpr int kThreads = 4;
  std::vector<std::vector<uint32_t>> taken(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4000; ++i) {
        const uint32_t n = take(*numbers);
        if (i % 2 == 0) {
          numbers->give_back(n);
        } else {
          taken[t].push_back(n);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::unordered_set<uint32_t> all;
  for (const auto& some : taken) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), 8000u);
  EXPECT_EQ(numbers->out(), 8000u);
}

// 1: no repeat; no delta more likely than 2^-16; a predictor does no better than twice chance
TEST(KeyNumbers, hostile_1_no_key_repeats_and_none_tells_of_the_next) {
  constexpr size_t kKeys = 1u << 20;
  auto numbers = make();
  std::vector<uint32_t> keys;
  keys.reserve(kKeys);
  for (size_t i = 0; i < kKeys; ++i) {
    keys.push_back(take(*numbers));
    if (i % 2 == 0) numbers->give_back(keys.back());
  }
  std::vector<uint32_t> deltas(kKeys - 1);
  for (size_t i = 1; i < kKeys; ++i) deltas[i - 1] = (keys[i] - keys[i - 1]) & 0xffffff;
  std::sort(deltas.begin(), deltas.end());
  size_t most = 0;
  uint32_t likeliest = 0;
  for (size_t i = 0, run = 0; i < deltas.size(); ++i) {
    run = i > 0 && deltas[i] == deltas[i - 1] ? run + 1 : 1;
    if (run > most) likeliest = deltas[i];
    most = std::max(most, run);
  }
  EXPECT_LE(most, kKeys >> 16);
  // each bit given the same bit before it: 8 standard deviations
  for (unsigned b = 0; b < kKeyNumberBits; ++b) {
    size_t same = 0;
    for (size_t i = 1; i < kKeys; ++i) same += ((keys[i] ^ keys[i - 1]) >> b & 1) == 0;
    EXPECT_NEAR(static_cast<double>(same), static_cast<double>(kKeys) / 2, 8 * 512) << b;
  }
  // the top byte of the next, foretold from the last and the likeliest step: chance is 1 in 256
  size_t right = 0;
  for (size_t i = 1; i < kKeys; ++i) {
    right += ((keys[i - 1] + likeliest) & 0xffffff) >> 16 == keys[i] >> 16;
  }
  EXPECT_LE(right, 2 * kKeys / 256);
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
}

// Draws numbers in a new process, from a set of its own.
std::vector<uint32_t> numbers_of_child(int n) {
  std::unique_ptr<KeyNumbers> numbers;
  return test::drawn_in_child<uint32_t>(n, [&](uint32_t& number) {
    if (numbers == nullptr) numbers = *KeyNumbers::create();
    const Result<uint32_t> taken = numbers->take();
    number = taken ? taken.value() : 0;
    return number != 0;
  });
}

// 2: of 24 bits some must meet by chance; a shared sequence would have neighbours in common
TEST(KeyNumbers, hostile_2_a_hundred_restarts_share_no_sequence) {
  auto ours = make();
  std::unordered_set<uint64_t> pairs;
  std::unordered_set<uint32_t> seen;
  size_t drawn = 0;
  size_t pair_count = 0;
  const auto note = [&](const std::vector<uint32_t>& numbers) {
    seen.insert(numbers.begin(), numbers.end());
    drawn += numbers.size();
    for (size_t i = 1; i < numbers.size(); ++i, ++pair_count) {
      pairs.insert(uint64_t{numbers[i - 1]} << 32 | numbers[i]);
    }
  };
  for (int round = 0; round < 100; ++round) {
    const std::vector<uint32_t> numbers = numbers_of_child(32);
    ASSERT_EQ(numbers.size(), 32u);
    note(numbers);
    note({take(*ours), take(*ours)});
  }
  EXPECT_EQ(pairs.size(), pair_count);
  EXPECT_GE(seen.size() + 16, drawn) << "3400 of 2^24 meet less than once, mostly";
}

// 3: what one draws is no nearer to what the other draws than chance makes it
TEST(KeyNumbers, hostile_3_ones_own_keys_say_nothing_of_anothers) {
  constexpr int kPairs = 1 << 18;
  auto attacker = make();
  auto victim = make();
  for (const bool one_process : {false, true}) {
    KeyNumbers& theirs = one_process ? *attacker : *victim;
    int near = 0;
    int alike[kKeyNumberBits] = {};
    for (int i = 0; i < kPairs; ++i) {
      const uint32_t mine = take(*attacker);
      const uint32_t other = take(theirs);
      near += ((other - mine + 128) & 0xffffff) < 256;
      for (unsigned b = 0; b < kKeyNumberBits; ++b) alike[b] += ((mine ^ other) >> b & 1) == 0;
    }
    EXPECT_LE(near, 40) << "4 by chance";
    for (const int n : alike) EXPECT_NEAR(n, kPairs / 2, 8 * 256);
  }
}

}  // namespace
}  // namespace aperture::protect
