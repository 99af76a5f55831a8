// Choosing a monitor: see watched_cache.hpp.
#include "regcache/watched_cache.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "regcache/memhooks_monitor.hpp"
#include "regcache/userfault_monitor.hpp"

namespace aperture::regcache {

namespace {

template <typename Kind>
Result<std::unique_ptr<Monitor>> make(Cache& cache, const char*& why) noexcept {
  auto made = Kind::create(cache, why);
  if (!made) return made.error();
  return std::unique_ptr<Monitor>(*std::move(made));
}

Result<std::unique_ptr<Monitor>> monitor_of(MonitorKind kind, Cache& cache,
                                            const char*& why) noexcept {
  switch (kind) {
    case MonitorKind::userfaultfd: return make<UserfaultMonitor>(cache, why);
    case MonitorKind::memhooks: return make<MemhooksMonitor>(cache, why);
    case MonitorKind::disabled: break;
  }
  return std::unique_ptr<Monitor>();
}

const char* name_of(MonitorKind kind) noexcept {
  return kind == MonitorKind::memhooks ? "memhooks" : "userfaultfd";
}

}  // namespace

Result<std::unique_ptr<WatchedCache>> WatchedCache::open(Registrar& registrar,
                                                         const Settings& settings) noexcept {
  Options options = settings.cache;
  if (settings.monitor == MonitorKind::disabled) options.max_count = 1;  // of which none is used
  auto cache = Cache::create(registrar, options);
  if (!cache) return cache.error();
  std::unique_ptr<WatchedCache> made(new (std::nothrow) WatchedCache(*std::move(cache)));
  if (made == nullptr) return Errc::no_memory;
  const char* why = "";
  auto monitor = monitor_of(settings.monitor, *made->cache_, why);
  if (!monitor) {
    APERTURE_WARN(
        "no registration is kept, each is made anew: there is no monitor %s here: %s (%s); set "
        "FI_MR_CACHE_MONITOR to another, or to disabled",
        name_of(settings.monitor), why, describe(monitor.error()));
    return made;
  }
  made->monitor_ = *std::move(monitor);
  assert((made->monitor_ == nullptr) == (settings.monitor == MonitorKind::disabled));
  if (made->monitor_ != nullptr) made->cache_->set_monitor(*made->monitor_);
  return made;
}

WatchedCache::~WatchedCache() {
  assert(cache_ != nullptr);
  cache_->trim();  // what is watched is forgotten while there is a monitor
  monitor_.reset();
}

}  // namespace aperture::regcache
