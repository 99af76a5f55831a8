// Watching by the kernel: see userfault_monitor.hpp.
#include "regcache/userfault_monitor.hpp"

#include <cassert>
#include <new>
#include <utility>

#include "base/log.hpp"
#include "regcache/mappings.hpp"
#include "regcache/memhooks.hpp"

namespace aperture::regcache {

Result<std::unique_ptr<UserfaultMonitor>> UserfaultMonitor::create(Cache& cache,
                                                                   const char*& why) noexcept {
  auto reader = UserfaultReader::open(cache, why);
  if (!reader) return reader.error();
  // first, so that nobody takes the hooks out that are put now
  auto listener = HookListener::open(cache, HookListener::Hears::beside_the_kernel);
  std::unique_ptr<UserfaultMonitor> monitor;
  if (listener) monitor.reset(new (std::nothrow) UserfaultMonitor(cache, *reader, **listener));
  if (monitor == nullptr) {
    const bool is_full = !listener && listener.error() == Errc::no_space;
    why = is_full ? "too many caches have one" : "there is no memory for it";
    if (listener) (*listener)->close(cache);
    UserfaultReader::close(*reader, cache);
    return is_full ? Errc::no_space : Errc::no_memory;
  }
  // busy: the next one to use the cache sees to it
  const Status s = put_hooks(Hooks::beside_the_kernel, why);
  if (!s && s.error() != Errc::busy) return s.error();
  return monitor;
}

UserfaultMonitor::~UserfaultMonitor() {
  listener_.close(cache_);
  if (!round_.is_over()) take_out_hooks();
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
  if (!has_stopped() && !hooks_are_whole(Hooks::beside_the_kernel)) return false;
  if (reader_->is_settled()) return true;
  if (reader_->has_stopped() && !has_told_) {
    cache_.changes().put({{0, ~uint64_t{0}}, Change::Kind::unmapped});
    has_told_ = true;
  }
  return false;
}

// Something was loaded or unloaded, or hooks were written over.
void UserfaultMonitor::settle() noexcept {
  const char* why = "";
  if (has_stopped() || put_hooks(Hooks::beside_the_kernel, why).error() != Errc::not_supported) {
    return;
  }
  if (has_complained_.exchange(true)) return;
  APERTURE_WARN("userfaultfd is silent of some calls, so the registration cache is off: %s", why);
}

Range UserfaultMonitor::piece_of(const Range& range) noexcept {
  assert(!range.is_empty());
  return has_stopped() ? Range{} : first_mapped_alone_in(range);
}

void UserfaultMonitor::forget(const Range& piece) noexcept {
  assert(!piece.is_empty());
  reader_->forget(piece, cache_);
}

}  // namespace aperture::regcache
