// Checks of regions that have a side record, and what else is done with one: see side_record.hpp
// and key_table.hpp.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "protect/key_table.hpp"

namespace aperture::protect {

SideRecord* KeyTable::side(RegionHandle region) noexcept {
  return in_force(region) || being_closed(region) ? sides_[region.index] : nullptr;
}

Result<SideRecord*> KeyTable::add_side(RegionHandle region) {
  auto made = std::make_unique<SideRecord>();
  std::lock_guard guard(mutex_);
  if (!in_force(region)) return Errc::no_entry;
  if (sides_[region.index] != nullptr) return sides_[region.index];
  KeyEntry& entry = file_.entries[region.index];
  // relaxed: constant while the entry is VALID
  auto* base = reinterpret_cast<std::byte*>(entry.base.load(std::memory_order_relaxed));
  made->segments.push_back({base, entry.length.load(std::memory_order_relaxed), std::nullopt});
  sides_[region.index] = made.release();
  // SYNC POINT: ask-owner (who sees the flag sees the record; a peer that copied the entry before
  // may still finish what it had begun)
  entry.rights.fetch_or(kFlagAskOwner, std::memory_order_release);
  return sides_[region.index];
}

Checked KeyTable::grant_beside(const AccessAsk& ask, const EntryCopy& entry) const noexcept {
  const SideRecord& side = *sides_[entry.index];
  // first of all: who has half a key learns nothing about the region
  if (side.secret && ask.secret.unchecked() != *side.secret) return Checked(Denial::unknown_key);
  uint64_t offset = 0;
  const uint64_t len = ask.len.unchecked();
  Denial denial = judge_entry(entry, ask.addr.unchecked(), len, ask.need, offset);
  if (denial == Denial::none) denial = side.judge(ask.through, offset, len);
  if (denial != Denial::none) return Checked(denial);
  const uint64_t n = std::min(len, kChunkBytes);
  auto* first = reinterpret_cast<std::byte*>(entry.base);
  uint64_t run = 0;
  each_run(side.segments, offset, n, [&](std::byte* piece, size_t size) {
    first = piece;
    run = size;
    return false;
  });
  if (run == n) return Checked(first, n, entry.ref());
  return Checked(first, n, entry.ref(), &side, offset);
}

void KeyTable::note_write(RegionRef region) const noexcept {
  if (region.generation == 0 || region.index >= file_.capacity) return;
  const KeyEntry& entry = file_.entries[region.index];
  // SYNC POINT: ask-owner
  if ((entry.rights.load(std::memory_order_acquire) & kFlagAskOwner) == 0) return;
  if (entry.state_gen.load(std::memory_order_acquire) !=
      state_gen_of(region.generation, EntryState::valid)) {
    return;
  }
  for (WriteWatcher* watcher : sides_[region.index]->watchers) watcher->on_remote_write();
}

Denial KeyTable::commit(const AccessAsk& ask) const noexcept {
  const Checked checked = check(ask);
  if (!checked) return checked.denial();
  const uint32_t index = checked.grant().region().index;
  const KeyEntry& entry = file_.entries[index];
  // relaxed: constant for as long as the engine lock is held, but for the flag
  const uint32_t flags = entry.rights.load(std::memory_order_relaxed);
  if ((flags & kFlagAskOwner) == 0 || !sides_[index]->persistent) return Denial::not_persistent;
  const uint64_t base = entry.base.load(std::memory_order_relaxed);
  const uint64_t offset = ask.addr.unchecked() - ((flags & kFlagZeroBased) != 0 ? 0 : base);
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto sync = [page](std::byte* piece, size_t n) {
    const auto from = reinterpret_cast<uintptr_t>(piece) & ~(page - 1);
    const auto end = reinterpret_cast<uintptr_t>(piece) + n;
    return ::msync(reinterpret_cast<void*>(from), end - from, MS_SYNC) == 0;
  };
  return each_run(sides_[index]->segments, offset, ask.len.unchecked(), sync) ? Denial::none
                                                                              : Denial::not_backed;
}

}  // namespace aperture::protect
