// Several caches in one process, as several domains have: the kernel joins their memory where it
// lies side by side, and each notices what becomes of its own.
#include "steps.hpp"

namespace aperture::regcache::test {
namespace {

class Several : public Steps {};

TEST_P(Several, keep_memory_that_is_one_mapping) {
  Watched other(GetParam());
  ASSERT_NE(other.monitor_, nullptr);
  uint8_t* const at = map(4 * kPage);
  fill(at, 4 * kPage);
  keep(at, kPage);
  other.keep(at + 2 * kPage, kPage);
  keep(at + kPage, 2 * kPage);  // some of it is the other's too
  ::munmap(at, 4 * kPage);
  map(4 * kPage, at, MAP_FIXED_NOREPLACE);
  fill(at, 4 * kPage);
  expect_exact(at, 3 * kPage);
  other.expect_exact(at + 2 * kPage, kPage);
  keep(at, kPage);  // by then each has heard of it
  other.keep(at + 2 * kPage, kPage);
  EXPECT_NE(cache_->counts().stale, 0u);
  EXPECT_NE(other.cache_->counts().stale, 0u);
  ::munmap(at, 4 * kPage);
}

TEST_P(Several, one_that_forgets_leaves_others_watching) {
  uint8_t* const at = map(2 * kPage);
  fill(at, 2 * kPage);
  {
    Watched other(GetParam());
    other.keep(at, 2 * kPage);
    keep(at, 2 * kPage);
    other.cache_->trim();
    ::madvise(at, 2 * kPage, MADV_DONTNEED);
    fill(at, 2 * kPage);
    expect_exact(at, 2 * kPage);
    keep(at, 2 * kPage);
  }
  ::madvise(at, 2 * kPage, MADV_DONTNEED);
  fill(at, 2 * kPage);
  expect_exact(at, 2 * kPage);
  keep(at, 2 * kPage);  // by then it has heard of both
  EXPECT_EQ(cache_->counts().stale, 2u);
  ::munmap(at, 2 * kPage);
}

TEST_P(Several, one_that_goes_leaves_the_hooks_to_others) {
  uint8_t* const at = map(2 * kPage);
  fill(at, 2 * kPage);
  {
    Watched other(GetParam());
    keep(at, 2 * kPage);
  }
  ::mprotect(at, kPage, PROT_NONE);  // which calls alone tell
  EXPECT_EQ(cache_->kept(), 0u) << "and they go on telling it, without another use";
  ::munmap(at, 2 * kPage);
}

TEST_P(Several, come_and_go_while_others_are_told) {
  constexpr int kThreads = 4, kRounds = 60;
  uint8_t* const at = kept(2 * kPage);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < kRounds; ++i) {
        Watched other(GetParam());
        uint8_t* const own = map(kPage);
        for (int use = 0; use < 3; ++use) {
          std::memset(own, i + use + 1, kPage);
          other.expect_exact(own, kPage);
          ::madvise(own, kPage, MADV_DONTNEED);
        }
        ::munmap(own, kPage);
      }
    });
  }
  for (int i = 0; i < kRounds; ++i) {
    ::madvise(at, 2 * kPage, MADV_DONTNEED);
    fill(at, 2 * kPage);
    expect_exact(at, 2 * kPage);
  }
  for (std::thread& thread : threads) thread.join();
  ::munmap(at, 2 * kPage);
}

// The hooks that one of them needs are a part of the other's: neither takes them for its own.
TEST_P(Several, monitors_of_both_kinds_hear_what_each_has_to) {
  const auto kOther = is_by_memhooks() ? MonitorKind::userfaultfd : MonitorKind::memhooks;
  for (const bool goes : {false, true}) {
    auto other = std::make_unique<Watched>(kOther);
    if (other->monitor_ == nullptr) GTEST_SKIP() << "no kernel feature: " << other->why_not_;
    uint8_t* const at = map(2 * kPage);
    for (int i = 0; i < 3; ++i) {
      for (Watched* const one : {static_cast<Watched*>(this), other.get()}) {
        if (one == nullptr) continue;
        one->fill(at, 2 * kPage);
        one->keep(at, 2 * kPage);
      }
      if (goes) {
        ::munmap(at, 2 * kPage);
        map(2 * kPage, at, MAP_FIXED_NOREPLACE);
        if (i == 1) other.reset();
      } else {
        ::mprotect(at, 2 * kPage, PROT_NONE);
        ::mprotect(at, 2 * kPage, PROT_READ | PROT_WRITE);
        EXPECT_EQ(cache_->kept(), 0u);
        EXPECT_EQ(other->cache_->kept(), 0u);
        map(2 * kPage, at, MAP_FIXED);
      }
      fill(at, 2 * kPage);
      expect_exact(at, 2 * kPage);
      if (other != nullptr) other->expect_exact(at, 2 * kPage);
    }
    ::munmap(at, 2 * kPage);
  }
}

INSTANTIATE_TEST_SUITE_P(By, Several, kMonitors, name_of);

}  // namespace
}  // namespace aperture::regcache::test
