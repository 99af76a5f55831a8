// Closing regions, and the accessor slots of peers: see key_table.hpp and revocation.md.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <new>

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

Status KeyTable::revoke_begin(RegionHandle region) {
  if (region.generation == 0 || region.index >= file_.capacity) return Errc::no_entry;
  KeyEntry& entry = file_.entries[region.index];
  uint64_t expected = state_gen_of(region.generation, EntryState::valid);
  const uint64_t revoking = state_gen_of(region.generation, EntryState::revoking);
  // seq_cst: the first half of FENCE_R
  if (!entry.state_gen.compare_exchange_strong(expected, revoking, std::memory_order_seq_cst)) {
    return expected == revoking ? Status{} : Status{Errc::no_entry};
  }
  // seq_cst, after the exchange: a peer that attaches later finds the entry REVOKING
  if (attached_count_.load(std::memory_order_seq_cst) == 0) return {};
  // SYNC POINT: revocation (FENCE_R; pairs with FENCE_A in PeerKeyView: either we see the pin, or
  // the accessor sees REVOKING)
  full_fence();
  std::lock_guard guard(slots_mutex_);
  for (const Attached& a : attached_) {
    for (AccessorSlot& slot : a.slots->slots) {
      if (slot.pin.load(std::memory_order_acquire) == region.generation) {
        slot.riov_len.store(0, std::memory_order_seq_cst);
      }
    }
  }
  full_fence();
  return {};
}

// Whether nothing pinned under `pin` can land through this slot any more.
bool KeyTable::slot_quiet(AccessorSlot& slot, uint64_t pin, pid_t accessor) noexcept {
  // SYNC POINT: revocation (pairs with the release store that unpins: the copy is over)
  if (slot.pin.load(std::memory_order_acquire) != pin) return true;
  // once more, for a thread that was stopped between its pin and its second look: its call, if it
  // still makes one, copies nothing
  slot.riov_len.store(0, std::memory_order_seq_cst);
  full_fence();
  const auto tid = static_cast<pid_t>(slot.tid.load(std::memory_order_acquire));
  const uint64_t start = slot.start_time.load(std::memory_order_acquire);
  if (slot.pin.load(std::memory_order_acquire) != pin) return true;
  return probe_->look(accessor, tid, start) != ThreadState::running;
}

bool KeyTable::quiet(uint64_t generation) noexcept {
  // seq_cst: as in revoke_begin()
  if (attached_count_.load(std::memory_order_seq_cst) == 0) return true;
  std::lock_guard guard(slots_mutex_);
  for (const Attached& a : attached_) {
    for (AccessorSlot& slot : a.slots->slots) {
      if (!slot_quiet(slot, generation, a.accessor)) return false;
    }
  }
  return true;
}

bool KeyTable::revoke_poll(RegionHandle region) {
  if (region.generation == 0 || region.index >= file_.capacity) return true;
  const KeyEntry& entry = file_.entries[region.index];
  const uint64_t revoking = state_gen_of(region.generation, EntryState::revoking);
  const uint64_t now = entry.state_gen.load(std::memory_order_acquire);
  if (now != revoking) return now != state_gen_of(region.generation, EntryState::valid);
  if (!quiet(region.generation)) return false;
  set_free(region);
  return true;
}

Status KeyTable::revoke(RegionHandle region, uint64_t deadline_ns) {
  if (Status s = revoke_begin(region); !s) return s;
  for (int round = 0; !revoke_poll(region); ++round) {
    if (now_ns() >= deadline_ns) return Errc::busy;
    wait_a_little(round);
  }
  return {};
}

void KeyTable::set_free(RegionHandle region) noexcept {
  std::lock_guard guard(mutex_);
  KeyEntry& entry = file_.entries[region.index];
  // another thread that closes the same region may have been first
  if (entry.state_gen.load(std::memory_order_relaxed) !=
      state_gen_of(region.generation, EntryState::revoking)) {
    return;
  }
  entry.state_gen.store(state_gen_of(region.generation, EntryState::free),
                        std::memory_order_release);
  --live_;
  rest(region.index, region.generation);
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

// ---- accessor slots -----------------------------------------------------------------------------

Status KeyTable::attach_slots(SlotArray* slots, pid_t accessor) {
  if (slots == nullptr || accessor <= 0) return Errc::invalid;
  // without /proc a dead accessor could not be told from a running one
  if (thread_start_time(accessor, accessor) == 0) return Errc::not_supported;
  std::lock_guard guard(slots_mutex_);
  try {
    attached_.push_back({slots, accessor});
  } catch (const std::bad_alloc&) {
    return Errc::no_memory;
  }
  attached_count_.store(static_cast<uint32_t>(attached_.size()), std::memory_order_seq_cst);
  return {};
}

bool KeyTable::detach_slots(SlotArray* slots) {
  std::lock_guard guard(slots_mutex_);
  const auto at = std::find_if(attached_.begin(), attached_.end(),
                               [slots](const Attached& a) { return a.slots == slots; });
  if (at == attached_.end()) return true;
  // as revoking every region for this one accessor: either it sees `closed`, or we see its pin
  for (AccessorSlot& slot : slots->slots) slot.closed.store(1, std::memory_order_seq_cst);
  // SYNC POINT: slot-closed (pairs with FENCE_A in PeerKeyView)
  full_fence();
  for (AccessorSlot& slot : slots->slots) {
    const uint64_t pin = slot.pin.load(std::memory_order_acquire);
    if (pin != 0 && !slot_quiet(slot, pin, at->accessor)) return false;
  }
  attached_.erase(at);
  attached_count_.store(static_cast<uint32_t>(attached_.size()), std::memory_order_seq_cst);
  return true;
}

}  // namespace aperture::protect
