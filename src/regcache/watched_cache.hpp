// A cache with the monitor that a user's settings name: what a user of regcache/ opens. Any thread.
#pragma once

#include <memory>

#include "regcache/settings.hpp"

namespace aperture::regcache {

class WatchedCache {
 public:
  // The registrar outlives it. Where there is no such monitor, or none is wanted, nothing is kept:
  // every use makes its resource and gives it back. That is said at `warn`, with the reason, unless
  // the settings ask for it. Errors: no_memory.
  static Result<std::unique_ptr<WatchedCache>> open(Registrar& registrar,
                                                    const Settings& settings) noexcept;
  // Nothing is in use.
  ~WatchedCache();
  WatchedCache(const WatchedCache&) = delete;
  WatchedCache& operator=(const WatchedCache&) = delete;

  Cache& cache() noexcept { return *cache_; }
  // "userfaultfd", "memhooks", or null: nothing is kept.
  const char* monitor() const noexcept { return monitor_ != nullptr ? monitor_->name() : nullptr; }

 private:
  explicit WatchedCache(std::unique_ptr<Cache> cache) noexcept : cache_(std::move(cache)) {}

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Monitor> monitor_;
};

}  // namespace aperture::regcache
