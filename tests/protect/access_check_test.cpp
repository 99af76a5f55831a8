// The check: every Denial beside its valid neighbour. Numbers are those of the list of hostile
// inputs.
#include <sys/stat.h>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

class Check : public TableTest {};

constexpr uint64_t kMax = ~uint64_t{0};

TEST_F(Check, valid_access_is_granted_at_its_address) {
  const RegionHandle r = add();
  const Checked c = table->access().check(ask_of(r.key, kBase + 16, 8));
  ASSERT_TRUE(c);
  EXPECT_EQ(c.grant().data(), reinterpret_cast<std::byte*>(kBase + 16));
  EXPECT_EQ(c.grant().size(), 8u);
  EXPECT_EQ(c.grant().region().generation, r.generation);
}

TEST_F(Check, grant_covers_one_chunk_of_a_longer_range) {
  const RegionHandle r = add(spec_of(kBase, 16 << 20));
  const Checked c = table->access().check(ask_of(r.key, kBase, 16 << 20));
  ASSERT_TRUE(c);
  EXPECT_EQ(c.grant().size(), kChunkBytes);
  EXPECT_EQ(denial(ask_of(r.key, kBase, (16 << 20) + 1)), Denial::out_of_range);
}

TEST_F(Check, grant_copies_in_and_out) {
  char memory[64] = {};
  const RegionHandle r = add(spec_of(reinterpret_cast<uint64_t>(memory), sizeof memory));
  const Checked c = table->access().check(ask_of(r.key, reinterpret_cast<uint64_t>(memory) + 4, 8));
  ASSERT_TRUE(c);
  EXPECT_TRUE(c.grant().copy_in("12345678", 8));
  EXPECT_TRUE(c.grant().copy_in("x", 1, 7));
  EXPECT_STREQ(memory + 4, "1234567x");
  char out[3] = {};
  EXPECT_TRUE(c.grant().copy_out(out, 2, 6));
  EXPECT_STREQ(out, "7x");
}

TEST_F(Check, unknown_key_is_refused) {
  const RegionHandle r = add();
  for (const uint64_t key :
       {uint64_t{0}, uint64_t{1}, kMax, r.key ^ 1, r.key ^ (uint64_t{1} << 63)}) {
    EXPECT_EQ(denial(ask_of(key)), Denial::unknown_key) << key;
  }
  EXPECT_EQ(denial(ask_of(r.key)), Denial::none);
}

// 7
TEST_F(Check, key_of_another_domain_is_refused) {
  const RegionHandle mine = add();
  const RegionHandle theirs = add(spec_with({.pd = kOtherPd}));
  EXPECT_EQ(denial(ask_of(theirs.key)), Denial::wrong_domain);
  AccessAsk ask = ask_with({.key = theirs.key, .pd = kOtherPd});
  EXPECT_EQ(denial(ask), Denial::none);
  ask.key = Wild<uint64_t>(mine.key);
  EXPECT_EQ(denial(ask), Denial::wrong_domain);
}

TEST_F(Check, same_chosen_key_in_two_domains_names_two_regions) {
  add(spec_with({.base = 0x1000, .length = 16, .key = 5}));
  add(spec_with({.base = 0x2000, .length = 32, .pd = kOtherPd, .key = 5}));
  EXPECT_EQ(denial(ask_of(5, 0x1000, 16)), Denial::none);
  EXPECT_EQ(denial(ask_of(5, 0x2000, 16)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_with({.key = 5, .addr = 0x2000, .len = 32, .pd = kOtherPd})), Denial::none);
}

// 8
TEST_F(Check, each_right_is_needed_by_itself) {
  constexpr Rights kEach[] = {Rights::remote_read, Rights::remote_write, Rights::remote_atomic,
                              Rights::local_read,  Rights::local_write,  Rights::send,
                              Rights::recv,        Rights::bind_window};
  for (const Rights lacking : kEach) {
    const RegionHandle r = add(spec_of(kBase, kLength, ~lacking));
    for (const Rights need : kEach) {
      EXPECT_EQ(denial(ask_of(r.key, kBase, 8, need)),
                need == lacking ? Denial::missing_right : Denial::none);
      EXPECT_EQ(denial(ask_of(r.key, kBase, 8, need | lacking)), Denial::missing_right);
    }
    const RegionHandle only = add(spec_of(kBase, kLength, lacking));
    EXPECT_EQ(denial(ask_of(only.key, kBase, 8, lacking)), Denial::none);
  }
}

// 9
TEST_F(Check, one_byte_outside_is_refused_on_both_sides) {
  const RegionHandle r = add();
  EXPECT_EQ(denial(ask_of(r.key, kBase, kLength)), Denial::none);
  EXPECT_EQ(denial(ask_of(r.key, kBase - 1, 1)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, kBase - 1, kLength)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, kBase, kLength + 1)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, kBase + kLength - 1, 1)), Denial::none);
  EXPECT_EQ(denial(ask_of(r.key, kBase + kLength - 1, 2)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, kBase + kLength, 1)), Denial::out_of_range);
}

// 10, 11
TEST_F(Check, nothing_wraps) {
  const RegionHandle r = add();
  const RegionHandle z = add(spec_with({.zero_based = true}));
  constexpr uint64_t kLens[] = {
      kLength + 1, (uint64_t{1} << 32) - 1, uint64_t{1} << 32, uint64_t{1} << 63, kMax - 7, kMax};
  for (const uint64_t len : kLens) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1}, kLength - 1, kLength}) {
      EXPECT_EQ(denial(ask_of(r.key, kBase + offset, len)), Denial::out_of_range);
      EXPECT_EQ(denial(ask_of(z.key, offset, len)), Denial::out_of_range);
    }
    // offset + length is a small number again, modulo 2^64
    EXPECT_EQ(denial(ask_of(r.key, kBase + 8 - len, len)), Denial::out_of_range);
    EXPECT_EQ(denial(ask_of(z.key, 8 - len, len)), Denial::out_of_range);
  }
  for (const uint64_t addr : {kMax, kMax - 7, uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_EQ(denial(ask_of(r.key, addr, 8)), Denial::out_of_range);
    if (addr != 0) {
      EXPECT_EQ(denial(ask_of(z.key, addr, 8)), Denial::out_of_range);
    }
  }
}

TEST_F(Check, region_that_ends_with_the_address_space_works_to_its_last_byte) {
  const RegionHandle r = add(spec_of(kMax - 4095, 4096));
  EXPECT_EQ(denial(ask_of(r.key, kMax - 4095, 4096)), Denial::none);
  EXPECT_EQ(denial(ask_of(r.key, kMax, 1)), Denial::none);
  EXPECT_EQ(denial(ask_of(r.key, kMax, 2)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, 0, 1)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, 0, 0)), Denial::out_of_range) << "0 is not behind the last byte";
}

// 12
TEST_F(Check, zero_based_and_virtual_addresses_do_not_mix) {
  const RegionHandle z = add(spec_with({.zero_based = true}));
  const RegionHandle v = add();
  EXPECT_EQ(denial(ask_of(z.key, kBase, 8)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(v.key, 0, 8)), Denial::out_of_range);
  EXPECT_EQ(place_of(ask_of(z.key, 8, 8)), reinterpret_cast<std::byte*>(kBase + 8));
}

// 13
TEST_F(Check, zero_length_access_needs_key_right_and_place) {
  const RegionHandle r = add();
  EXPECT_EQ(denial(ask_of(r.key, kBase, 0)), Denial::none);
  EXPECT_EQ(denial(ask_of(r.key, kBase + kLength, 0)), Denial::none);
  EXPECT_EQ(denial(ask_of(r.key, kBase + kLength + 1, 0)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, kBase - 1, 0)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key + 1, kBase, 0)), Denial::unknown_key);
  EXPECT_EQ(denial(ask_of(r.key, kBase, 0, Rights::remote_atomic)), Denial::missing_right);
}

TEST_F(Check, zero_length_region_allows_nothing_but_zero_length) {
  const RegionHandle r = add(spec_of(kBase, 0));
  EXPECT_EQ(denial(ask_of(r.key, kBase, 0)), Denial::none);
  EXPECT_EQ(denial(ask_of(r.key, kBase, 1)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, kBase, kMax)), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(r.key, kBase + 1, 0)), Denial::out_of_range);
}

// 15
TEST_F(Check, key_of_a_closed_region_is_refused_also_when_its_memory_is_registered_again) {
  const RegionHandle r = add();
  EXPECT_EQ(denial(ask_of(r.key)), Denial::none);
  close(r);
  EXPECT_EQ(denial(ask_of(r.key)), Denial::closed);
  const RegionHandle again = add();
  EXPECT_NE(again.key, r.key);
  EXPECT_NE(again.generation, r.generation);
  EXPECT_EQ(denial(ask_of(r.key)), Denial::closed);
  EXPECT_EQ(denial(ask_of(again.key)), Denial::none);
  // long after that nobody remembers it
  for (int i = 0; i < 1000; ++i) close(add());
  EXPECT_EQ(denial(ask_of(r.key)), Denial::unknown_key);
}

TEST_F(Check, region_that_is_being_closed_is_refused_and_says_so) {
  const RegionHandle r = add();
  ASSERT_TRUE(table->revocation().begin(r));
  EXPECT_EQ(denial(ask_of(r.key)), Denial::revoking);
  EXPECT_TRUE(table->revocation().poll(r));
  EXPECT_EQ(denial(ask_of(r.key)), Denial::closed);
}

TEST_F(Check, disabled_region_is_refused_until_it_is_enabled) {
  const RegionHandle r = add(spec_with({.enabled = false}));
  EXPECT_EQ(denial(ask_of(r.key)), Denial::not_enabled);
  EXPECT_TRUE(table->enable(r));
  EXPECT_EQ(denial(ask_of(r.key)), Denial::none);
  close(r);
  EXPECT_EQ(table->enable(r).error(), Errc::no_entry);
}

TEST_F(Check, the_first_rule_broken_is_the_one_reported) {
  const RegionHandle r = add(spec_with({.enabled = false}));
  AccessAsk bad = ask_of(r.key, 0, kMax, Rights::remote_atomic);
  EXPECT_EQ(denial(bad), Denial::not_enabled);
  ASSERT_TRUE(table->enable(r));
  EXPECT_EQ(denial(bad), Denial::missing_right);
  bad.need = Rights::remote_read;
  EXPECT_EQ(denial(bad), Denial::out_of_range);
}

TEST_F(Check, hint_never_outlives_its_region) {
  LookupHint hint;
  RegionSpec spec = spec_with({.key = 9});
  const RegionHandle r = add(spec);
  EXPECT_EQ(denial(ask_of(9), &hint), Denial::none);
  EXPECT_EQ(hint.index, r.index);
  EXPECT_EQ(hint.key, 9u);
  EXPECT_EQ(denial(ask_of(9), &hint), Denial::none);
  EXPECT_EQ(denial(ask_of(10), &hint), Denial::unknown_key);
  close(r);
  EXPECT_EQ(denial(ask_of(9), &hint), Denial::closed);
  // the same key again, in the same entry, over other memory
  spec.base = 0x9000;
  spec.length = 8;
  const RegionHandle next = add(spec);
  EXPECT_EQ(next.index, r.index);
  EXPECT_EQ(denial(ask_of(9), &hint), Denial::out_of_range);
  EXPECT_EQ(denial(ask_of(9, 0x9000, 8), &hint), Denial::none);
  // nor does it open another domain's door
  AccessAsk other = ask_with({.key = 9, .addr = 0x9000, .pd = kOtherPd});
  EXPECT_EQ(denial(other, &hint), Denial::wrong_domain);
  hint.index = ~0u;
  EXPECT_EQ(denial(ask_of(9, 0x9000, 8), &hint), Denial::none);
}

// Keys that count up are looked for in the next entries first: what lies there must be theirs.
TEST_F(Check, hint_in_step_opens_only_what_the_key_names) {
  LookupHint hint;
  RegionSpec spec = spec_of();
  RegionHandle in_row[8];
  for (const uint64_t key : {100, 101, 102, 104, 105, 103}) {
    spec.requested_key = key;
    spec.base = key * 0x1000;
    in_row[key - 100] = add(spec);
  }
  spec.pd = kOtherPd;
  for (const uint64_t key : {106, 107}) {
    spec.requested_key = key;
    in_row[key - 100] = add(spec);
  }
  const auto at = [&](uint64_t key) {
    return table->access().check(ask_of(key, key * 0x1000), &hint);
  };
  const auto in_step = [&] { return at(100) && at(101) && hint.in_step; };
  for (const uint64_t key : {102, 103, 104, 105}) {
    ASSERT_TRUE(in_step());
    const Checked c = at(key);
    ASSERT_TRUE(c) << key;
    EXPECT_EQ(c.grant().data(), reinterpret_cast<std::byte*>(key * 0x1000));
    EXPECT_EQ(c.grant().region().index, in_row[key - 100].index);
    EXPECT_EQ(c.grant().region().generation, in_row[key - 100].generation);
    EXPECT_EQ(hint.key, key);
    EXPECT_EQ(hint.index, in_row[key - 100].index);
    EXPECT_EQ(hint.in_step, key == 102) << key;  // the others lie one entry further, or back
  }
  for (const uint64_t key : {106, 107}) {
    ASSERT_TRUE(in_step());
    EXPECT_EQ(at(key).denial(), Denial::wrong_domain);
  }
  ASSERT_TRUE(in_step());
  EXPECT_EQ(at(99).denial(), Denial::unknown_key) << "before the first entry";
  EXPECT_EQ(at(108).denial(), Denial::unknown_key) << "past the last";
  close(in_row[2]);
  ASSERT_TRUE(in_step());
  EXPECT_EQ(at(102).denial(), Denial::closed);
  ASSERT_TRUE(table->revocation().begin(in_row[1]));
  EXPECT_EQ(at(101).denial(), Denial::revoking);
}

EntryCopy over(uint64_t base, uint64_t length, uint32_t flags = 0) {
  EntryCopy entry;
  entry.base = base;
  entry.length = length;
  entry.rights = flags;
  return entry;
}

TEST(PlaceHint, knows_where_the_pieces_of_one_buffer_lie_whatever_order_they_are_met_in) {
  PlaceHint hint;
  const auto base = [](uint64_t key) { return 0x10000 + key * 192; };
  for (const uint64_t key : {7, 900, 3, 4, 70, 12}) hint.learn(key, over(base(key), 192));
  for (const uint64_t key : {0, 8, 12, 500, 1'000'000}) EXPECT_EQ(hint.base_of(key), base(key));
  // backwards too, and with keys that wrap
  PlaceHint down;
  for (const uint64_t key : {5, 4, 100}) down.learn(key, over(0x100000 - key * 64, 64));
  EXPECT_EQ(down.base_of(1), 0x100000u - 64);
  EXPECT_EQ(down.base_of(~uint64_t{0}), 0x100000u + 64);
}

TEST(PlaceHint, gives_up_where_there_is_no_order_until_there_is_one) {
  PlaceHint hint;
  uint64_t somewhere = 1;
  for (uint64_t key = 1; key < 40; ++key) {
    somewhere = somewhere * 6364136223846793005u + 1;
    hint.learn(key, over(somewhere, 8));
    hint.fetch(key + 1, somewhere);  // of memory that is not there: no fault
  }
  EXPECT_EQ(hint.wrong, PlaceHint::kGiveUp);
  const uint64_t stride = hint.stride;
  hint.learn(40, over(hint.base + stride, 8));
  EXPECT_EQ(hint.wrong, 0);
}

TEST(PlaceHint, survives_any_numbers) {
  constexpr uint64_t kMost = ~uint64_t{0};
  constexpr uint64_t kTop = uint64_t{1} << 63;
  PlaceHint hint;
  for (const uint64_t key : {uint64_t{0}, kMost, kTop, uint64_t{1}, kTop - 1, uint64_t{0}}) {
    for (const uint64_t base : {uint64_t{0}, kTop, kMost, uint64_t{1}}) {
      hint.learn(key, over(base, kMost, kFlagZeroBased));
      hint.fetch(key + 1, kTop);
      EXPECT_EQ(hint.base_of(key), base);
    }
  }
}

// Pages of the file that hold no entry yet stay holes, whatever key a peer names.
TEST_F(Check, hint_in_step_leaves_unused_entries_alone) {
  LookupHint hint;
  RegionSpec spec = spec_of();
  for (const uint64_t key : {0, 1}) {
    spec.requested_key = key;
    add(spec);
    ASSERT_EQ(denial(ask_of(key), &hint), Denial::none);
  }
  ASSERT_TRUE(hint.in_step);
  struct stat before {
  }, after{};
  ASSERT_EQ(::fstat(table->own_file().fd(), &before), 0);
  for (uint64_t key = 100'000; key < KeyTable::kDefaultRegions + 100; key += 50'000) {
    EXPECT_EQ(denial(ask_of(key), &hint), Denial::unknown_key);
  }
  EXPECT_EQ(denial(ask_of(~uint64_t{0}), &hint), Denial::unknown_key);
  ASSERT_EQ(::fstat(table->own_file().fd(), &after), 0);
  EXPECT_EQ(after.st_blocks, before.st_blocks);
}

TEST_F(Check, recheck_follows_one_life_of_a_region) {
  const RegionSpec spec = spec_with({.key = 9});
  const RegionHandle r = add(spec);
  const RegionRef ref = granted(ask_of(9));
  EXPECT_TRUE(table->access().recheck(ask_of(9, kBase + 100, 8), ref));
  EXPECT_EQ(table->access().recheck(ask_of(9, kBase + kLength, 8), ref).denial(),
            Denial::out_of_range);
  ASSERT_TRUE(table->revocation().begin(r));
  EXPECT_EQ(table->access().recheck(ask_of(9), ref).denial(), Denial::revoking);
  EXPECT_TRUE(table->revocation().poll(r));
  add(spec);  // same key, same memory, another life: the old operation must not go on in it
  EXPECT_EQ(denial(ask_of(9)), Denial::none);
  EXPECT_EQ(table->access().recheck(ask_of(9), ref).denial(), Denial::closed);
  EXPECT_EQ(table->access().recheck(ask_of(9), RegionRef{~0u, 5}).denial(), Denial::unknown_key);
}

// What refusals are explained with.
TEST_F(Check, facts_are_of_the_entry_that_the_key_named_last) {
  EXPECT_FALSE(table->access().facts(kPd, 42).found);
  const RegionHandle other = add(spec_with({.length = 8, .pd = kOtherPd, .key = 42}));
  RegionFacts facts = table->access().facts(kPd, 42);
  EXPECT_TRUE(facts.found);
  EXPECT_EQ(facts.pd, kOtherPd) << "the key names something elsewhere";
  EXPECT_EQ(facts.length, 8u);
  const RegionHandle ours = add(spec_with({.key = 42, .origin = 0x9000, .bound_to = 5}));
  facts = table->access().facts(kPd, 42);
  EXPECT_EQ(facts.pd, kPd);
  EXPECT_EQ(facts.regions, 2u);
  EXPECT_EQ(facts.origin, 0x9000u);
  EXPECT_EQ(facts.length, kLength);
  EXPECT_EQ(facts.rights, kReadWrite);
  EXPECT_EQ(facts.bound_to, 5u);
  EXPECT_FALSE(facts.zero_based);
  EXPECT_EQ(facts.buffers, 1u);
  EXPECT_FALSE(facts.endpoint);
  close(ours);
  facts = table->access().facts(kPd, 42);
  EXPECT_EQ(facts.pd, kPd) << "closed, and still what the key named here";
  EXPECT_EQ(facts.regions, 1u);
  close(other);
  EXPECT_TRUE(table->access().facts(kOtherPd, 42).found);
  EXPECT_FALSE(table->access().facts(kPd + 100, 42).found) << "closed elsewhere is no hint";
}

TEST_F(Check, facts_of_a_side_record_leave_its_secret_out_and_end_with_the_region) {
  std::byte a[16];
  std::byte b[16];
  auto side = side_over(a, sizeof a);
  side->segments.push_back({b, sizeof b, std::nullopt});
  side->needs_endpoint = true;
  side->endpoint = 9;
  const auto base = reinterpret_cast<uint64_t>(a);
  const RegionHandle r =
      add(spec_with({.base = base, .length = 32, .key = 42, .zero_based = true}), std::move(side));
  RegionFacts facts = table->access().facts(kPd, 42);
  EXPECT_EQ(facts.buffers, 2u);
  EXPECT_EQ(facts.endpoint, std::optional<EndpointId>(9));
  EXPECT_TRUE(facts.zero_based);
  EXPECT_EQ(facts.origin, 0u);
  close(r);
  facts = table->access().facts(kPd, 42);
  EXPECT_TRUE(facts.found);
  EXPECT_EQ(facts.buffers, 1u);
  EXPECT_FALSE(facts.endpoint);
}

}  // namespace
}  // namespace aperture::protect
