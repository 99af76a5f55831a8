// The lives of entries: each step, the steps that are refused, rest and use again.
#include "protect/key_entries.hpp"

#include <mutex>
#include <set>
#include <vector>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

constexpr uint64_t kMax = ~uint64_t{0};

// Entries without a table, which a test fills itself.
class Entries : public ::testing::Test {
 protected:
  static constexpr uint32_t kCapacity = 1000;
  static constexpr uint32_t kRests = 128;  // closes until an entry serves again

  RegionHandle begin(uint64_t key) {
    std::lock_guard guard(entries_.lock());
    RegionHandle made;
    made.key = key;
    EXPECT_TRUE(entries_.take(made.index));
    KeyEntry& entry = own_.layout().entries[made.index];
    entry.key = key;
    entry.pd = kPd;
    entry.rights = 0;
    made.birth = made.generation = entries_.begin_life(made.index);
    chains_.link(made.index, hash_key(kPd, key));
    return made;
  }
  void end(const RegionHandle& region) {
    std::lock_guard guard(entries_.lock());
    entries_.end_life(region);
  }
  Search found(uint64_t key) {
    EntryCopy ignored;
    return search(own_.layout(), kPd, key, ignored);
  }

  OwnKeyFile own_{*OwnKeyFile::make(kCapacity)};
  SideTable sides_{kCapacity};
  KeyChains chains_{own_};
  KeyEntries entries_{own_, chains_, sides_};
};

TEST_F(Entries, a_life_goes_from_valid_through_revoking_to_free) {
  const RegionHandle r = begin(42);
  EXPECT_EQ(entries_.state(r), EntryState::valid);
  EXPECT_TRUE(entries_.in_force(r));
  EXPECT_FALSE(entries_.is_over(r));
  EXPECT_EQ(found(42), Search::valid);
  EXPECT_EQ(entries_.regions(), 1u);
  ASSERT_TRUE(entries_.begin_close(r));
  EXPECT_EQ(entries_.state(r), EntryState::revoking);
  EXPECT_FALSE(entries_.in_force(r));
  EXPECT_FALSE(entries_.is_over(r));
  EXPECT_EQ(found(42), Search::revoking);
  EXPECT_EQ(entries_.regions(), 1u) << "being closed is not closed";
  EXPECT_TRUE(entries_.begin_close(r)) << "begun already";
  end(r);
  EXPECT_TRUE(entries_.is_over(r));
  EXPECT_EQ(found(42), Search::closed);
  EXPECT_EQ(entries_.regions(), 0u);
  EXPECT_EQ(entries_.begin_close(r).error(), Errc::no_entry);
}

TEST_F(Entries, a_life_can_end_at_once) {
  const RegionHandle r = begin(42);
  end(r);
  EXPECT_TRUE(entries_.is_over(r));
  EXPECT_EQ(entries_.regions(), 0u);
}

TEST_F(Entries, only_what_is_being_closed_is_revived_and_in_another_life) {
  const RegionHandle r = begin(42);
  EXPECT_EQ(entries_.revive(r).error(), Errc::no_entry) << "in force";
  ASSERT_TRUE(entries_.begin_close(r));
  Result<RegionHandle> next = entries_.revive(r);
  ASSERT_TRUE(next);
  EXPECT_GT(next->generation, r.generation);
  EXPECT_EQ(next->birth, r.generation);
  EXPECT_EQ(next->index, r.index);
  EXPECT_TRUE(entries_.in_force(*next));
  EXPECT_TRUE(entries_.is_over(r)) << "the old life is";
  EXPECT_EQ(entries_.revive(r).error(), Errc::no_entry);
  EXPECT_EQ(entries_.begin_close(r).error(), Errc::no_entry);
  EXPECT_EQ(entries_.regions(), 1u);
  end(*next);
  EXPECT_EQ(entries_.revive(*next).error(), Errc::no_entry);
}

TEST_F(Entries, what_is_no_handle_names_no_life) {
  const RegionHandle r = begin(42);
  for (const RegionHandle& wrong :
       {RegionHandle{}, RegionHandle{r.index, 0, 0}, RegionHandle{kCapacity, r.generation, 42},
        RegionHandle{~0u, r.generation, 42}, RegionHandle{r.index, r.generation + 1, 42},
        RegionHandle{r.index + 1, r.generation, 42}}) {
    EXPECT_TRUE(entries_.is_over(wrong));
    EXPECT_FALSE(entries_.in_force(wrong));
    EXPECT_EQ(entries_.begin_close(wrong).error(), Errc::no_entry);
    EXPECT_EQ(entries_.revive(wrong).error(), Errc::no_entry);
  }
  EXPECT_TRUE(entries_.in_force(r));
}

TEST_F(Entries, a_free_entry_rests_before_it_serves_again) {
  const RegionHandle first = begin(1);
  end(first);
  for (uint64_t key = 2; key < 1 + kRests; ++key) {
    const RegionHandle other = begin(key);
    EXPECT_NE(other.index, first.index);
    end(other);
  }
  EXPECT_EQ(found(1), Search::closed) << "it still remembers its key";
  end(begin(1000));
  EXPECT_EQ(found(1), Search::unknown);
  EXPECT_EQ(begin(1001).index, first.index);
}

TEST_F(Entries, when_all_are_used_whoever_rests_is_woken) {
  std::vector<RegionHandle> all;
  for (uint64_t key = 0; key < kCapacity; ++key) all.push_back(begin(key));
  uint32_t index = 0;
  EXPECT_EQ(entries_.take(index).error(), Errc::no_space);
  end(all[7]);
  EXPECT_EQ(begin(7000).index, all[7].index);
  EXPECT_EQ(entries_.take(index).error(), Errc::no_space);
  EXPECT_EQ(entries_.used(), kCapacity);
  EXPECT_EQ(own_.layout().header->entries_used, kCapacity);
}

TEST_F(Entries, the_side_record_goes_with_the_life) {
  const RegionHandle r = begin(42);
  static std::byte memory[8];
  sides_.put(r.index, side_over(memory, sizeof memory));
  own_.layout().entries[r.index].rights = kFlagAskOwner;
  ASSERT_TRUE(entries_.begin_close(r));
  EXPECT_NE(sides_.record(r.index), nullptr);
  end(r);
  EXPECT_EQ(sides_.record(r.index), nullptr);
}

class EntriesOfTable : public TableTest {};

TEST_F(EntriesOfTable, key_that_is_in_use_again_outlives_the_rest_of_its_entry) {
  RegionSpec spec = spec_with({.key = 42});
  close(add(spec));
  const RegionHandle again = add(spec);
  for (int i = 0; i < 1000; ++i) close(add());  // every entry that rested is woken
  EXPECT_EQ(denial(ask_of(42)), Denial::none);
  close(again);
}

TEST_F(EntriesOfTable, closing_twice_or_with_a_stale_handle_is_no_entry) {
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

TEST_F(EntriesOfTable, full_table_is_an_error_and_every_place_can_be_used_again) {
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

TEST_F(EntriesOfTable, generations_are_never_used_twice) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 5000; ++i) {
    const RegionHandle r = add();
    EXPECT_TRUE(seen.insert(r.generation).second);
    if (i % 3 != 0) close(r);
  }
}

}  // namespace
}  // namespace aperture::protect
