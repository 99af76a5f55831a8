// Registration: see key_table.hpp.
#include "protect/key_table.hpp"

#include <cassert>
#include <mutex>
#include <new>

#include "base/guarded_copy.hpp"

namespace aperture::protect {

namespace {

// Whether `length` bytes from there on have addresses: nothing wraps.
bool has_addresses(uint64_t from, uint64_t length) noexcept {
  return length == 0 || from <= ~uint64_t{0} - (length - 1);
}

Status validate(const RegionSpec& spec) noexcept {
  if (spec.pd == 0 || (static_cast<uint32_t>(spec.rights) & ~kAllRights) != 0) return Errc::invalid;
  if (!has_addresses(spec.base, spec.length)) return Errc::invalid;
  if (spec.origin && spec.zero_based) return Errc::invalid;
  if (spec.origin && !has_addresses(*spec.origin, spec.length)) return Errc::invalid;
  if (spec.requested_key == kNotAvail) return Errc::key_rejected;
  return {};
}

// The flags of a region that is more than a range which everybody with the key may reach.
uint32_t flags_beside(const RegionSpec& spec, const SideRecord* side) noexcept {
  const bool is_shared = side != nullptr && side->share != nullptr;
  uint32_t flags = is_shared ? kFlagDevice : 0;
  if ((side != nullptr && !is_shared) || spec.bound_to != 0) flags |= kFlagAskOwner;
  if (!spec.origin || *spec.origin == spec.base) return flags;
  if (*spec.origin == 0) return flags | kFlagZeroBased;
  return flags | kFlagAskOwner | kFlagOrigin;
}

// Lock of the entries held.
void fill(KeyEntry& entry, const RegionSpec& spec, uint64_t key, uint32_t flags) noexcept {
  assert(spec.pd != 0 && key != kNotAvail);
  // relaxed: changes under the lock
  assert(state_of(entry.state_gen.load(std::memory_order_relaxed)) == EntryState::free);
  // release on each field: a reader that sees one of them also sees that the state is not VALID in
  // the life that it knew
  entry.key.store(key, std::memory_order_release);
  entry.pd.store(spec.pd, std::memory_order_release);
  entry.base.store(spec.base, std::memory_order_release);
  entry.length.store(spec.length, std::memory_order_release);
  entry.rights.store(static_cast<uint32_t>(spec.rights) | (spec.zero_based ? kFlagZeroBased : 0) |
                         (spec.enabled ? kFlagEnabled : 0) | flags,
                     std::memory_order_release);
  entry.registered_at.store(reinterpret_cast<uint64_t>(spec.registered_at),
                            std::memory_order_release);
  entry.bound_qpn.store(spec.bound_to, std::memory_order_release);
}

}  // namespace

Result<std::unique_ptr<KeyTable>> KeyTable::create(uint32_t max_regions) {
  Result<PublishedFile> file = OwnKeyFile::make(max_regions);
  if (!file) return file.error();
  std::unique_ptr<KeyTable> table(new (std::nothrow) KeyTable(*std::move(file)));
  if (table == nullptr || !table->sides_.is_made() || !table->chains_.is_made()) {
    return Errc::no_memory;
  }
  install_fault_guard();
  return table;
}

KeyTable::KeyTable(PublishedFile file) noexcept : own_file_(std::move(file)) {
  header().shares_address = reinterpret_cast<uint64_t>(sides_.shares());
}

// So that a miss can tell another domain's key from an unknown one.
void KeyTable::note_domain(DomainId pd) noexcept {
  assert(pd != 0);
  if (pd == last_domain_) return;
  last_domain_ = pd;
  for (std::atomic<uint32_t>& known : header().domains) {
    if (known.load(std::memory_order_relaxed) == pd) return;  // relaxed: hints, written by us only
  }
  header().domains[domain_cursor_++ % kKnownDomains].store(pd, std::memory_order_relaxed);
}

Status KeyTable::place_requested(const RegionSpec& spec, Place& place) const noexcept {
  place.key = *spec.requested_key;
  place.hash = hash_key(spec.pd, place.key);
  if (chains_.is_large()) {
    // chosen keys mostly count up: the chains of those to come, as for keys that are drawn
    chains_.fetch_bucket(hash_key(spec.pd, place.key + DrawnKeys::kAhead));
    chains_.fetch_first(hash_key(spec.pd, place.key + DrawnKeys::kAhead / 2));
  }
  if (chains_.is_taken(place.hash, spec.pd, place.key, place.resting)) return Errc::no_key;
  return {};
}

Status KeyTable::add(const RegionSpec& spec, std::unique_ptr<SideRecord> side, RegionHandle& made) {
  if (Status s = validate(spec); !s) return s;
  if (side != nullptr && spec.bound_to == 0) side->share_device();

  std::lock_guard guard(entries_.lock());
  note_domain(spec.pd);
  Place place;
  if (spec.requested_key) {
    if (Status s = place_requested(spec, place); !s) return s;
  }
  uint32_t index = place.resting - 1;
  if (place.resting == 0) {
    if (Status s = entries_.take(index); !s) return s;
  }
  if (!spec.requested_key) {
    const DrawnKeys::Drawn drawn = drawn_.draw(spec.pd, chains_);
    place.key = drawn.key;
    place.hash = drawn.hash;
  }
  uint32_t flags = 0;
  if (side != nullptr || spec.bound_to != 0 || spec.origin) [[unlikely]] {
    flags = flags_beside(spec, side.get());
    // SYNC POINT: key-entry (who finds the entry VALID also finds this)
    if ((flags & kFlagDevice) != 0) {
      accessors_.expect_drivers();
      header().has_devices.store(1, std::memory_order_release);
    }
    if ((flags & kFlagOrigin) != 0) sides_.put_origin(index, *spec.origin);
    sides_.put(index, std::move(side));
  }
  fill(own_file_.layout().entries[index], spec, place.key, flags);
  const uint64_t generation = entries_.begin_life(index);
  if (place.resting == 0) chains_.link(index, place.hash);
  chains_.split_if_crowded();
  made = {index, generation, place.key, generation};
  return {};
}

bool KeyTable::is_in_use(DomainId pd, uint64_t key) const noexcept {
  uint32_t resting = 0;
  std::lock_guard guard(entries_.lock());
  return chains_.is_taken(hash_key(pd, key), pd, key, resting);
}

Status KeyTable::enable(RegionHandle region) {
  std::lock_guard guard(entries_.lock());
  if (!entries_.in_force(region)) return Errc::no_entry;
  // a bit that changes in a living entry, only from 0 to 1
  own_file_.layout().entries[region.index].rights.fetch_or(kFlagEnabled, std::memory_order_release);
  return {};
}

bool KeyTable::may_give_back() const noexcept {
  std::lock_guard guard(entries_.lock());
  return entries_.is_sparse() && accessors_.none_attached();
}

bool KeyTable::give_back(PublishedFile& other) noexcept {
  std::lock_guard guard(entries_.lock());
  // one that has the file before would believe it for ever
  return accessors_.none_attached() && entries_.give_back(other);
}

// ---- side records -------------------------------------------------------------------------------

SideRecord* KeyTable::side(RegionHandle region) noexcept {
  return entries_.is_over(region) ? nullptr : sides_.record(region.index);
}

Result<SideRecord*> KeyTable::add_side(RegionHandle region) {
  auto made = std::make_unique<SideRecord>();
  std::lock_guard guard(entries_.lock());
  if (!entries_.in_force(region)) return Errc::no_entry;
  KeyEntry& entry = own_file_.layout().entries[region.index];
  if (SideRecord* const there = sides_.record(region.index); there != nullptr) {
    // SYNC POINT: ask-owner (there may be more to it from now on than a device's memory)
    entry.rights.fetch_or(kFlagAskOwner, std::memory_order_release);
    return there;
  }
  // relaxed: constant while the entry is VALID
  auto* base = reinterpret_cast<std::byte*>(entry.base.load(std::memory_order_relaxed));
  made->segments.push_back(
      {base, entry.length.load(std::memory_order_relaxed), std::nullopt, nullptr});
  assert(made->segments.size() == 1);
  sides_.put(region.index, std::move(made));
  // SYNC POINT: ask-owner (who sees the flag sees the record; a peer that copied the entry before
  // may still finish what it had begun)
  entry.rights.fetch_or(kFlagAskOwner, std::memory_order_release);
  return sides_.record(region.index);
}

}  // namespace aperture::protect
