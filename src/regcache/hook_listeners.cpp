// Places of listeners, and telling them: see hook_listeners.hpp.
#include "regcache/hook_listeners.hpp"

#include <array>
#include <bit>
#include <cassert>
#include <cerrno>
#include <mutex>
#include <thread>

#include "base/per_process.hpp"

namespace aperture::regcache {

namespace {

constinit std::array<HookListener, HookListener::kMost> g_listeners;
// Listeners come and go one at a time. No hook takes it.
constinit ProcessLock g_lock;

constexpr uint64_t bit_of(size_t place) noexcept {
  return uint64_t{1} << place;
}

// Calls visit(place) for each bit, the lowest first.
template <typename Visit>
void for_each_place(uint64_t bits, Visit&& visit) noexcept {
  for (; bits != 0; bits &= bits - 1) visit(static_cast<size_t>(std::countr_zero(bits)));
}

}  // namespace

constinit std::atomic<uint64_t> HookedChange::open_{0};
static_assert(HookListener::kMost == 64);

size_t HookListener::place() const noexcept {
  return static_cast<size_t>(this - g_listeners.data());
}

bool HookListener::is_open() const noexcept {
  return (HookedChange::open_.load() & bit_of(place())) != 0;
}

Result<HookListener*> HookListener::open(Cache& cache, Hears hears) noexcept {
  const std::lock_guard guard(g_lock);
  for (HookListener& one : g_listeners) {
    if (one.is_open() && one.process_ == process_epoch()) continue;
    one.inside_ = 0;  // a child's: in the parent its hooks went on
    if (const Status s = one.pages_.reserve(); !s) return s.error();
    one.pages_.clear();
    one.cache_ = &cache;
    one.hears_.store(hears, std::memory_order_relaxed);  // relaxed: as it says
    one.process_ = process_epoch();
    // SYNC POINT: listener: seq_cst: who is inside and finds it open finds its cache
    HookedChange::open_.fetch_or(bit_of(one.place()));
    return &one;
  }
  return Errc::no_space;
}

void HookListener::close(const Cache& cache) noexcept {
  const std::lock_guard guard(g_lock);
  if (cache_ != &cache) return;  // in a child, where it is another one's by now
  assert(is_open());
  HookedChange::open_.fetch_and(~bit_of(place()));
  // SYNC POINT: listener-inside: seq_cst: a hook is counted, or finds it closed
  while (process_ == process_epoch() && inside_.load() != 0) std::this_thread::yield();
  pages_.clear();
  cache_ = nullptr;
}

bool HookListener::any_open() noexcept {
  bool any = false;
  for_each_place(HookedChange::open_.load(), [&](size_t place) {
    any = any || g_listeners[place].process_ == process_epoch();
  });
  return any;
}

void HookListener::tell_all() noexcept {
  HookedChange change(HookedChange::kAnything);
  // also those who watch nothing yet, and are just about to
  for_each_place(HookedChange::open_.load() & ~change.told_,
                 [&](size_t place) { change.begin_for(place); });
}

void HookedChange::begin(Of of, Told told) noexcept {
  for_each_place(open_.load(std::memory_order_acquire), [&](size_t place) {
    const HookListener& listener = g_listeners[place];
    // relaxed: as it says
    const auto hears = listener.hears_.load(std::memory_order_relaxed);
    const bool is_wanted = hears == HookListener::Hears::beside_the_kernel
                               ? told == Told::by_nobody && !range_.is_empty()
                               : listener.pages_.any(range_, of);
    if (is_wanted) begin_for(place);
  });
}

void HookedChange::begin_for(size_t place) noexcept {
  HookListener& listener = g_listeners[place];
  // SYNC POINT: listener-inside
  listener.inside_.fetch_add(1);
  if (!listener.is_open()) {  // SYNC POINT: listener
    listener.inside_.fetch_sub(1);
    return;
  }
  listener.cache_->changes().begin();
  told_ |= bit_of(place);
}

void HookedChange::end() noexcept {
  const int error = errno;  // of the call
  for_each_place(told_, [&](size_t place) {
    HookListener& listener = g_listeners[place];
    Cache& cache = *listener.cache_;
    // after the call: a resource that was made meanwhile may hold what was there before
    cache.changes().put({range_, Change::Kind::replaced});
    cache.changes().end();
    cache.on_changes();
    [[maybe_unused]] const uint32_t before = listener.inside_.fetch_sub(1);
    assert(before != 0);
  });
  errno = error;
}

}  // namespace aperture::regcache
