// Memory that is used through a cache, by resources that hold its pages: whatever becomes of the
// memory, what a resource reads that is handed out afterwards must be what the memory holds.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "pinned_pages.hpp"
#include "regcache/userfault.hpp"
#include "regcache/userfault_monitor.hpp"

namespace aperture::regcache::test {

inline constexpr size_t kPage = PinnedPages::kPage;

// Without a place to put it, somewhere that nobody else's mappings are put: what a test unmaps
// stays free until it maps something there again.
inline uint8_t* map(size_t len, void* where = nullptr, int flags = 0) {
  static std::atomic<uintptr_t> free_from = uintptr_t{0x2000} << 32;
  if (where == nullptr) {
    const size_t apart = (len + (size_t{4} << 20)) & ~(kPage - 1);
    where = reinterpret_cast<void*>(free_from.fetch_add(apart));  // NOLINT
    flags |= MAP_FIXED_NOREPLACE;
  }
  void* const at =
      ::mmap(where, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  EXPECT_NE(at, MAP_FAILED) << std::strerror(errno);
  return static_cast<uint8_t*>(at);
}

class Steps : public testing::Test {
 protected:
  explicit Steps(const Options& options = {}) {
    auto cache = Cache::create(pages_, options);
    EXPECT_TRUE(cache);
    cache_ = std::move(*cache);
    const char* why = nullptr;
    auto monitor = UserfaultMonitor::create(*cache_, why);
    if (!monitor) {
      why_not_ = why;
      return;
    }
    monitor_ = std::move(*monitor);
    cache_->set_monitor(*monitor_);
  }
  void SetUp() override {
    if (monitor_ == nullptr) GTEST_SKIP() << "no kernel feature: " << why_not_;
  }
  ~Steps() override {
    if (monitor_ != nullptr) cache_->trim();
    monitor_.reset();
    cache_.reset();
    EXPECT_EQ(pages_.live(), 0u);
  }

  // Other bytes each time.
  void fill(uint8_t* at, size_t len) {
    for (size_t i = 0; i < len; i += 64) {
      std::memset(at + i, static_cast<int>(++filled_ % 251 + 1), std::min<size_t>(64, len - i));
    }
  }
  // The resource that is handed out for it.
  Registrar::Resource use(const uint8_t* at, size_t len) {
    auto use = cache_->acquire(at, len, Access::read_write);
    EXPECT_TRUE(use) << describe(use.error());
    if (!use) return 0;
    const Registrar::Resource resource = use->resource();
    cache_->release(*use);
    return resource;
  }
  // So does everything else: it is right.
  void expect_exact(const uint8_t* at, size_t len, const char* file = __builtin_FILE(),
                    int line = __builtin_LINE()) {
    const testing::ScopedTrace trace(file, line, "what its resource reads");
    auto use = cache_->acquire(at, len, Access::read_write);
    ASSERT_TRUE(use) << describe(use.error());
    EXPECT_TRUE(pages_.read(use->resource(), at, len) == std::vector<uint8_t>(at, at + len));
    cache_->release(*use);
  }
  // It is used, and found again: else the step shows nothing. What is made while the monitor is
  // just reading an earlier change is not kept, so that may take a few.
  void keep(const uint8_t* at, size_t len) {
    constexpr int kMost = 2000;
    int uses = 0;
    while (use(at, len) != use(at, len) && uses < kMost) {
      ++uses;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_LT(uses, kMost) << "it is never kept";
    expect_exact(at, len);
  }
  uint8_t* kept(size_t len) {
    uint8_t* const at = map(len);
    fill(at, len);
    keep(at, len);
    return at;
  }

  PinnedPages pages_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<UserfaultMonitor> monitor_;
  const char* why_not_ = "";
  uint64_t filled_ = 0;
};

}  // namespace aperture::regcache::test
