// Taking entries, and what their lives go through: see key_entries.hpp.
#include "protect/key_entries.hpp"

#include <cassert>
#include <mutex>

namespace aperture::protect {

uint32_t KeyEntries::regions() const noexcept {
  std::lock_guard guard(lock_);
  return live_;
}

Status KeyEntries::take(uint32_t& index) noexcept {
  if (free_head_ == 0 && used_ == file_.capacity) wake_oldest();
  if (free_head_ != 0) {
    index = free_head_ - 1;
    assert(index < used_);
    // relaxed: the list of unlinked entries is only ours
    free_head_ = file_.entries[index].next.load(std::memory_order_relaxed);
    assert(free_head_ <= used_);
    return {};
  }
  if (Status s = own_.have_entries(used_ + 1); !s) return s;
  index = used_++;
  assert(used_ <= file_.capacity);
  // SYNC POINT: key-used (its page is allocated: have_entries())
  file_.header->entries_used.store(used_, std::memory_order_release);
  return {};
}

uint64_t KeyEntries::begin_life(uint32_t index) noexcept {
  assert(index < used_ && live_ < used_);
  KeyEntry& entry = file_.entries[index];
  // relaxed: changes under the lock
  assert(state_of(entry.state_gen.load(std::memory_order_relaxed)) == EntryState::free);
  const uint64_t generation = next_generation();
  entry.birth.store(generation, std::memory_order_release);
  // SYNC POINT: key-entry (the fields of this life become visible with its generation)
  entry.state_gen.store(state_gen_of(generation, EntryState::valid), std::memory_order_release);
  ++live_;
  return generation;
}

Status KeyEntries::begin_close(const RegionHandle& region) noexcept {
  if (is_over(region)) return Errc::no_entry;
  assert(live_ != 0 && region.generation < next_generation_);
  // SYNC POINT: revocation (the full fence that whoever looks for pins passes first orders it)
  file_.entries[region.index].state_gen.store(state_gen_of(region.generation, EntryState::revoking),
                                              std::memory_order_release);
  return {};
}

Result<RegionHandle> KeyEntries::revive(const RegionHandle& region) noexcept {
  if (state(region) != EntryState::revoking) return Errc::no_entry;
  RegionHandle next = region;
  next.generation = next_generation();
  assert(next.generation > region.generation && live_ != 0);
  // SYNC POINT: key-entry (the fields are as they were; readers of the old life see another one)
  file_.entries[region.index].state_gen.store(state_gen_of(next.generation, EntryState::valid),
                                              std::memory_order_release);
  return next;
}

void KeyEntries::end_life(const RegionHandle& region) noexcept {
  assert(!is_over(region) && live_ != 0);
  KeyEntry& entry = file_.entries[region.index];
  if ((entry.rights.load(std::memory_order_relaxed) & kFlagAskOwner) != 0) {
    // no check of ours is in it: it was revoked inside the engine lock; relaxed: under the lock
    sides_.drop(region.index);
  }
  entry.state_gen.store(state_gen_of(region.generation, EntryState::free),
                        std::memory_order_release);
  --live_;
  rest(region.index, region.generation);
}

void KeyEntries::rest(uint32_t index, uint64_t generation) noexcept {
  if (quarantine_size_ == kQuarantine) wake_oldest();
  assert(quarantine_size_ < kQuarantine && index < used_);
  quarantine_[(quarantine_head_ + quarantine_size_++) % kQuarantine] = {index, generation};
}

// The one that has rested longest comes onto the free list.
void KeyEntries::wake_oldest() noexcept {
  while (quarantine_size_ != 0) {
    const Resting oldest = quarantine_[quarantine_head_];
    assert(oldest.index < used_ && oldest.generation < next_generation_);
    quarantine_head_ = (quarantine_head_ + 1) % kQuarantine;
    --quarantine_size_;
    KeyEntry& entry = file_.entries[oldest.index];
    // relaxed: FREE entries change only under the lock. Another life began: its key was registered
    // again
    if (entry.state_gen.load(std::memory_order_relaxed) !=
        state_gen_of(oldest.generation, EntryState::free)) {
      continue;
    }
    chains_.unlink(oldest.index);
    entry.next.store(free_head_, std::memory_order_release);
    free_head_ = oldest.index + 1;
    return;
  }
}

}  // namespace aperture::protect
