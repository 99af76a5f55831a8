// Closing regions, and moving the gate of a lane: see key_table.hpp and docs/revocation.md.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "base/barrier.hpp"
#include "base/clock.hpp"
#include "protect/key_table.hpp"

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

// VALID to REVOKING. busy: it is being revoked; no_entry: it is not there any more.
Status KeyTable::begin_under_mutex(const RegionHandle& region) noexcept {
  KeyEntry& entry = file_.entries[region.index];
  const uint64_t now = entry.state_gen.load(std::memory_order_relaxed);  // changes under mutex_
  const uint64_t revoking = state_gen_of(region.generation, EntryState::revoking);
  if (now != revoking && now != state_gen_of(region.generation, EntryState::valid)) {
    return Errc::no_entry;
  }
  // SYNC POINT: revocation (the full fence that whoever looks for pins passes first orders it)
  entry.state_gen.store(revoking, std::memory_order_release);
  return Errc::busy;
}

Status KeyTable::revoke_begin(RegionHandle region) {
  if (region.generation == 0 || region.index >= file_.capacity) return Errc::no_entry;
  {
    std::lock_guard guard(mutex_);
    if (Status s = begin_under_mutex(region); s.error() == Errc::no_entry) return s;
    // a peer that attaches or wakes after this, under the same mutex, finds the entry REVOKING
    if (accessors_.none_awake()) return {};
  }
  // SYNC POINT: revocation (FENCE_R; pairs with FENCE_A in PeerKeyView: either we see the pin, or
  // the accessor sees REVOKING)
  full_fence();
  accessors_.cut_short(region.generation);
  return {};
}

bool KeyTable::is_quiet(RegionHandle region) {
  if (region.generation == 0 || region.index >= file_.capacity) return true;
  const KeyEntry& entry = file_.entries[region.index];
  const uint64_t revoking = state_gen_of(region.generation, EntryState::revoking);
  const uint64_t now = entry.state_gen.load(std::memory_order_acquire);
  if (now != revoking) return now != state_gen_of(region.generation, EntryState::valid);
  return accessors_.is_quiet(region.generation);
}

bool KeyTable::revoke_poll(RegionHandle region) {
  if (!is_quiet(region)) return false;
  set_free(region);
  return true;
}

Result<RegionHandle> KeyTable::revive(RegionHandle region) {
  std::lock_guard guard(mutex_);
  if (region.generation == 0 || !being_closed(region)) return Errc::no_entry;
  RegionHandle next = region;
  next.generation = next_generation();
  // SYNC POINT: key-entry (the fields are as they were; readers of the old life see another one)
  file_.entries[region.index].state_gen.store(state_gen_of(next.generation, EntryState::valid),
                                              std::memory_order_release);
  return next;
}

Status KeyTable::revoke_now(const RegionHandle& region) {
  if (region.generation == 0 || region.index >= file_.capacity) return Errc::no_entry;
  {
    // nobody attaches, wakes or detaches meanwhile: that takes this lock too
    std::lock_guard guard(mutex_);
    if (accessors_.none_awake()) {  // nobody can be inside
      if (!in_force(region) && !being_closed(region)) return Errc::no_entry;
      free_entry(region);
      return {};
    }
    if (Status s = begin_under_mutex(region); s.error() == Errc::no_entry) return s;
    // SYNC POINT: revocation (FENCE_R)
    full_fence();
    if (accessors_.is_inside(region.generation)) return Errc::busy;
    free_entry(region);
    if (!accessors_.count_close()) return {};
  }
  accessors_.look_for_idle(now_ns());
  return {};
}

Status KeyTable::revoke(RegionHandle region, uint64_t deadline_ns) {
  if (Status s = revoke_now(region); s.error() != Errc::busy) return s;
  if (Status s = revoke_begin(region); !s) return s;
  if (!wait_until_quiet(region, deadline_ns)) return Errc::busy;
  set_free(region);
  return {};
}

Status KeyTable::revoke_bound(const RegionHandle& region) {
  if (region.generation == 0 || region.index >= file_.capacity) return Errc::no_entry;
  std::lock_guard guard(mutex_);
  if (!in_force(region) && !being_closed(region)) return Errc::no_entry;
  // relaxed: written under mutex_
  assert(file_.entries[region.index].bound_qpn.load(std::memory_order_relaxed) != 0);
  free_entry(region);
  return {};
}

bool KeyTable::wait_until_quiet(RegionHandle region, uint64_t deadline_ns) {
  for (int round = 0; !is_quiet(region); ++round) {
    if (now_ns() >= deadline_ns) return false;
    wait_a_little(round);
  }
  return true;
}

void KeyTable::free_entry(const RegionHandle& region) noexcept {
  if ((file_.entries[region.index].rights.load(std::memory_order_relaxed) & kFlagAskOwner) != 0) {
    // no check of ours is in it: it was revoked inside the engine lock; relaxed: under mutex_
    delete std::exchange(sides_[region.index], nullptr);
  }
  file_.entries[region.index].state_gen.store(state_gen_of(region.generation, EntryState::free),
                                              std::memory_order_release);
  --live_;
  rest(region.index, region.generation);
}

void KeyTable::set_free(RegionHandle region) noexcept {
  std::lock_guard guard(mutex_);
  // another thread that closes the same region may have been first
  if (being_closed(region)) free_entry(region);
}

// A freed entry stays in its chain for kQuarantine further closes, so that its key is answered with
// `closed` rather than `unknown_key`; then its memory may serve again.
void KeyTable::rest(uint32_t index, uint64_t generation) noexcept {
  if (quarantine_size_ == kQuarantine) wake_oldest();
  quarantine_[(quarantine_head_ + quarantine_size_++) % kQuarantine] = {index, generation};
}

void KeyTable::wake_oldest() noexcept {
  while (quarantine_size_ != 0) {
    const Resting oldest = quarantine_[quarantine_head_];
    quarantine_head_ = (quarantine_head_ + 1) % kQuarantine;
    --quarantine_size_;
    KeyEntry& entry = file_.entries[oldest.index];
    // relaxed: FREE entries change only under mutex_. Another life began: add() took it back
    if (entry.state_gen.load(std::memory_order_relaxed) !=
        state_gen_of(oldest.generation, EntryState::free)) {
      continue;
    }
    unlink(oldest.index);
    entry.next.store(free_head_, std::memory_order_release);
    free_head_ = oldest.index + 1;
    return;
  }
}

// ---- the gate of a lane -------------------------------------------------------------------------

void KeyTable::move_gate(std::atomic<uint64_t>& gate, uint64_t number) noexcept {
  // SYNC POINT: lane-gate (pairs with FENCE_A in PeerKeyView: either we see the pin, or the
  // accessor sees another number)
  gate.store(number, std::memory_order_seq_cst);
  full_fence();
}

}  // namespace aperture::protect
