// Checks of what only the owner validates (regions with a side record, with an origin of their own,
// of one endpoint), and what else is done with a side record: see side_record.hpp and
// access_check.hpp.
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "base/guarded_copy.hpp"
#include "base/invariant.hpp"
#include "base/settings.hpp"
#include "protect/access_check.hpp"

namespace aperture::protect {

namespace {

// What an entry is bound to is an endpoint, or one queue pair of it.
bool comes_to(const AccessAsk& ask, EndpointId only) noexcept {
  return only == ask.through || only == ask.peer;
}

}  // namespace

bool Segment::copy_in(std::byte* at, const void* from, size_t n) const noexcept {
  assert(at >= base && static_cast<uint64_t>(at - base) + n <= length);
  return device != nullptr ? device->copy_in(at, from, n) : guarded_copy(at, from, n);
}

bool Segment::copy_out(void* to, const std::byte* at, size_t n) const noexcept {
  assert(at >= base && static_cast<uint64_t>(at - base) + n <= length);
  return device != nullptr ? device->copy_out(to, at, n) : guarded_copy(to, at, n);
}

void SideRecord::share_device() noexcept {
  if (!is_device_alone() || !setting_is("APERTURE_DEVICE_SHARE", "on")) return;
  const Segment& all = segments[0];
  auto made = std::unique_ptr<memory::Share>(new (std::nothrow) memory::Share);
  if (made == nullptr || !all.device->share(*made)) return;
  made->offset += static_cast<uint64_t>(all.base - all.device->begin());
  share = std::move(made);
}

bool Grant::copy_in_parts(const void* from, size_t n, size_t at) const noexcept {
  const auto* in = static_cast<const std::byte*>(from);
  return each_run_of(parts_->segments, offset_ + at, n,
                     [&in](const Segment& segment, std::byte* piece, size_t size) {
                       const bool copied = segment.copy_in(piece, in, size);
                       in += size;
                       return copied;
                     });
}

bool Grant::copy_out_parts(void* to, size_t n, size_t at) const noexcept {
  auto* out = static_cast<std::byte*>(to);
  return each_run_of(parts_->segments, offset_ + at, n,
                     [&out](const Segment& segment, std::byte* piece, size_t size) {
                       const bool copied = segment.copy_out(out, piece, size);
                       out += size;
                       return copied;
                     });
}

Checked AccessCheck::grant_beside(const AccessAsk& ask, const EntryCopy& entry) const noexcept {
  APERTURE_DEBUG_ASSERT(entry.index < file_.capacity);
  const SideRecord* side = sides_.record(entry.index);
  // first of all: who has half a key learns nothing about the region
  if (side != nullptr && side->secret && ask.secret.unchecked() != *side->secret) {
    return Checked(Denial::unknown_key);
  }
  EntryCopy seen = entry;  // as peers count
  if ((entry.rights & kFlagOrigin) != 0) seen.base = sides_.origin(entry.index);
  uint64_t offset = 0;
  const uint64_t len = ask.len.unchecked();
  Denial denial = validate_entry(seen, ask.addr.unchecked(), len, ask.need, offset);
  // relaxed: constant until the entry is revoked, which happens inside the engine lock that we hold
  const EndpointId only = file_.entries[entry.index].bound_qpn.load(std::memory_order_relaxed);
  if (denial == Denial::none && only != 0 && !comes_to(ask, only)) denial = Denial::wrong_endpoint;
  if (denial == Denial::none && side != nullptr) denial = side->validate(ask.through, offset, len);
  if (denial != Denial::none) return Checked(denial);
  const uint64_t n = std::min(len, kChunkBytes);
  if (side == nullptr) {
    return Checked(reinterpret_cast<std::byte*>(entry.base + offset), n, entry.ref());
  }
  auto* first = reinterpret_cast<std::byte*>(entry.base);
  uint64_t run = 0;
  each_run(side->segments, offset, n, [&](std::byte* piece, size_t size) {
    first = piece;
    run = size;
    return false;
  });
  APERTURE_DEBUG_ASSERT(run <= n);
  if (run == n && !side->in_device) return Checked(first, n, entry.ref());
  return Checked(first, n, entry.ref(), side, offset);
}

Denial AccessCheck::find_bound(const AccessAsk& ask, RegionRef& life) const noexcept {
  EntryCopy entry;
  if (const Denial denial = find(ask, nullptr, entry); denial != Denial::none) return denial;
  // relaxed: constant until the entry is revoked, which happens inside the engine lock that we hold
  const EndpointId only = file_.entries[entry.index].bound_qpn.load(std::memory_order_relaxed);
  if (only == 0) return Denial::no_window;
  if (!comes_to(ask, only)) return Denial::wrong_endpoint;
  life = entry.ref();
  return Denial::none;
}

void AccessCheck::note_write(RegionRef region) const noexcept {
  if (region.generation == 0 || region.index >= file_.capacity) return;
  const KeyEntry& entry = file_.entries[region.index];
  // SYNC POINT: ask-owner
  if ((entry.rights.load(std::memory_order_acquire) & kFlagsBeside) == 0) return;
  if (entry.state_gen.load(std::memory_order_acquire) !=
      state_gen_of(region.generation, EntryState::valid)) {
    return;
  }
  const SideRecord* side = sides_.record(region.index);
  if (side == nullptr) return;
  for (WriteWatcher* watcher : side->watchers) watcher->on_remote_write();
}

Denial AccessCheck::commit(const AccessAsk& ask) const noexcept {
  const Checked checked = check(ask);
  if (!checked) return checked.denial();
  const uint32_t index = checked.grant().region().index;
  const KeyEntry& entry = file_.entries[index];
  // relaxed: constant for as long as the engine lock is held, but for the flag
  const uint32_t flags = entry.rights.load(std::memory_order_relaxed);
  const SideRecord* side = (flags & kFlagsBeside) != 0 ? sides_.record(index) : nullptr;
  // where it is a right of its own, check() has seen to it
  const bool granted = includes(ask.need, Rights::flush_persistent);
  if (!granted && (side == nullptr || !side->persistent)) return Denial::not_persistent;
  const uint64_t len = ask.len.unchecked();  // all of it lies inside
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto sync = [page](std::byte* piece, size_t n) {
    const auto from = reinterpret_cast<uintptr_t>(piece) & ~(page - 1);
    const auto end = reinterpret_cast<uintptr_t>(piece) + n;
    return ::msync(reinterpret_cast<void*>(from), end - from, MS_SYNC) == 0;
  };
  if (len == 0) return Denial::none;
  const bool synced =
      side == nullptr
          ? sync(checked.grant().data(), len)
          : each_run(side->segments, ask.addr.unchecked() - origin_of(index, flags), len, sync);
  return synced ? Denial::none : Denial::not_backed;
}

Denial AccessCheck::widen(AccessAsk& ask) const noexcept {
  EntryCopy entry;
  const Denial denial = find(ask, nullptr, entry);
  if (denial != Denial::none) return denial;
  ask.addr = Wild<uint64_t>(origin_of(entry.index, entry.rights));
  ask.len = Wild<uint64_t>(entry.length);
  return Denial::none;
}

uint64_t AccessCheck::origin_of(uint32_t index, uint32_t flags) const noexcept {
  if ((flags & kFlagZeroBased) != 0) return 0;
  if ((flags & kFlagOrigin) != 0) return sides_.origin(index);
  // relaxed: constant in one life of an entry
  return file_.entries[index].base.load(std::memory_order_relaxed);
}

}  // namespace aperture::protect
