// Beside libfabric's own monitors that come when ours are there, in a program that is linked with
// them. Each test has a process of its own, by beside_test.cpp, which runs the steps here too.
#include <unistd.h>

#include "libfabric_monitor.h"
#include "steps.hpp"

namespace aperture::regcache::test {
namespace {

class Libfabric : public Steps {
 protected:
  void go_through() {
    uint8_t* const at = kept(kLen);
    ASSERT_EQ(::munmap(at, kLen), 0);
    ASSERT_EQ(map(kLen, at, MAP_FIXED_NOREPLACE), at);
    fill(at, kLen);
    expect_exact(at, kLen);
    keep(at, kLen);
    ASSERT_EQ(map(kLen, at, MAP_FIXED), at);
    fill(at, kLen);
    expect_exact(at, kLen);
    keep(at, kLen);
    ASSERT_EQ(::madvise(at, kLen, MADV_DONTNEED), 0);
    expect_exact(at, kLen);
    ::munmap(at, kLen);
    for (int i = 0; i < 10; ++i) {
      auto* const block = static_cast<uint8_t*>(std::malloc(200'000));
      fill(block, 200'000);
      expect_exact(block, 200'000);
      std::free(block);
    }
  }
};

TEST_P(Libfabric, step_19_its_hooks_come_later) {
  for (int i = 0; i < 3; ++i) {
    go_through();
    if (i == 0) {
      ASSERT_EQ(start_monitor_of_libfabric("memhooks"), 0);
    }
  }
  EXPECT_GT(cache_->counts().hits, 0u);
}

// Memory has one watcher: whose came first keeps it, and the other one does without.
TEST_P(Libfabric, step_29_its_userfaultfd_comes_later) {
  go_through();
  if (start_monitor_of_libfabric("userfaultfd") != 0) GTEST_SKIP() << "no kernel feature";
  uint8_t* const ours = kept(kLen);
  EXPECT_EQ(watch_by_libfabrics_userfaultfd(ours, kLen) == 0, is_by_memhooks());
  uint8_t* const theirs = map(kLen);
  fill(theirs, kLen);
  ASSERT_EQ(watch_by_libfabrics_userfaultfd(theirs, kLen), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(use(theirs, kLen) == use(theirs, kLen), is_by_memhooks());
    ASSERT_EQ(map(kLen, theirs, MAP_FIXED), theirs);
    fill(theirs, kLen);  // before: who touches new pages that theirs watches may wait for ever
    ASSERT_EQ(watch_by_libfabrics_userfaultfd(theirs, kLen), 0);
    expect_exact(theirs, kLen);
    expect_exact(ours, kLen);
  }
  ::munmap(ours, kLen);
  ::munmap(theirs, kLen);
  go_through();
}

INSTANTIATE_TEST_SUITE_P(Beside, Libfabric, kMonitors, name_of);

}  // namespace
}  // namespace aperture::regcache::test
