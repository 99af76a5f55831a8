// Memory that is used through a cache, by resources that hold its pages: whatever becomes of the
// memory, what a resource reads that is handed out afterwards must be what the memory holds. By
// each monitor that there is.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pinned_pages.hpp"
#include "regcache/memhooks_monitor.hpp"
#include "regcache/settings.hpp"
#include "regcache/userfault.hpp"
#include "regcache/userfault_monitor.hpp"

namespace aperture::regcache::test {

inline constexpr size_t kPage = PinnedPages::kPage;

#if defined(__SANITIZE_THREAD__)
inline constexpr auto kFreeFrom = uintptr_t{0x10} << 32;  // among what it lets programs have
#else
inline constexpr auto kFreeFrom = uintptr_t{0x2000} << 32;
#endif

// Without a place to put it, somewhere that nobody else's mappings are put: what a test unmaps
// stays free until it maps something there again.
inline uint8_t* map(size_t len, void* where = nullptr, int flags = 0) {
  static std::atomic<uintptr_t> free_from = kFreeFrom;
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

// Null, and why, where there is no such monitor.
inline std::unique_ptr<Monitor> monitor_of(MonitorKind kind, Cache& cache, const char*& why) {
  if (kind == MonitorKind::memhooks) {
    auto monitor = MemhooksMonitor::create(cache, why);
    return monitor ? std::move(*monitor) : nullptr;
  }
  auto monitor = UserfaultMonitor::create(cache, why);
  return monitor ? std::move(*monitor) : nullptr;
}

inline const auto kMonitors = testing::Values(MonitorKind::userfaultfd, MonitorKind::memhooks);
inline std::string name_of(const testing::TestParamInfo<MonitorKind>& info) {
  return info.param == MonitorKind::memhooks ? "memhooks" : "userfaultfd";
}

// A cache with such a monitor, and what is done with it. One thread's at a time.
class Watched {
 public:
  explicit Watched(MonitorKind kind, const Options& options = {}) : kind_(kind) {
    auto cache = Cache::create(pages_, options);
    EXPECT_TRUE(cache);
    cache_ = std::move(*cache);
    monitor_ = monitor_of(kind, *cache_, why_not_);
    if (monitor_ != nullptr) cache_->set_monitor(*monitor_);
  }
  bool is_by_memhooks() const { return kind_ == MonitorKind::memhooks; }
  ~Watched() {
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
  // A thread of the monitor's that has read a change, and is waited for no longer, may have to put
  // it yet.
  void expect_soon_kept(size_t n) {
    for (int i = 0; i < 2000 && cache_->kept() != n; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(cache_->kept(), n);
  }
  uint8_t* kept(size_t len) {
    uint8_t* const at = map(len);
    fill(at, len);
    keep(at, len);
    return at;
  }

  const MonitorKind kind_;
  PinnedPages pages_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Monitor> monitor_;
  const char* why_not_ = "";
  uint64_t filled_ = 0;
};

class StepsBy : public testing::Test, protected Watched {
 protected:
  static constexpr size_t kLen = 8 * kPage;

  explicit StepsBy(MonitorKind kind, const Options& options = {}) : Watched(kind, options) {}
  void SetUp() override {
    if (monitor_ == nullptr) GTEST_SKIP() << "no kernel feature: " << why_not_;
  }
};

class Steps : public StepsBy, public testing::WithParamInterface<MonitorKind> {
 protected:
  explicit Steps(const Options& options = {}) : StepsBy(GetParam(), options) {}
};

}  // namespace aperture::regcache::test
