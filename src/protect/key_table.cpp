// Registration and the check: see key_table.hpp. Closing is in revoke.cpp.
#include "protect/key_table.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "base/random.hpp"

namespace aperture::protect {

namespace {

constexpr uint64_t kNotAvail = ~uint64_t{0};  // means "no key": fi_mr(3)
constexpr size_t kPage = 4096;
constexpr uint32_t kCachedRegions = 4096;   // so many are in a near cache anyway
constexpr size_t kBackingStep = 64 * 1024;  // pages are allocated this many bytes at a time

size_t round_up(size_t n, size_t to) noexcept {
  return (n + to - 1) / to * to;
}

}  // namespace

Result<std::unique_ptr<KeyTable>> KeyTable::create(uint32_t max_regions) {
  if (max_regions == 0 || max_regions > (1u << 24)) return Errc::invalid;
  // two buckets for each region: most chains then hold one entry
  const uint32_t max_buckets = std::max(kBucketsAtStart, std::bit_ceil(max_regions) * 2);
  const size_t entries_offset = round_up(kKeyHeaderBytes + size_t{max_buckets} * 4, kPage);
  const size_t size = round_up(entries_offset + size_t{max_regions} * sizeof(KeyEntry), kPage);

  Result<PublishedFile> made = make_published_memfd("aperture-keys", size);
  if (!made) return made.error();
  PublishedFile file = std::move(*made);
  if (Status s = allocate_pages(file.fd.get(), 0, kKeyHeaderBytes + kBucketsAtStart * 4); !s) {
    return s.error();
  }
  auto* header = reinterpret_cast<KeyHeader*>(file.mapping.data());
  header->magic = kKeyFileMagic;
  header->layout = kKeyFileLayout;
  header->capacity = max_regions;
  header->max_buckets = max_buckets;
  header->entries_offset = entries_offset;
  header->size_bytes = size;
  header->self_address = reinterpret_cast<uint64_t>(header);
  header->nonce = random_u64();
  header->bucket_count.store(kBucketsAtStart, std::memory_order_release);

  std::unique_ptr<KeyTable> table(new (std::nothrow) KeyTable(std::move(file)));
  if (table == nullptr || table->sides_ == nullptr || table->shadows_ == nullptr ||
      table->origins_ == nullptr) {
    return Errc::no_memory;
  }
  install_fault_guard();
  return table;
}

KeyTable::KeyTable(PublishedFile file) noexcept
    : fd_(std::move(file.fd)), mapping_(std::move(file.mapping)) {
  auto* base = mapping_.data();
  file_.header = reinterpret_cast<KeyHeader*>(base);
  file_.buckets = reinterpret_cast<std::atomic<uint32_t>*>(base + kKeyHeaderBytes);
  file_.entries = reinterpret_cast<KeyEntry*>(base + file_.header->entries_offset);
  file_.capacity = file_.header->capacity;
  file_.max_buckets = file_.header->max_buckets;
  buckets_backed_ = kBucketsAtStart;
  // address space only: pages come with the records
  sides_.reset(static_cast<SideRecord**>(std::calloc(file_.capacity, sizeof(void*))));
  shadows_.reset(static_cast<Shadow*>(std::calloc(file_.capacity, sizeof(Shadow))));
  origins_.reset(static_cast<uint64_t*>(std::calloc(file_.capacity, sizeof(uint64_t))));
}

KeyTable::~KeyTable() {
  for (uint32_t i = 0; sides_ != nullptr && i < entries_used_; ++i) delete sides_[i];
}

uint32_t KeyTable::regions() const noexcept {
  std::lock_guard guard(mutex_);
  return live_;
}

// ---- memory, as it is needed --------------------------------------------------------------------

Status KeyTable::have_entries(uint32_t count) noexcept {
  if (count <= entries_backed_) return {};
  if (count > file_.capacity) return Errc::no_space;
  const size_t from = file_.header->entries_offset + size_t{entries_backed_} * sizeof(KeyEntry);
  const size_t len = std::min(kBackingStep, size_bytes() - from);
  if (Status s = allocate_pages(fd_.get(), from, len); !s) return s;
#ifdef MADV_POPULATE_WRITE
  // one call instead of a fault for every 64 entries; where the kernel lacks it, faults will do
  (void)::madvise(mapping_.data() + from, len, MADV_POPULATE_WRITE);
#endif
  entries_backed_ =
      std::min(file_.capacity, entries_backed_ + static_cast<uint32_t>(len / sizeof(KeyEntry)));
  return {};
}

bool KeyTable::have_buckets(uint32_t count) noexcept {
  if (count <= buckets_backed_) return true;
  const size_t from = kKeyHeaderBytes + size_t{buckets_backed_} * 4;
  const size_t len = std::min(kBackingStep, kKeyHeaderBytes + size_t{file_.max_buckets} * 4 - from);
  if (!allocate_pages(fd_.get(), from, len)) return false;
#ifdef MADV_POPULATE_WRITE
  (void)::madvise(mapping_.data() + from, len, MADV_POPULATE_WRITE);
#endif
  buckets_backed_ += static_cast<uint32_t>(len / 4);
  return true;
}

// ---- chains -------------------------------------------------------------------------------------

// bucket_of() for the owner, who knows the power of two. mutex_ held.
inline std::atomic<uint32_t>& KeyTable::head_of(uint64_t hash) const noexcept {
  const auto b = static_cast<uint32_t>(hash) & bucket_mask_;
  return file_.buckets[b < buckets_ ? b : b & (bucket_mask_ >> 1)];
}

void KeyTable::set_next(uint32_t index, uint32_t next) noexcept {
  shadows_[index].next = next;
  file_.entries[index].next.store(next, std::memory_order_release);
}

void KeyTable::link(uint32_t index, uint64_t hash) noexcept {
  std::atomic<uint32_t>& head = head_of(hash);
  shadows_[index].hash = static_cast<uint32_t>(hash);
  set_next(index, head.load(std::memory_order_relaxed));  // relaxed: only we write
  // SYNC POINT: key-chain (the entry's fields become visible with its place in the chain)
  head.store(index + 1, std::memory_order_release);
  ++linked_;
}

void KeyTable::unlink(uint32_t index) noexcept {
  const Shadow gone = shadows_[index];
  std::atomic<uint32_t>& head = head_of(gone.hash);
  uint32_t at = head.load(std::memory_order_relaxed);  // relaxed: only we write, under mutex_
  if (at == index + 1) {
    head.store(gone.next, std::memory_order_release);
  } else {
    while (shadows_[at - 1].next != index + 1) {
      at = shadows_[at - 1].next;
      assert(at != 0);
    }
    set_next(at - 1, gone.next);
  }
  // SYNC POINT: key-structure (a reader standing on this entry will see that it must walk again
  // before it sees the entry's next use)
  const uint64_t version = file_.header->version.load(std::memory_order_relaxed);
  file_.header->version.store(version + 2, std::memory_order_release);
  KeyEntry& e = file_.entries[index];
  e.key.store(0, std::memory_order_release);
  e.pd.store(0, std::memory_order_release);
  --linked_;
}

// Entries whose place in their chain stays as it is are not touched.
void KeyTable::split_if_crowded() noexcept {
  const uint32_t count = buckets_;
  if (linked_ * 2 <= count || count >= file_.max_buckets || !have_buckets(count + 1)) return;
  KeyHeader& h = *file_.header;
  const uint32_t half = std::bit_floor(count);
  Tail low{&file_.buckets[count - half]};
  Tail high{&file_.buckets[count]};
  // relaxed loads throughout: only we write, under mutex_
  const uint64_t version = h.version.load(std::memory_order_relaxed);
  // SYNC POINT: key-structure (odd before any chain changes: the stores below are release)
  h.version.store(version + 1, std::memory_order_relaxed);
  uint32_t at = low.head->load(std::memory_order_relaxed);
  while (at != 0) {
    const Shadow entry = shadows_[at - 1];
    extend((entry.hash & half) != 0 ? high : low, at);
    at = entry.next;
  }
  extend(low, 0);
  extend(high, 0);
  h.bucket_count.store(count + 1, std::memory_order_release);
  buckets_ = count + 1;
  bucket_mask_ = std::bit_ceil(buckets_) - 1;
  // SYNC POINT: key-structure (even again: the chains are whole)
  h.version.store(version + 2, std::memory_order_release);
}

// at: index + 1, or 0 to end the chain.
void KeyTable::extend(Tail& chain, uint32_t at) noexcept {
  if (chain.last == 0) {
    chain.head->store(at, std::memory_order_release);
  } else if (shadows_[chain.last - 1].next != at) {
    set_next(chain.last - 1, at);
  }
  chain.last = at;
}

// ---- registration -------------------------------------------------------------------------------

// Whether (pd, key) is taken. A freed entry that remembers the key is handed back (index + 1): its
// next life can be the new one.
bool KeyTable::key_in_use(uint64_t hash, DomainId pd, uint64_t key,
                          uint32_t& resting) const noexcept {
  resting = 0;
  uint32_t at = head_of(hash).load(std::memory_order_relaxed);
  for (; at != 0; at = shadows_[at - 1].next) {
    if (shadows_[at - 1].hash != static_cast<uint32_t>(hash)) continue;
    const KeyEntry& e = file_.entries[at - 1];
    // relaxed: keys and states are written under mutex_
    if (e.key.load(std::memory_order_relaxed) != key) continue;
    if (e.pd.load(std::memory_order_relaxed) != pd) continue;
    if (state_of(e.state_gen.load(std::memory_order_relaxed)) != EntryState::free) return true;
    resting = at;
  }
  return false;
}

// The oldest of the keys drawn in advance. Its chain was fetched meanwhile, a link at a time: among
// a million regions the cache misses of an insertion cost more than all the rest of it.
KeyTable::Drawn KeyTable::next_drawn() noexcept {
  if (fresh_at_ == fresh_.size()) {
    random_bytes(fresh_.data(), sizeof fresh_);
    fresh_at_ = 0;
  }
  const uint64_t key = fresh_[fresh_at_++];
  const uint64_t hash = hash_key(last_domain_, key);
  const Drawn oldest = std::exchange(ahead_[ahead_at_ % kAhead], {key, hash, last_domain_});
  ++ahead_at_;
  if (linked_ <= kCachedRegions) return oldest;
  __builtin_prefetch(&head_of(hash), 1);
  // drawn a while ago: relaxed, only we write
  const auto head_drawn = [this](size_t ago) {
    const Drawn& drawn = ahead_[(ahead_at_ - 1 - ago) % kAhead];
    return head_of(drawn.hash).load(std::memory_order_relaxed);
  };
  if (const uint32_t first = head_drawn(kAhead / 3); first != 0) {
    __builtin_prefetch(&shadows_[first - 1]);
  }
  if (const uint32_t first = head_drawn(kAhead / 3 * 2); first != 0) {
    const uint32_t second = shadows_[first - 1].next;
    if (second != 0) __builtin_prefetch(&shadows_[second - 1]);
  }
  return oldest;
}

KeyTable::Drawn KeyTable::draw_key(DomainId pd) noexcept {
  Drawn drawn;
  for (;;) {
    drawn = next_drawn();
    uint32_t resting;
    // 0 also stands for the places that were never filled
    if (drawn.key == 0 || drawn.key == kNotAvail) continue;
    if (drawn.pd != pd) drawn.hash = hash_key(pd, drawn.key);
    if (!key_in_use(drawn.hash, pd, drawn.key, resting) && resting == 0) return drawn;
  }
}

Status KeyTable::take_entry(uint32_t& index) {
  if (free_head_ == 0 && entries_used_ == file_.capacity) wake_oldest();
  if (free_head_ != 0) {
    index = free_head_ - 1;
    // relaxed: the list of unlinked entries is only ours
    free_head_ = file_.entries[index].next.load(std::memory_order_relaxed);
    return {};
  }
  if (Status s = have_entries(entries_used_ + 1); !s) return s;
  index = entries_used_++;
  // SYNC POINT: key-used (its page is allocated: have_entries())
  file_.header->entries_used.store(entries_used_, std::memory_order_release);
  return {};
}

void KeyTable::fill(KeyEntry& entry, const RegionSpec& spec, uint64_t key,
                    uint32_t flags) noexcept {
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

// The flags of a region that is more than a range which everybody with the key may reach.
uint32_t KeyTable::flags_beside(const RegionSpec& spec, bool has_side) noexcept {
  uint32_t flags = has_side || spec.bound_to != 0 ? kFlagAskOwner : 0;
  if (!spec.origin || *spec.origin == spec.base) return flags;
  if (*spec.origin == 0) return flags | kFlagZeroBased;
  return flags | kFlagAskOwner | kFlagOrigin;
}

void KeyTable::note_domain(DomainId pd) noexcept {
  if (pd == last_domain_) return;
  last_domain_ = pd;
  for (std::atomic<uint32_t>& known : file_.header->domains) {
    if (known.load(std::memory_order_relaxed) == pd) return;  // relaxed: hints, written by us only
  }
  file_.header->domains[domain_cursor_++ % kKnownDomains].store(pd, std::memory_order_relaxed);
}

Status KeyTable::add(const RegionSpec& spec, std::unique_ptr<SideRecord> side, RegionHandle& made) {
  if (spec.pd == 0 || (static_cast<uint32_t>(spec.rights) & ~kAllRights) != 0) return Errc::invalid;
  if (spec.length != 0 && spec.base > ~uint64_t{0} - (spec.length - 1)) return Errc::invalid;
  if (spec.origin && spec.zero_based) return Errc::invalid;
  if (spec.origin && spec.length != 0 && *spec.origin > ~uint64_t{0} - (spec.length - 1)) {
    return Errc::invalid;
  }
  if (spec.requested_key == kNotAvail) return Errc::key_rejected;

  std::lock_guard guard(mutex_);
  note_domain(spec.pd);
  uint32_t resting = 0;
  uint64_t key = 0;
  uint64_t hash = 0;
  if (spec.requested_key) {
    key = *spec.requested_key;
    hash = hash_key(spec.pd, key);
    if (linked_ > kCachedRegions) {
      // chosen keys mostly count up: the chains of those to come, as in next_drawn()
      __builtin_prefetch(&head_of(hash_key(spec.pd, key + kAhead)), 1);
      const uint64_t sooner = hash_key(spec.pd, key + kAhead / 2);
      const uint32_t first = head_of(sooner).load(std::memory_order_relaxed);  // only we write
      if (first != 0) __builtin_prefetch(&shadows_[first - 1]);
    }
    if (key_in_use(hash, spec.pd, key, resting)) return Errc::no_key;
  }
  uint32_t index = resting - 1;
  if (resting == 0) {
    if (Status s = take_entry(index); !s) return s.error();
  }
  if (!spec.requested_key) {
    const Drawn drawn = draw_key(spec.pd);
    key = drawn.key;
    hash = drawn.hash;
  }
  const uint64_t generation = next_generation();
  KeyEntry& entry = file_.entries[index];
  uint32_t flags = 0;
  if (side != nullptr || spec.bound_to != 0 || spec.origin) [[unlikely]] {
    flags = flags_beside(spec, side != nullptr);
    if ((flags & kFlagOrigin) != 0) origins_[index] = *spec.origin;
    sides_[index] = side.release();
  }
  fill(entry, spec, key, flags);
  entry.birth.store(generation, std::memory_order_release);
  // SYNC POINT: key-entry (the fields of this life become visible with its generation)
  entry.state_gen.store(state_gen_of(generation, EntryState::valid), std::memory_order_release);
  if (resting == 0) link(index, hash);
  ++live_;
  split_if_crowded();
  made = {index, generation, key, generation};
  return {};
}

Status KeyTable::enable(RegionHandle region) {
  std::lock_guard guard(mutex_);
  if (!in_force(region)) return Errc::no_entry;
  // the one bit that changes in a living entry, and only from 0 to 1
  file_.entries[region.index].rights.fetch_or(kFlagEnabled, std::memory_order_release);
  return {};
}

// ---- the check ----------------------------------------------------------------------------------

// Where the hint does not help: the walk.
Denial KeyTable::find(const AccessAsk& ask, LookupHint* hint, EntryCopy& out) const noexcept {
  const uint64_t key = ask.key.unchecked();  // compared, never used as an index
  Search answer = search(file_, ask.pd, key, out);
  if (answer == Search::unstable) {
    // registrations came in a storm: with the mutex held the chains stand still
    std::lock_guard guard(mutex_);
    answer = search(file_, ask.pd, key, out);
  }
  switch (answer) {
    case Search::valid:
      if (hint != nullptr) hint->learn(key, out.index);
      return Denial::none;
    case Search::closed: return Denial::closed;
    case Search::revoking: return Denial::revoking;
    case Search::unknown:
    case Search::unstable: break;
  }
  return known_elsewhere(file_, ask.pd, key) ? Denial::wrong_domain : Denial::unknown_key;
}

Checked KeyTable::check_another(const AccessAsk& ask, LookupHint* hint) const noexcept {
  EntryCopy entry;
  const uint64_t key = ask.key.unchecked();
  if (hint != nullptr) hint->place.fetch(key, ask.addr.unchecked());
  if (hint == nullptr || !copy_near(file_, *hint, ask.pd, key, entry)) {
    const Denial denial = find(ask, hint, entry);
    if (denial != Denial::none) return Checked(denial);
  }
  if (hint != nullptr) hint->place.learn(key, entry);
  return grant(ask, entry);
}

Checked KeyTable::recheck(const AccessAsk& ask, RegionRef region) const noexcept {
  EntryCopy entry;
  if (copy_entry(file_, region, ask.pd, ask.key.unchecked(), entry)) return grant(ask, entry);
  if (region.index >= file_.capacity) return Checked(Denial::unknown_key);
  const uint64_t s = file_.entries[region.index].state_gen.load(std::memory_order_acquire);
  const bool closing = s == state_gen_of(region.generation, EntryState::revoking);
  return Checked(closing ? Denial::revoking : Denial::closed);
}

}  // namespace aperture::protect
