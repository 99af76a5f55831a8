// Watching by hooks: see memhooks_monitor.hpp.
#include "regcache/memhooks_monitor.hpp"

#include <cassert>
#include <new>

#include "base/log.hpp"
#include "regcache/mappings.hpp"
#include "regcache/memhooks.hpp"
#include "regcache/thread_stacks.hpp"

namespace aperture::regcache {

Result<std::unique_ptr<MemhooksMonitor>> MemhooksMonitor::create(Cache& cache,
                                                                 const char*& why) noexcept {
  why = "there is no memory for it";
  if (const Status s = guard_against_fork(); !s) return s.error();
  if (!knows_stacks()) {
    why = "this kernel does not tell where threads have their stacks";
    return Errc::not_supported;
  }
  // first, so that nobody takes the hooks out that are put now
  Result<HookListener*> listener = HookListener::open(cache);
  if (!listener) {
    if (listener.error() == Errc::no_space) why = "too many caches have one";
    return listener.error();
  }
  std::unique_ptr<MemhooksMonitor> monitor(new (std::nothrow) MemhooksMonitor(cache, **listener));
  if (monitor == nullptr) {
    (*listener)->close(cache);
    return Errc::no_memory;
  }
  // busy: the next one to watch memory sees to it
  if (const Status s = put_hooks(Hooks::all, why); !s && s.error() != Errc::busy) return s.error();
  return monitor;
}

MemhooksMonitor::~MemhooksMonitor() {
  listener_.close(cache_);
  if (!has_stopped()) take_out_hooks();
}

Result<Range> MemhooksMonitor::watch(const Range& range) noexcept {
  assert(!range.is_empty());
  if (has_stopped()) return Errc::shut_down;
  if (const Status s = hook_all(); !s) return s.error();
  const Range whole = mapped_alone_around(range);
  if (whole.is_empty() || may_be_on_a_stack(range, whole)) return Errc::not_supported;
  if (const Status s = listener_.pages().add(range); !s) return s.error();
  // and again: what takes its place from now on is told
  if (mapped_alone_around(range).is_empty()) return Errc::not_supported;
  return range;
}

void MemhooksMonitor::forget(const Range& piece) noexcept {
  assert(!piece.is_empty());
  if (!has_stopped()) listener_.pages().remove(piece);
}

bool MemhooksMonitor::is_settled() noexcept {
  return !has_stopped() && hooks_are_whole(Hooks::all);
}

// Something was loaded or unloaded, or hooks were written over.
void MemhooksMonitor::settle() noexcept {
  if (!has_stopped()) static_cast<void>(hook_all());
}

Status MemhooksMonitor::hook_all() noexcept {
  const char* why = "";
  const Status s = put_hooks(Hooks::all, why);
  if (s.error() == Errc::not_supported && !has_complained_.exchange(true)) {
    APERTURE_WARN("memhooks notices nothing more, so the registration cache is off: %s", why);
  }
  return s;
}

}  // namespace aperture::regcache
