// Watching by the kernel: see userfault_monitor.hpp.
#include "regcache/userfault_monitor.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "regcache/mappings.hpp"

namespace aperture::regcache {

Result<std::unique_ptr<UserfaultMonitor>> UserfaultMonitor::create(Cache& cache,
                                                                   const char*& why) noexcept {
  auto reader = UserfaultReader::open(cache, why);
  if (!reader) return reader.error();
  std::unique_ptr<UserfaultMonitor> monitor(new (std::nothrow) UserfaultMonitor(cache, *reader));
  if (monitor == nullptr) {
    UserfaultReader::close(*reader, cache);
    return Errc::no_memory;
  }
  return monitor;
}

UserfaultMonitor::~UserfaultMonitor() {
  UserfaultReader::close(reader_, cache_);
}

Result<Range> UserfaultMonitor::watch(const Range& range) noexcept {
  assert(!range.is_empty());
  if (has_stopped()) return Errc::shut_down;
  // first, since it could not be taken back: some of it may be watched for others
  const Range whole = mapped_alone_around(range);
  if (whole.is_empty()) return Errc::not_supported;
  if (const Status s = reader_->watch(whole); !s) return s.error();
  // and again: what takes its place from now on is told
  if (mapped_alone_around(range).is_empty()) return Errc::not_supported;
  return whole;
}

// All that was kept is as good as stale once nothing more is told.
bool UserfaultMonitor::is_settled() noexcept {
  if (reader_->is_settled()) return true;
  if (reader_->has_stopped() && !has_told_) {
    cache_.changes().put({{0, ~uint64_t{0}}, Change::Kind::unmapped});
    has_told_ = true;
  }
  return false;
}

void UserfaultMonitor::forget(const Range& watched) noexcept {
  assert(!watched.is_empty());
  reader_->forget(watched, cache_);
}

}  // namespace aperture::regcache
