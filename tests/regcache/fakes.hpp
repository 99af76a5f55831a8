// A registrar that keeps books, and a monitor that a test speaks for.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "regcache/cache.hpp"

namespace aperture::regcache::test {

inline constexpr uint64_t kPage = 4096;

inline const void* at(uint64_t addr) {
  return reinterpret_cast<const void*>(addr);  // NOLINT(performance-no-int-to-ptr)
}

// Each resource has a number of its own; what was made and not given back is in live().
class Books final : public Registrar {
 public:
  struct Made {
    Range range;
    Access access;
  };

  Result<Resource> add(const Range& range, Access access) noexcept override {
    if (during_add) during_add();
    if (refuses && refuses(range)) return Errc::no_memory;
    const std::lock_guard lock(mutex_);
    live_[++last_] = {range, access};
    return last_;
  }
  void remove(Resource resource) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(live_.erase(resource), 1u) << "given back twice";
  }
  bool holds_pages() const noexcept override { return false; }

  size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }
  size_t made() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  Made of(Resource resource) const {
    const std::lock_guard lock(mutex_);
    return live_.at(resource);
  }

  std::function<void()> during_add;
  std::function<bool(const Range&)> refuses;

 private:
  mutable std::mutex mutex_;
  std::map<Resource, Made> live_;
  Resource last_ = 0;
};

class ToldMonitor final : public Monitor {
 public:
  explicit ToldMonitor(Cache& cache) : cache_(cache) {}

  const char* name() const noexcept override { return "told"; }
  Result<Range> watch(const Range& range) noexcept override {
    if (watches != Errc::ok) return watches;
    watched.push_back(range);
    return range;
  }
  Range piece_of(const Range& range) noexcept override {
    for (const Range& one : pieces) {
      if (one.overlaps(range)) return one;
    }
    return pieces.empty() ? range : Range{};
  }
  void forget(const Range& range) noexcept override { forgotten.push_back(range); }
  bool is_settled() noexcept override { return settled; }
  void settle() noexcept override { ++asked_to_settle; }
  bool has_stopped() const noexcept override { return stopped; }

  void tell(const Range& range, Change::Kind kind = Change::Kind::unmapped) {
    cache_.changes().begin();
    cache_.changes().put({range, kind});
    cache_.changes().end();
    cache_.on_changes();
  }

  bool settled = true;
  bool stopped = false;
  int asked_to_settle = 0;
  Errc watches = Errc::ok;
  std::vector<Range> pieces;  // of what is watched; none: it is one
  std::vector<Range> watched, forgotten;

 private:
  Cache& cache_;
};

}  // namespace aperture::regcache::test
