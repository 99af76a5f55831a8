// Taking entries, and what their lives go through: see key_entries.hpp.
#include "protect/key_entries.hpp"

#include <algorithm>
#include <cassert>
#include <mutex>
#include <new>

namespace aperture::protect {

uint32_t KeyEntries::regions() const noexcept {
  std::lock_guard guard(lock_);
  return live_;
}

Status KeyEntries::take(uint32_t& index) noexcept {
  if (free_head_ == 0 && !holes_.empty()) {
    if (Status s = fill_hole(); !s) return s;
  }
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
  if (index % OwnKeyFile::kStepEntries == 0) watch_sparse();
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
  if ((entry.rights.load(std::memory_order_relaxed) & kFlagsBeside) != 0) {
    // no check of ours is in it: it was revoked inside the engine lock; relaxed: under the lock
    sides_.drop(region.index);
  }
  entry.state_gen.store(state_gen_of(region.generation, EntryState::free),
                        std::memory_order_release);
  rest(region.index, region.generation);
  if (--live_ < sparse_below_) [[unlikely]]
    call_sparse();
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

// ---- giving memory back -------------------------------------------------------------------------

// To be called whenever steps() has changed.
void KeyEntries::watch_sparse() noexcept {
  const size_t below = steps() * OwnKeyFile::kStepEntries / kSparse;
  sparse_below_ = steps() > kStepsKept ? static_cast<uint32_t>(below) : 0;
}

// What cannot be given back now is asked for again when half of what lives has gone as well.
void KeyEntries::call_sparse() noexcept {
  sparse_below_ = live_ / 2;
  if (when_sparse_) when_sparse_();
}

// The entries of a step that are in no chain, onto the free list: the first of them comes first.
void KeyEntries::list_free(uint32_t step) noexcept {
  const uint32_t first = step * OwnKeyFile::kStepEntries;
  for (uint32_t i = std::min(first + OwnKeyFile::kStepEntries, used_); i-- > first;) {
    KeyEntry& entry = file_.entries[i];
    // relaxed: written under the lock. What is in a chain has its domain
    if (entry.pd.load(std::memory_order_relaxed) != 0) continue;
    assert(state_of(entry.state_gen.load(std::memory_order_relaxed)) == EntryState::free);
    entry.next.store(free_head_, std::memory_order_release);
    free_head_ = i + 1;
  }
}

uint32_t KeyEntries::next_used(uint32_t index) const noexcept {
  // they lie in falling order
  auto hole = std::lower_bound(holes_.rbegin(), holes_.rend(), index / OwnKeyFile::kStepEntries);
  for (; hole != holes_.rend() && index < used_; ++hole) {
    if (*hole != index / OwnKeyFile::kStepEntries) break;
    index = (*hole + 1) * OwnKeyFile::kStepEntries;
  }
  return std::min(index, used_);
}

Status KeyEntries::fill_hole() noexcept {
  assert(!holes_.empty() && holes_.back() < own_.steps());
  if (Status s = own_.have_step(holes_.back()); !s) return s;
  list_free(holes_.back());
  holes_.pop_back();
  watch_sparse();
  assert(free_head_ != 0);
  return {};
}

bool KeyEntries::give_back(PublishedFile& other) noexcept {
  if (!is_sparse()) return false;
  try {
    return move_to(other);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool KeyEntries::move_to(PublishedFile& other) {
  constexpr uint32_t kStep = OwnKeyFile::kStepEntries;
  const std::vector<uint32_t> linked = chains_.indices();
  std::vector<bool> kept(own_.steps(), false);
  for (const uint32_t index : linked) kept[index / kStep] = true;
  const auto count = static_cast<size_t>(std::count(kept.begin(), kept.end(), true));
  if (count * 2 > steps()) return false;
  std::vector<uint32_t> holes;
  holes.reserve(kept.size() - count);
  const uint32_t buckets = chains_.buckets_needed();

  chains_.begin_anew();
  const Status moved = own_.move_to(other, kept, buckets);
  if (!moved) {
    chains_.go_on();
    return false;
  }
  assert(own_.steps() <= kept.size());
  used_ = std::min(used_, own_.steps() * kStep);
  // SYNC POINT: key-used (there is nothing to be found beyond)
  file_.header->entries_used.store(used_, std::memory_order_release);
  chains_.end_anew(linked, buckets);
  free_head_ = 0;
  auto run_end = static_cast<uint32_t>(kept.size());  // of steps that are not kept
  for (uint32_t step = run_end; step-- > 0;) {
    if (kept[step]) {
      list_free(step);
      run_end = step;
      continue;
    }
    if (step < own_.steps()) holes.push_back(step);
    // a whole run at once: a step by itself does not begin where a page does
    if (step == 0 || kept[step - 1]) {
      chains_.forget(step * kStep, std::min(run_end * kStep, file_.capacity));
    }
  }
  holes_ = std::move(holes);
  watch_sparse();
  sparse_below_ = std::min(sparse_below_, live_ / 2);
  assert(live_ <= used_);
  return true;
}

}  // namespace aperture::protect
