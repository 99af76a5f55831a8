// Aperture's own cache behind the functions that peers have.
#include <memory>
#include <string>

#include "cachebench/door.hpp"
#include "regcache/cache.hpp"
#include "regcache/memhooks_monitor.hpp"
#include "regcache/userfault_monitor.hpp"

namespace aperture::bench {

namespace {

class Counting final : public regcache::Registrar {
 public:
  explicit Counting(cache_peer_counts& counts) : counts_(counts) {}
  Result<Resource> add(const regcache::Range&, regcache::Access) noexcept override {
    return ++counts_.added;
  }
  void remove(Resource) noexcept override { ++counts_.removed; }
  bool holds_pages() const noexcept override { return false; }

 private:
  cache_peer_counts& counts_;
};

// In the order in which they are needed.
std::unique_ptr<Counting> registrar;
std::unique_ptr<regcache::Cache> cache;
std::unique_ptr<regcache::Monitor> monitor;

template <typename Kind>
const char* watch_by() {
  const char* why = "";
  auto made = Kind::create(*cache, why);
  if (!made) return why;
  monitor = std::move(*made);
  cache->set_monitor(*monitor);
  return nullptr;
}

const char* open_own(const char* name, cache_peer_counts* counts) {
  registrar = std::make_unique<Counting>(*counts);
  regcache::Options options;
  options.max_count = cache_peer_most;
  auto made = regcache::Cache::create(*registrar, options);
  if (!made) return describe(made.error());
  cache = std::move(*made);
  if (std::string(name) == "userfaultfd") return watch_by<regcache::UserfaultMonitor>();
  if (std::string(name) == "memhooks") return watch_by<regcache::MemhooksMonitor>();
  return "Aperture has no such monitor";
}

int use_own(void* addr, size_t len) {
  auto use = cache->acquire(addr, len, regcache::Access::read_write);
  if (!use) return static_cast<int>(use.error());
  cache->release(*use);
  return 0;
}

void close_own() {
  cache->trim();  // while there is somebody to forget what was watched
  monitor.reset();
  cache.reset();
  registrar.reset();
}

}  // namespace

Door own_cache() {
  return {[] { return "Aperture"; }, open_own, use_own, close_own};
}

}  // namespace aperture::bench
