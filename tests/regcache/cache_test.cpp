// What the cache keeps, finds and gives up, with a monitor that the test speaks for.
#include "regcache/cache.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "fakes.hpp"

namespace aperture::regcache::test {
namespace {

constexpr uint64_t kBase = 0x10000000;

class Caching : public testing::Test {
 protected:
  explicit Caching(const Options& options = {}) {
    auto made = Cache::create(books_, options);
    EXPECT_TRUE(made);
    cache_ = std::move(*made);
    monitor_.emplace(*cache_);
    cache_->set_monitor(*monitor_);
  }
  ~Caching() override {
    cache_.reset();
    EXPECT_EQ(books_.live(), 0u) << "each is given back";
  }

  static Range pages(uint64_t first, uint64_t count) {
    return {kBase + first * kPage, kBase + (first + count) * kPage};
  }
  Cache::Use acquire(uint64_t first, uint64_t count, Access access = Access::read_write) {
    auto use = cache_->acquire(at(kBase + first * kPage), count * kPage, access);
    EXPECT_TRUE(use);
    return use ? *use : Cache::Use();
  }
  // The resource that such a use gets, after which it is given back.
  Registrar::Resource touch(uint64_t first, uint64_t count, Access access = Access::read_write) {
    const Cache::Use use = acquire(first, count, access);
    const Registrar::Resource resource = use.resource();
    cache_->release(use);
    return resource;
  }

  Books books_;
  std::unique_ptr<Cache> cache_;
  std::optional<ToldMonitor> monitor_;
};

TEST_F(Caching, finds_what_was_used_before) {
  const auto first = touch(0, 4);
  EXPECT_EQ(touch(0, 4), first);
  EXPECT_EQ(touch(1, 2), first) << "within it";
  EXPECT_EQ(books_.made(), 1u);
  EXPECT_EQ(cache_->counts().hits, 2u);
  EXPECT_EQ(cache_->counts().misses, 1u);
}

TEST_F(Caching, makes_them_for_whole_pages) {
  auto use = cache_->acquire(at(kBase + 100), 2 * kPage, Access::read);
  ASSERT_TRUE(use);
  EXPECT_EQ(use->range().begin, kBase);
  EXPECT_EQ(use->range().end, kBase + 3 * kPage);
  cache_->release(*use);
}

TEST_F(Caching, refuses_no_bytes_and_what_leaves_the_address_space) {
  EXPECT_EQ(cache_->acquire(at(kBase), 0, Access::read).error(), Errc::invalid);
  EXPECT_EQ(cache_->acquire(at(~uint64_t{0} - 10), 11, Access::read).error(), Errc::invalid);
  EXPECT_EQ(cache_->acquire(at(kBase), ~size_t{0}, Access::read).error(), Errc::invalid);
  EXPECT_EQ(books_.made(), 0u);
}

TEST_F(Caching, a_refusal_of_the_registrar_is_the_callers_to_hear) {
  books_.refuses = [](const Range&) { return true; };
  EXPECT_EQ(cache_->acquire(at(kBase), 1, Access::read).error(), Errc::no_memory);
  EXPECT_EQ(cache_->kept(), 0u);
  ASSERT_EQ(monitor_->forgotten.size(), 1u) << "nothing of it is watched any more";
}

// --- rights ---

TEST_F(Caching, rights_are_never_widened) {
  const auto read = touch(0, 4, Access::read);
  const auto write = touch(0, 4, Access::write);
  EXPECT_NE(read, write);
  EXPECT_EQ(books_.of(read).access, Access::read);
  EXPECT_EQ(books_.of(write).access, Access::write);
  EXPECT_EQ(touch(0, 1, Access::read), read);
  EXPECT_NE(touch(0, 1, Access::read_write), read);
}

TEST_F(Caching, one_with_more_rights_serves_who_wants_fewer) {
  const auto both = touch(0, 4, Access::read_write);
  EXPECT_EQ(touch(0, 4, Access::read), both);
  EXPECT_EQ(touch(2, 1, Access::write), both);
}

TEST_F(Caching, what_overlaps_with_the_same_rights_grows_together_and_with_others_does_not) {
  const auto write = touch(2, 4, Access::write);
  touch(0, 4, Access::read);
  const auto joined = touch(3, 4, Access::read);  // pages 0 to 6
  EXPECT_EQ(books_.of(joined).range.begin, pages(0, 7).begin);
  EXPECT_EQ(books_.of(joined).range.end, pages(0, 7).end);
  EXPECT_EQ(touch(0, 7, Access::read), joined);
  EXPECT_EQ(cache_->kept(), 2u);
  EXPECT_EQ(books_.of(write).range.begin, pages(2, 4).begin) << "the other stays as it was";
  cache_->give_back_what_is_over();
  EXPECT_EQ(books_.live(), 2u);
}

TEST_F(Caching, what_adjoins_stays_apart) {
  touch(0, 2);
  touch(2, 2);
  EXPECT_EQ(cache_->kept(), 2u);
}

TEST_F(Caching, one_in_use_that_has_grown_into_another_is_given_back_by_its_last_user) {
  const Cache::Use small = acquire(0, 2);
  const auto large = touch(1, 2);
  EXPECT_EQ(books_.live(), 2u);
  EXPECT_EQ(touch(0, 2), large);
  cache_->release(small);
  EXPECT_EQ(books_.live(), 1u);
}

TEST_F(Caching, where_there_is_no_room_for_the_joined_one_what_was_asked_for_is_made) {
  touch(0, 2);
  books_.refuses = [](const Range& range) { return range.size() > 2 * kPage; };
  const Cache::Use use = acquire(1, 2);
  EXPECT_EQ(use.range().size(), 2 * kPage);
  cache_->release(use);
  EXPECT_EQ(cache_->counts().not_kept, 1u);
}

// --- changes ---

TEST_F(Caching, what_has_changed_is_not_found_again) {
  for (const auto kind : {Change::Kind::unmapped, Change::Kind::dropped, Change::Kind::moved}) {
    const auto before = touch(0, 4);
    monitor_->tell(pages(3, 1), kind);
    EXPECT_NE(touch(0, 4), before);
  }
  EXPECT_EQ(cache_->counts().stale, 2u) << "after a drop nothing is kept for a while";
}

// Whoever put it found the lock taken, and its holder was just giving it back.
TEST_F(Caching, a_change_that_nobody_has_taken_yet_counts) {
  const auto before = touch(0, 4);
  cache_->changes().begin();
  cache_->changes().put({pages(3, 1), Change::Kind::unmapped});
  cache_->changes().end();
  EXPECT_NE(touch(0, 4), before);
}

TEST_F(Caching, what_lies_beside_a_change_stays) {
  const auto before = touch(0, 4);
  monitor_->tell(pages(4, 1));
  EXPECT_EQ(touch(0, 4), before);
}

TEST_F(Caching, a_change_reaches_all_that_overlap_it) {
  touch(0, 2, Access::read);
  touch(1, 2, Access::write);
  touch(4, 2, Access::read);
  const auto far = touch(8, 2, Access::read);
  monitor_->tell(pages(1, 4));
  EXPECT_EQ(cache_->kept(), 1u);
  EXPECT_EQ(touch(8, 2, Access::read), far);
}

TEST_F(Caching, one_in_use_stays_with_its_users_and_is_found_by_nobody_else) {
  const Cache::Use use = acquire(0, 4);
  monitor_->tell(pages(0, 4));
  EXPECT_NE(touch(0, 4), use.resource());
  EXPECT_EQ(books_.of(use.resource()).range.begin, kBase) << "not given back";
  const auto resource = use.resource();
  cache_->release(use);
  EXPECT_EQ(books_.live(), 1u);
  EXPECT_NE(touch(0, 4), resource);
}

TEST_F(Caching, a_change_while_a_resource_is_made_keeps_it_from_being_kept) {
  books_.during_add = [this] {
    books_.during_add = nullptr;
    monitor_->tell(pages(0, 1));
  };
  const auto first = touch(0, 4);
  EXPECT_EQ(cache_->kept(), 0u);
  EXPECT_NE(touch(0, 4), first);
  EXPECT_EQ(cache_->kept(), 1u);
}

TEST_F(Caching, nothing_is_relied_on_while_a_change_is_under_way) {
  const auto before = touch(0, 4);
  cache_->changes().begin();
  EXPECT_NE(touch(0, 4), before);
  cache_->changes().end();
  monitor_->asked_to_settle = 0;
  monitor_->settled = false;
  EXPECT_NE(touch(0, 4), before);
  EXPECT_EQ(monitor_->asked_to_settle, 1);
  monitor_->settled = true;
  EXPECT_EQ(touch(0, 4), before) << "it did not touch this";
  EXPECT_EQ(cache_->counts().not_kept, 2u);
}

TEST_F(Caching, changes_that_were_lost_may_have_been_any) {
  touch(0, 4);
  touch(100, 4);
  // as if the lock was held meanwhile: nobody takes them
  for (size_t i = 0; i <= Changes::kRoom; ++i) {
    cache_->changes().put({pages(1000 + i, 1), Change::Kind::unmapped});
  }
  cache_->on_changes();
  EXPECT_EQ(cache_->kept(), 0u);
}

TEST_F(Caching, memory_that_was_dropped_is_not_kept_until_it_surely_is) {
  monitor_->tell(pages(0, 4), Change::Kind::dropped);
  touch(2, 4);
  EXPECT_EQ(cache_->kept(), 0u);
  touch(10, 1);
  EXPECT_EQ(cache_->kept(), 1u) << "elsewhere it is";
}

// Among what was lost there may have been drops.
TEST_F(Caching, after_changes_that_were_lost_nothing_is_kept_for_as_long) {
  for (size_t i = 0; i < Changes::kRoom; ++i) {
    cache_->changes().put({pages(1000 + i, 1), Change::Kind::unmapped});
  }
  cache_->changes().put({pages(0, 1), Change::Kind::dropped});  // there is no room for it
  cache_->on_changes();
  touch(0, 1);
  EXPECT_EQ(cache_->kept(), 0u);
}
TEST_F(Caching, after_drops_that_were_told_elsewhere_is_kept) {
  for (size_t i = 0; i < 16; ++i) {
    cache_->changes().put({pages(1000 + i, 1), Change::Kind::dropped});
  }
  cache_->on_changes();
  touch(0, 1);
  EXPECT_EQ(cache_->kept(), 1u);
}

TEST_F(Caching, without_a_monitor_nothing_is_kept) {
  auto alone = Cache::create(books_, {});
  ASSERT_TRUE(alone);
  for (int i = 0; i < 2; ++i) {
    auto use = (*alone)->acquire(at(kBase), kPage, Access::read);
    ASSERT_TRUE(use);
    (*alone)->release(*use);
    EXPECT_EQ(books_.live(), 0u);
  }
  EXPECT_EQ(books_.made(), 2u);
}

TEST_F(Caching, nothing_is_kept_of_what_cannot_be_watched_or_once_the_monitor_has_stopped) {
  monitor_->watches = Errc::not_supported;
  touch(0, 4);
  EXPECT_EQ(cache_->kept(), 0u);
  monitor_->watches = Errc::ok;
  const auto kept = touch(0, 4);
  EXPECT_EQ(cache_->kept(), 1u);
  monitor_->stopped = true;
  EXPECT_NE(touch(0, 4), kept);
}

TEST_F(Caching, memory_ceases_to_be_watched_once_nothing_of_it_is_kept) {
  touch(0, 4, Access::read);
  touch(2, 4, Access::write);
  monitor_->tell(pages(5, 1), Change::Kind::dropped);  // of the second alone
  cache_->give_back_what_is_over();
  EXPECT_TRUE(monitor_->forgotten.empty()) << "the first still needs some of it";
  cache_->trim();
  ASSERT_EQ(monitor_->forgotten.size(), 1u);
  EXPECT_EQ(monitor_->forgotten[0].begin, pages(0, 4).begin);
}

TEST_F(Caching, of_what_is_unmapped_in_part_the_pieces_that_are_left_are_forgotten) {
  touch(0, 8);
  touch(20, 1);
  monitor_->tell(pages(2, 1));
  monitor_->pieces = {pages(0, 2), pages(3, 2), pages(5, 30)};  // the last was joined to more
  cache_->trim();
  ASSERT_EQ(monitor_->forgotten.size(), 4u);
  EXPECT_EQ(monitor_->forgotten[0].end, pages(0, 2).end);
  EXPECT_EQ(monitor_->forgotten[1].end, pages(3, 2).end);
  EXPECT_EQ(monitor_->forgotten[2].end, pages(5, 30).end);
}

TEST_F(Caching, a_piece_of_which_more_is_kept_goes_on_being_watched) {
  touch(0, 8);
  touch(20, 1);
  monitor_->tell(pages(2, 1));
  monitor_->pieces = {pages(0, 2), pages(3, 30)};
  cache_->give_back_what_is_over();
  ASSERT_EQ(monitor_->forgotten.size(), 1u);
  EXPECT_EQ(monitor_->forgotten[0].end, pages(0, 2).end);
}

TEST_F(Caching, what_was_moved_is_not_watched_where_it_is_now) {
  touch(0, 4);
  touch(50, 1);
  monitor_->tell(pages(0, 4));
  monitor_->tell(pages(50, 4), Change::Kind::moved);
  monitor_->tell(pages(70, 4), Change::Kind::moved);
  touch(72, 1);  // somebody wants it by now
  cache_->give_back_what_is_over();
  size_t there = 0, wanted = 0;
  for (const Range& range : monitor_->forgotten) {
    there += range.begin == pages(50, 1).begin && range.end == pages(50, 4).end;
    wanted += range.overlaps(pages(72, 1));
  }
  EXPECT_EQ(there, 1u);
  EXPECT_EQ(wanted, 1u) << "forgotten when there was nothing of it, and watched again";
  EXPECT_EQ(cache_->kept(), 1u);
}

TEST_F(Caching, what_was_moved_often_is_forgotten_however_often) {
  touch(0, 4);
  for (uint64_t i = 0; i < 40; ++i) monitor_->tell(pages(100 + 2 * i, 1), Change::Kind::moved);
  cache_->give_back_what_is_over();
  for (uint64_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(
        std::any_of(monitor_->forgotten.begin(), monitor_->forgotten.end(),
                    [&](const Range& range) { return range.covers(pages(100 + 2 * i, 1)); }))
        << i;
  }
}

TEST_F(Caching, what_was_replaced_can_be_kept_at_once) {
  touch(0, 4);
  monitor_->tell(pages(0, 1), Change::Kind::replaced);
  EXPECT_EQ(cache_->kept(), 0u);
  cache_->trim();
  EXPECT_EQ(monitor_->forgotten.size(), 1u);
  touch(0, 4);
  EXPECT_EQ(cache_->kept(), 1u) << "at once, unlike what is about to be dropped";
}

// --- limits ---

class Limited : public Caching {
 protected:
  Limited() : Caching({.max_bytes = 8 * kPage, .max_count = 3}) {}
};

TEST_F(Limited, what_was_used_longest_ago_makes_room) {
  const auto a = touch(0, 1);
  const auto b = touch(10, 1);
  touch(20, 1);
  EXPECT_EQ(touch(0, 1), a);  // now b is the oldest
  touch(30, 1);
  EXPECT_EQ(cache_->kept(), 3u);
  EXPECT_EQ(touch(0, 1), a);
  EXPECT_NE(touch(10, 1), b);
  EXPECT_EQ(cache_->counts().evicted, 2u);
  EXPECT_EQ(books_.live(), 3u);
}

TEST_F(Limited, bytes_are_limited_too) {
  touch(0, 4);
  touch(10, 4);
  touch(20, 1);
  EXPECT_EQ(cache_->kept(), 2u);
  touch(30, 9);
  EXPECT_EQ(cache_->kept(), 2u) << "more than may be kept at all pushes nobody out";
}

TEST_F(Limited, what_is_in_use_is_not_given_up) {
  const Cache::Use uses[] = {acquire(0, 1), acquire(10, 1), acquire(20, 1)};
  const auto beyond = touch(30, 1);
  EXPECT_NE(touch(30, 1), beyond) << "there is no room for it";
  EXPECT_EQ(touch(0, 1), uses[0].resource());
  for (const Cache::Use& use : uses) cache_->release(use);
  const auto now = touch(30, 1);
  EXPECT_EQ(touch(30, 1), now);
}

TEST(Limits, of_no_resources_make_no_cache) {
  Books books;
  EXPECT_EQ(Cache::create(books, {.max_count = 0}).error(), Errc::invalid);
}

// --- with each hit checked ---

// By the kernel, of memory that is there.
class Checking : public Caching {
 protected:
  Checking() : Caching({.check = true}) {}
  ~Checking() override { ::munmap(at_, kPage); }
  Registrar::Resource touch_it() {
    auto use = cache_->acquire(at_, kPage, Access::read);
    EXPECT_TRUE(use);
    const Registrar::Resource resource = use->resource();
    cache_->release(*use);
    return resource;
  }
  void* map(int flags, void* where = nullptr) {
    return ::mmap(where, kPage, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
  }

  void* const at_ = map(MAP_PRIVATE);
};

// A registrar that holds no pages has not lost the one that it was made for. (Who is not told of
// frames sees nothing of this.)
TEST_F(Checking, another_page_of_memory_that_nobody_holds_is_no_change) {
  auto* const byte = static_cast<volatile uint8_t*>(at_);
  EXPECT_EQ(*byte, 0) << "the page of zeros that all share";
  const auto first = touch_it();
  *byte = 1;  // has a page of its own
  EXPECT_EQ(touch_it(), first);
  EXPECT_EQ(cache_->counts().caught, 0u);
}

TEST_F(Checking, one_that_is_found_and_refused_is_no_hit) {
  const auto first = touch_it();
  ASSERT_EQ(map(MAP_SHARED | MAP_FIXED, at_), at_) << "which nobody tells";
  EXPECT_NE(touch_it(), first);
  const Counts counts = cache_->counts();
  EXPECT_EQ(counts.caught, 1u);
  EXPECT_EQ(counts.hits, 0u);
  EXPECT_EQ(counts.misses, 2u) << "one for each use";
}

// It names the calls that may have done it.
class OracleSays : public testing::Test {
 protected:
  using Page = Oracle::View::Page;
  static std::string of(const Page& was, const Page& is) {
    const Range range{kBase, kBase + 2 * kPage};
    const Page same{.frame = 7, .is_mapped = true, .is_private = true};
    return Oracle::why_stale({range, {same, was}}, {range, {same, is}});
  }
  static constexpr Page kPrivate{.frame = 1, .is_mapped = true, .is_private = true};
};

TEST_F(OracleSays, nothing_of_what_is_the_same) {
  EXPECT_EQ(of(kPrivate, kPrivate), "");
  EXPECT_EQ(of({.is_mapped = true}, {.frame = 3, .is_mapped = true}), "") << "not told before";
}

TEST_F(OracleSays, what_puts_another_mapping_there) {
  EXPECT_EQ(of(kPrivate, {.frame = 2, .inode = 9, .is_mapped = true}),
            "at 0x10001000 there is shared memory where there was private memory, by munmap and "
            "mmap, mmap with MAP_FIXED, or shmat with SHM_REMAP");
  EXPECT_EQ(of(kPrivate, {}),
            "at 0x10001000 there is nothing where there was private memory, by munmap or mremap");
}

TEST_F(OracleSays, what_puts_another_page_there) {
  EXPECT_EQ(of(kPrivate, {.frame = 2, .is_mapped = true, .is_private = true}),
            "at 0x10001000 there is another page than there was, by madvise with MADV_DONTNEED or "
            "guard pages, UFFDIO_MOVE, mremap, munmap and mmap, or _Fork or clone");
}

// --- threads ---

// What they use must never be given back under them, and what was told as changed before they ask
// must not be found.
TEST_F(Caching, threads_that_use_and_change_the_same_memory) {
  constexpr int kThreads = 4, kRounds = 3000;
  std::atomic<uint64_t> unmapped{0};  // resources with numbers up to this one are stale
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const uint64_t stale = unmapped.load();
        const Cache::Use use = acquire(static_cast<uint64_t>(i % 3), 2);
        EXPECT_GT(use.resource(), stale);
        EXPECT_TRUE(books_.of(use.resource()).range.covers(pages(static_cast<uint64_t>(i % 3), 2)));
        cache_->release(use);
        if (i % 16 != t) continue;
        const uint64_t so_far = books_.made();
        monitor_->tell(pages(0, 5));
        uint64_t before = unmapped.load();
        while (before < so_far && !unmapped.compare_exchange_weak(before, so_far)) continue;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Counts counts = cache_->counts();
  EXPECT_GT(counts.hits, 0u);
  EXPECT_GT(counts.stale, 0u);
}

}  // namespace
}  // namespace aperture::regcache::test
