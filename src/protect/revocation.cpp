// Closing regions: see revocation.hpp and docs/revocation.md.
#include "protect/revocation.hpp"

#include <sched.h>
#include <time.h>

#include <cassert>
#include <mutex>

#include "base/barrier.hpp"
#include "base/clock.hpp"

namespace aperture::protect {

namespace {

constexpr int kSpins = 200;
constexpr int kYields = 50;
constexpr uint64_t kSleepNs = 1'000'000;

void wait_a_little(int round) noexcept {
  if (round < kSpins) {
    cpu_relax();
  } else if (round < kSpins + kYields) {
    ::sched_yield();
  } else {
    const timespec nap{0, kSleepNs};
    ::nanosleep(&nap, nullptr);
  }
}

}  // namespace

Status Revocation::begin(const RegionHandle& region) {
  {
    std::lock_guard guard(entries_.lock());
    if (Status s = entries_.begin_close(region); !s) return s;
    assert(!entries_.in_force(region));
    // a peer that attaches or wakes after this, under the same lock, finds the entry REVOKING
    if (accessors_.none_awake()) return {};
  }
  // SYNC POINT: revocation (FENCE_R; pairs with FENCE_A in PeerKeyView: either we see the pin, or
  // the accessor sees REVOKING)
  full_fence();
  accessors_.cut_short(region.generation);
  return {};
}

bool Revocation::is_quiet(const RegionHandle& region) {
  const EntryState now = entries_.state(region);
  if (now != EntryState::revoking) return now != EntryState::valid;
  return accessors_.is_quiet(region.generation);
}

bool Revocation::poll(const RegionHandle& region) {
  if (!is_quiet(region)) return false;
  free_if_closing(region);
  return true;
}

Result<RegionHandle> Revocation::revive(const RegionHandle& region) {
  std::lock_guard guard(entries_.lock());
  return entries_.revive(region);
}

Status Revocation::revoke_now(const RegionHandle& region) {
  {
    // nobody attaches, wakes or detaches meanwhile: that takes this lock too
    std::lock_guard guard(entries_.lock());
    if (accessors_.none_awake()) {  // nobody can be inside
      if (entries_.is_over(region)) return Errc::no_entry;
      entries_.end_life(region);
      return {};
    }
    if (Status s = entries_.begin_close(region); !s) return s;
    // SYNC POINT: revocation (FENCE_R)
    full_fence();
    if (accessors_.is_inside(region.generation)) return Errc::busy;
    entries_.end_life(region);
    assert(entries_.is_over(region));
    if (!accessors_.count_close()) return {};
  }
  accessors_.look_for_idle(now_ns());
  return {};
}

Status Revocation::revoke(const RegionHandle& region, uint64_t deadline_ns) {
  if (Status s = revoke_now(region); s.error() != Errc::busy) return s;
  if (Status s = begin(region); !s) return s;
  if (!wait_until_quiet(region, deadline_ns)) return Errc::busy;
  free_if_closing(region);
  return {};
}

Status Revocation::revoke_bound(const RegionHandle& region) {
  std::lock_guard guard(entries_.lock());
  if (entries_.is_over(region)) return Errc::no_entry;
  assert(entries_.is_bound(region));
  entries_.end_life(region);
  assert(entries_.is_over(region));
  return {};
}

Denial Revocation::invalidate(const AccessAsk& ask) {
  RegionRef life;
  if (const Denial denial = access_.find_bound(ask, life); denial != Denial::none) return denial;
  RegionHandle region;
  region.index = life.index;
  region.generation = life.generation;
  assert(entries_.in_force(region));
  return revoke_bound(region) ? Denial::none : Denial::closed;
}

bool Revocation::wait_until_quiet(const RegionHandle& region, uint64_t deadline_ns) {
  for (int round = 0; !is_quiet(region); ++round) {
    if (now_ns() >= deadline_ns) return false;
    wait_a_little(round);
  }
  return true;
}

void Revocation::free_if_closing(const RegionHandle& region) noexcept {
  std::lock_guard guard(entries_.lock());
  // another thread that closes the same region may have been first
  if (entries_.state(region) == EntryState::revoking) entries_.end_life(region);
}

}  // namespace aperture::protect
