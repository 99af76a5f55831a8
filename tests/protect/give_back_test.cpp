// Memory of closed regions given back: what lives is found as before, what is closed stays closed,
// and no peer is left with the file before. Label tsan: a thread that looks meanwhile.
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <set>
#include <thread>

#include "protect/table_fixture.hpp"

namespace aperture::protect {
namespace {

constexpr size_t kMany = 40'000;
constexpr uint64_t kFew = 700'000;  // bytes: the steps that are kept anyway, header and buckets

class GiveBack : public TableTest {
 protected:
  uint64_t bytes() const {
    struct stat now {};
    EXPECT_EQ(::fstat(table->own_file().fd(), &now), 0);
    return static_cast<uint64_t>(now.st_blocks) * 512;
  }
  bool give_back() {
    Result<PublishedFile> other = table->own_file().make_another();
    EXPECT_TRUE(other);
    return table->give_back(*other);
  }
  static RegionSpec spec_at(size_t i) { return spec_of(kBase + i * kLength); }
  std::vector<RegionHandle> add_many(size_t count = kMany) {
    std::vector<RegionHandle> made;
    for (size_t i = 0; i < count; ++i) made.push_back(add(spec_at(i)));
    return made;
  }
  void expect_granted(const RegionHandle& region, size_t i) const {
    EXPECT_EQ(granted(ask_of(region.key, kBase + i * kLength, kLength)).generation,
              region.generation);
    EXPECT_EQ(denial(ask_of(region.key, kBase + i * kLength, kLength + 1)), Denial::out_of_range);
  }
};

TEST_F(GiveBack, all_closed_all_given_back) {
  const uint64_t empty = bytes();
  for (int round = 0; round < 3; ++round) {
    std::vector<RegionHandle> regions = add_many();
    const uint64_t full = bytes();
    EXPECT_GE(full, kMany * sizeof(KeyEntry));
    EXPECT_FALSE(give_back()) << "they are all in use";
    EXPECT_EQ(bytes(), full);
    for (const RegionHandle& region : regions) close(region);
    EXPECT_EQ(bytes(), full) << "only on demand";
    EXPECT_TRUE(table->may_give_back());
    EXPECT_TRUE(give_back());
    EXPECT_LT(bytes(), empty + kFew);
    EXPECT_FALSE(table->may_give_back());
    EXPECT_FALSE(give_back()) << "once is enough";
    for (const RegionHandle& region : regions) {
      ASSERT_TRUE(table->entries().is_over(region));
      ASSERT_FALSE(table->revocation().revoke(region, now_ns()));
    }
    for (size_t i = 0; i < kMany - 200; i += 97) {
      ASSERT_EQ(denial(ask_of(regions[i].key, kBase + i * kLength)), Denial::unknown_key);
    }
    EXPECT_EQ(table->entries().regions(), 0u);
  }
}

TEST_F(GiveBack, what_was_closed_last_is_remembered_as_closed) {
  std::vector<RegionHandle> regions = add_many();
  for (const RegionHandle& region : regions) close(region);
  ASSERT_TRUE(give_back());
  EXPECT_EQ(denial(ask_of(regions.back().key, kBase)), Denial::closed);
  for (int i = 0; i < 200; ++i) close(add());
  EXPECT_EQ(denial(ask_of(regions.back().key, kBase)), Denial::unknown_key);
}

TEST_F(GiveBack, what_lives_is_found_and_what_comes_gets_keys_and_lives_of_its_own) {
  std::vector<RegionHandle> regions = add_many();
  const uint64_t full = bytes();
  std::set<uint64_t> generations, keys;
  for (size_t i = 0; i < kMany; ++i) {
    generations.insert(regions[i].generation);
    keys.insert(regions[i].key);
    if (i % 4001 != 0) close(regions[i]);
  }
  ASSERT_TRUE(give_back());
  EXPECT_LT(bytes(), full / 2);
  for (size_t i = 0; i < kMany; ++i) {
    if (i % 4001 == 0) {
      expect_granted(regions[i], i);
    } else {
      ASSERT_TRUE(table->entries().is_over(regions[i]));
    }
  }
  // into the holes and beyond
  std::vector<RegionHandle> more = add_many(kMany + 5000);
  std::set<uint32_t> places;
  for (size_t i = 0; i < more.size(); ++i) {
    ASSERT_TRUE(generations.insert(more[i].generation).second);
    ASSERT_TRUE(keys.insert(more[i].key).second);
    ASSERT_TRUE(places.insert(more[i].index).second);
    if (i % 97 == 0) expect_granted(more[i], i);
  }
  EXPECT_LT(*places.rbegin(), kMany + 5000 + 2048) << "holes are filled first";
  for (size_t i = 0; i < kMany; i += 4001) {
    EXPECT_EQ(places.count(regions[i].index), 0u);
    expect_granted(regions[i], i);
    close(regions[i]);
  }
  for (const RegionHandle& region : more) close(region);
  EXPECT_TRUE(give_back());
  EXPECT_LT(bytes(), kFew);
}

TEST_F(GiveBack, scattered_lives_are_left_where_they_are) {
  std::vector<RegionHandle> regions = add_many();
  for (size_t i = 0; i < kMany; ++i) {
    if (i % 500 != 0) close(regions[i]);
  }
  const uint64_t full = bytes();
  EXPECT_FALSE(give_back()) << "one in each step";
  EXPECT_EQ(bytes(), full);
  for (size_t i = 0; i < kMany; i += 500) expect_granted(regions[i], i);
  expect_granted(regions[500], 500);
}

TEST_F(GiveBack, says_when_it_is_worth_its_while) {
  int calls = 0;
  table->when_sparse([&calls] { ++calls; });
  for (int i = 0; i < 20'000; ++i) close(add());
  std::vector<RegionHandle> few = add_many(5000);
  for (const RegionHandle& region : few) close(region);
  EXPECT_EQ(calls, 0) << "few regions at a time";
  std::vector<RegionHandle> regions = add_many();
  EXPECT_EQ(calls, 0);
  for (const RegionHandle& region : regions) close(region);
  EXPECT_GT(calls, 0);
  EXPECT_LT(calls, 20) << "and not at each close";
  ASSERT_TRUE(give_back());
  calls = 0;
  for (int i = 0; i < 5000; ++i) close(add());
  EXPECT_EQ(calls, 0);
}

TEST_F(GiveBack, not_while_a_peer_is_attached) {
  const auto slots = std::make_unique<SlotArray>();
  std::vector<RegionHandle> regions = add_many();
  const std::unique_ptr<PeerKeyView> peer = peer_view();
  ASSERT_TRUE(table->accessors().attach(slots.get(), ::getpid()));
  for (const RegionHandle& region : regions) close(region);
  EXPECT_FALSE(table->may_give_back());
  EXPECT_FALSE(give_back()) << "it would go on believing in the file before";
  const RegionHandle living = add();
  EXPECT_EQ(peer->would_refuse(kPd, living.key, kBase, 8, Rights::remote_write), Denial::none);
  ASSERT_TRUE(table->accessors().detach(slots.get()));
  EXPECT_TRUE(table->may_give_back());
  EXPECT_TRUE(give_back());
  EXPECT_LT(bytes(), kFew);
}

TEST_F(GiveBack, the_file_that_follows_is_published_as_the_first_was) {
  std::vector<RegionHandle> regions = add_many();
  for (size_t i = 1; i < kMany; ++i) close(regions[i]);
  const uint64_t nonce = table->own_file().layout().header->nonce;
  ASSERT_TRUE(give_back());
  const OwnKeyFile& own = table->own_file();
  EXPECT_EQ(own.layout().header->nonce, nonce);
  EXPECT_EQ(own.layout().header->self_address, reinterpret_cast<uint64_t>(own.layout().header));
  const uint64_t word = 0;
  EXPECT_LT(::pwrite(own.fd(), &word, sizeof word, 0), 0);
  EXPECT_FALSE(Mapping::map_shared(own.fd(), own.size_bytes(), Mapping::Access::read_write));
  const std::unique_ptr<PeerKeyView> peer = peer_view();
  const auto refusal = [&](const RegionHandle& region) {
    return peer->would_refuse(kPd, region.key, kBase, 8, Rights::remote_write);
  };
  EXPECT_EQ(refusal(regions[0]), Denial::none);
  EXPECT_EQ(refusal(regions[1]), Denial::unknown_key);
  const RegionHandle later = add();
  EXPECT_EQ(refusal(later), Denial::none) << "what is written is what is published";
  close(later);
  EXPECT_EQ(refusal(later), Denial::closed);
}

TEST_F(GiveBack, without_memory_for_another_file_all_stays_as_it_is) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the memory that the sanitizer maps is above any limit";
#endif
  std::vector<RegionHandle> regions = add_many();
  for (size_t i = 1; i < kMany; ++i) close(regions[i]);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{1 << 20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &none), 0);
  const bool made = table->own_file().make_another().ok();
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_FALSE(made);
  expect_granted(regions[0], 0);
  EXPECT_TRUE(give_back());
  expect_granted(regions[0], 0);
}

TEST_F(GiveBack, a_living_key_is_found_at_every_moment) {
  const RegionHandle living = add();
  std::atomic<bool> done{false};
  std::atomic<uint64_t> looked{0}, missed{0};
  std::thread reader([&] {
    LookupHint hint;
    while (!done) {
      for (LookupHint* h : {&hint, static_cast<LookupHint*>(nullptr)}) {
        if (!table->access().check(ask_of(living.key), h).ok()) ++missed;
        ++looked;
      }
    }
  });
  for (int round = 0; round < 10; ++round) {
    std::vector<RegionHandle> regions = add_many(20'000);
    for (const RegionHandle& region : regions) close(region);
    EXPECT_TRUE(give_back());
  }
  done = true;
  reader.join();
  EXPECT_GT(looked.load(), 0u);
  EXPECT_EQ(missed.load(), 0u);
}

}  // namespace
}  // namespace aperture::protect
