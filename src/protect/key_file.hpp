// The layout of the key file, and the lock-free search in it that owner and accessors share.
//
// One process writes it (KeyTable and its parts, under one lock), any number read it: its own
// threads, and peers that mapped it read-only and believe nothing in it. A sealed, sparse memory
// file:
//
//   0            4096                    entries_offset
//   | KeyHeader  | buckets: u32 each ... | entries: 64 bytes each ...                    |
//
// Hashing is linear (Litwin): buckets are added one at a time, and each addition splits one chain,
// so that no registration ever pays for a rehash. A chain value is index + 1, 0 ends it.
//
// Reading: a hit is proved by the entry alone (state_gen before and after its fields, a generation
// never comes back). A miss is proved by `version`, which is odd during a split and changes with
// each entry that leaves a chain: same even value before and after the walk, or walk again.
// Among a million regions each step of a search misses the caches, so most are spared: keys that
// count up share the lines of their buckets (hash_key), and are looked for in the entry that lies
// as far from the last one as they do (copy_near).
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/invariant.hpp"
#include "protect/grant.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

enum class EntryState : uint64_t { free = 0, valid = 1, revoking = 2 };

constexpr uint64_t state_gen_of(uint64_t generation, EntryState state) noexcept {
  return generation << 2 | static_cast<uint64_t>(state);
}
constexpr uint64_t generation_of(uint64_t state_gen) noexcept {
  return state_gen >> 2;
}
constexpr EntryState state_of(uint64_t state_gen) noexcept {
  return static_cast<EntryState>(state_gen & 3);
}

//   0           8     16     24       32    36      40     44    48         56          64
//   | state_gen | key | base | length | pd | rights | next | qpn | reg'd at | birth |
// All but two flags in rights is constant while the state is VALID: enabled and ask-owner are set
// once and stay.
struct alignas(64) KeyEntry {
  std::atomic<uint64_t> state_gen;  // generation << 2 | EntryState
  std::atomic<uint64_t> key;
  std::atomic<uint64_t> base;    // address of the first byte, in the owner
  std::atomic<uint64_t> length;  // bytes
  std::atomic<uint32_t> pd;
  std::atomic<uint32_t> rights;         // Rights in the low 16 bits, flags above
  std::atomic<uint32_t> next;           // chain: index + 1, 0 = end
  std::atomic<uint32_t> bound_qpn;      // the one EndpointId that reaches it; 0: any of the domain
  std::atomic<uint64_t> registered_at;  // code address in the owner, for explanations
  std::atomic<uint64_t> birth;          // generation of its first life: a refresh gives new ones
};
static_assert(sizeof(KeyEntry) == 64);

constexpr uint32_t kRightsMask = 0xffff;
constexpr uint32_t kFlagZeroBased = 1u << 16;
constexpr uint32_t kFlagEnabled = 1u << 17;
constexpr uint32_t kFlagAskOwner = 1u << 18;  // has what only its owner validates: beside.cpp
constexpr uint32_t kFlagOrigin = 1u << 19;    // peers count from elsewhere: the owner knows where
// Memory of a device, in one piece: it has a side record, but peers may copy by the device's
// driver, without the owner. With kFlagAskOwner they may not.
constexpr uint32_t kFlagDevice = 1u << 20;
constexpr uint32_t kFlagsBeside = kFlagAskOwner | kFlagDevice;  // the owner looks beside the entry

constexpr uint64_t kKeyFileMagic = 0x3153594b50415041;  // "APAPKYS1", little endian
constexpr uint32_t kKeyFileLayout = 4;
constexpr uint32_t kBucketsAtStart = 1024;
constexpr size_t kKeyHeaderBytes = 4096;
constexpr size_t kKnownDomains = 16;

struct KeyHeader {
  // constant from creation on
  uint64_t magic;
  uint32_t layout;
  uint32_t capacity;     // entries
  uint32_t max_buckets;  // a power of two
  uint32_t reserved;
  uint64_t entries_offset;  // bytes
  uint64_t size_bytes;      // of the file
  uint64_t self_address;    // of this header in the owner: what probe() reads ...
  uint64_t nonce;           // ... and must find there

  // Who is at the addresses: bit 30 (FUTEX_OWNER_DIED) once it is no more the program that
  // registered here; see image_watch.hpp. Beside what is constant: read before each copy.
  std::atomic<uint32_t> image;
  // 1: some entry has, or had, kFlagDevice.
  std::atomic<uint32_t> has_devices;

  alignas(64) std::atomic<uint64_t> version;  // odd: a split is under way
  std::atomic<uint32_t> bucket_count;
  std::atomic<uint32_t> entries_used;  // no entry from here on was ever filled

  // domains that registered lately, so that a miss can say "another domain's key"; 0 = none
  alignas(64) std::atomic<uint32_t> domains[kKnownDomains];

  // In the owner: an array with the address of a memory::Share for each entry with kFlagDevice.
  // Constant, too.
  alignas(64) uint64_t shares_address;
};
static_assert(offsetof(KeyHeader, image) == 56 && offsetof(KeyHeader, has_devices) == 60 &&
              offsetof(KeyHeader, version) == 64 && offsetof(KeyHeader, bucket_count) == 72 &&
              offsetof(KeyHeader, entries_used) == 76 && offsetof(KeyHeader, domains) == 128 &&
              offsetof(KeyHeader, shares_address) == 192 && sizeof(KeyHeader) <= kKeyHeaderBytes);

// A consistent copy of an entry's fields.
struct EntryCopy {
  uint32_t index = 0;
  uint64_t state_gen = 0;
  uint64_t base = 0;
  uint64_t length = 0;
  uint32_t rights = 0;

  RegionRef ref() const noexcept { return {index, generation_of(state_gen)}; }
};

// A mapped key file with the limits that were verified when it was mapped: nothing is believed of
// the header after that but bucket_count, entries_used and version, each bounded at use.
struct KeyFile {
  KeyHeader* header = nullptr;
  std::atomic<uint32_t>* buckets = nullptr;
  KeyEntry* entries = nullptr;
  uint32_t capacity = 0;
  uint32_t max_buckets = 0;
  uint64_t shares_address = 0;  // of a peer's: any word
};

// One wide multiplication, folded: keys that count in any of their bits are spread by it. But 16
// keys in a row have the 16 buckets of one cache line: who counts keys up misses it once for all of
// them. Within the line they are turned by the hash, for keys that never differ in those bits.
inline uint64_t hash_key(DomainId pd, uint64_t key) noexcept {
  constexpr uint64_t kInLine = 64 / sizeof(uint32_t) - 1;
  const uint64_t in = (key & ~kInLine) + uint64_t{pd} * 0x9e3779b97f4a7c15u;
  const auto wide = static_cast<unsigned __int128>(in) * 0xd6e8feb86659fd93u;
  const uint64_t hash = static_cast<uint64_t>(wide) ^ static_cast<uint64_t>(wide >> 64);
  return (hash & ~kInLine) | ((hash >> 60 ^ key) & kInLine);
}

// The chain of a hash when there are `count` > 0 buckets.
inline uint32_t bucket_of(uint64_t hash, uint32_t count) noexcept {
  APERTURE_DEBUG_ASSERT(count != 0);
  const uint64_t mask = std::bit_ceil(count) - 1;
  const uint64_t b = hash & mask;
  return static_cast<uint32_t>(b < count ? b : b & (mask >> 1));
}

enum class Search : uint8_t {
  valid,
  unknown,  // no entry with that key in that domain
  closed,   // a freed entry remembers it
  revoking,
  unstable,  // the file did not come to rest: ask the owner, or take its lock
};

// Looks for (pd, key); fills `out` if the answer is valid. Bounded in time whatever the file holds.
Search search(const KeyFile& file, DomainId pd, uint64_t key, EntryCopy& out) noexcept;

// Whether a domain other than pd has that key now.
bool known_elsewhere(const KeyFile& file, DomainId pd, uint64_t key) noexcept;

// Copies entry `ref` if it is still VALID in that life and holds (pd, key).
inline bool copy_entry(const KeyFile& file, RegionRef ref, DomainId pd, uint64_t key,
                       EntryCopy& out) noexcept {
  if (ref.generation == 0 || ref.index >= file.capacity) return false;
  const KeyEntry& e = file.entries[ref.index];
  const uint64_t wanted = state_gen_of(ref.generation, EntryState::valid);
  // SYNC POINT: key-entry (pairs with the release stores of fill(): the fields of that life)
  if (e.state_gen.load(std::memory_order_acquire) != wanted) return false;
  // acquire on each field: the last load below may not pass them
  const bool same =
      e.key.load(std::memory_order_acquire) == key && e.pd.load(std::memory_order_acquire) == pd;
  out.index = ref.index;
  out.state_gen = wanted;
  out.base = e.base.load(std::memory_order_acquire);
  out.length = e.length.load(std::memory_order_acquire);
  out.rights = e.rights.load(std::memory_order_acquire);
  return same && e.state_gen.load(std::memory_order_acquire) == wanted;
}

// Where the memory of a region probably is: regions whose keys count up are mostly pieces of one
// buffer, as far apart as their keys say. Among a million of them that memory misses the caches as
// their entries do, and is fetched while the entry is read rather than after it. A wrong guess
// fetches a line for nothing, within what a region here was long; it decides nothing. Plain data of
// one thread.
struct PlaceHint {
  static constexpr uint8_t kGiveUp = 16;

  uint64_t key = 0;  // of the region met last
  uint64_t base = 0;
  uint64_t length = 0;
  uint64_t stride = 0;  // bytes from a key to the next, modulo 2^64
  uint8_t wrong = 0;  // guesses in a row; kGiveUp: no more are made until one would have been right
  bool zero_based = false;

  uint64_t base_of(uint64_t other) const noexcept { return base + (other - key) * stride; }
  // always_inline: GCC takes a function that only prefetches for one without effect, and drops
  // its calls.
  [[gnu::always_inline]] void fetch(uint64_t other, uint64_t addr) const noexcept {
    if (other == key || wrong == kGiveUp) return;
    const uint64_t there = base_of(other);
    const uint64_t offset = zero_based ? addr : addr - there;
    if (offset < length) __builtin_prefetch(reinterpret_cast<const void*>(there + offset));
  }
  void learn(uint64_t found_key, const EntryCopy& found) noexcept {
    const uint64_t away = found_key - key;
    if (away == 0 && found.base == base) return;
    if (base_of(found_key) == found.base) {
      wrong = 0;
    } else if (wrong != kGiveUp) {
      ++wrong;
      stride = away == 0 ? 0 : quotient(found.base - base, away);
    }
    key = found_key;
    base = found.base;
    length = found.length;
    zero_based = (found.rights & kFlagZeroBased) != 0;
  }

 private:
  // Of numbers that are signed, without the one division that overflows.
  static uint64_t quotient(uint64_t a, uint64_t b) noexcept {
    if (b == ~uint64_t{0}) return 0 - a;
    return static_cast<uint64_t>(static_cast<int64_t>(a) / static_cast<int64_t>(b));
  }
};

// Where a caller met a region last, and whether the one before it lay as many entries away as its
// key did: keys that count up mostly lie in a row, and are then found without a look at the chains.
// Plain data of one thread; a stale hint costs a look at one entry.
struct LookupHint {
  uint64_t index = 0;
  uint64_t key = 0;
  bool in_step = false;
  PlaceHint place{};  // of regions of this process alone

  void learn(uint64_t found_key, uint64_t found_index) noexcept {
    in_step = found_index - index == found_key - key;  // modulo 2^64
    index = found_index;
    key = found_key;
  }
};

// Fetches the entry that copy_near() will look at, for who has something else to do until then.
// always_inline: as in PlaceHint::fetch().
[[gnu::always_inline]] inline void fetch_near(const KeyFile& file, const LookupHint& hint,
                                              uint64_t key) noexcept {
  const uint64_t index = hint.index + (key - hint.key);  // modulo 2^64
  if (hint.in_step && index < file.capacity) __builtin_prefetch(&file.entries[index]);
}

// Copies the entry where the hint has (pd, key), if it is there: the entry alone proves it.
inline bool copy_near(const KeyFile& file, LookupHint& hint, DomainId pd, uint64_t key,
                      EntryCopy& out) noexcept {
  const uint64_t away = key - hint.key;
  if (away != 0 && !hint.in_step) return false;
  const uint64_t index = hint.index + away;  // modulo 2^64
  // SYNC POINT: key-used (entries below it lie in pages that are allocated)
  const uint32_t used = file.header->entries_used.load(std::memory_order_acquire);
  if (index >= used || index >= file.capacity) return false;
  // SYNC POINT: key-entry (the fields of the life that this generation names)
  const uint64_t s = file.entries[index].state_gen.load(std::memory_order_acquire);
  const RegionRef ref{static_cast<uint32_t>(index), generation_of(s)};
  if (!copy_entry(file, ref, pd, key, out)) return false;
  hint.index = index;
  hint.key = key;
  return true;
}

// The rules, in order: enabled, right, range. `offset` is from the region's base.
inline Denial validate_entry(const EntryCopy& entry, uint64_t addr, uint64_t len, Rights need,
                             uint64_t& offset) noexcept {
  if ((entry.rights & kFlagEnabled) == 0) return Denial::not_enabled;
  if (!includes(static_cast<Rights>(entry.rights & kRightsMask), need)) {
    return Denial::missing_right;
  }
  const bool zero_based = (entry.rights & kFlagZeroBased) != 0;
  if (!zero_based && addr < entry.base) return Denial::out_of_range;
  offset = zero_based ? addr : addr - entry.base;
  // subtract, never add: nothing here can wrap
  if (offset > entry.length || len > entry.length - offset) return Denial::out_of_range;
  APERTURE_DEBUG_ASSERT(offset + len >= offset && offset + len <= entry.length);
  return Denial::none;
}

}  // namespace aperture::protect
