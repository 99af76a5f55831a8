// The search in a key file: see key_file.hpp.
#include "protect/key_file.hpp"

#include "base/clock.hpp"

namespace aperture::protect {

namespace {

// An honest chain is a handful of entries; a longer walk is a cycle, or not worth having.
constexpr uint32_t kMaxSteps = 4096;
// A walk is disturbed only by a registration or a close in its very microsecond.
constexpr int kMaxWalks = 64;

Search walk(const KeyFile& file, uint32_t first, DomainId pd, uint64_t key,
            EntryCopy& out) noexcept {
  Search seen = Search::unknown;
  uint32_t at = first;
  for (uint32_t step = 0; at != 0; ++step) {
    if (at > file.capacity || step == kMaxSteps) return Search::unstable;
    const KeyEntry& e = file.entries[at - 1];
    // SYNC POINT: key-entry (the fields of the life that this generation names)
    const uint64_t s = e.state_gen.load(std::memory_order_acquire);
    if (e.key.load(std::memory_order_acquire) == key &&
        e.pd.load(std::memory_order_acquire) == pd) {
      if (state_of(s) == EntryState::valid) {
        const RegionRef ref{at - 1, generation_of(s)};
        return copy_entry(file, ref, pd, key, out) ? Search::valid : Search::unstable;
      }
      if (state_of(s) == EntryState::revoking) {
        seen = Search::revoking;
      } else if (seen == Search::unknown) {
        seen = Search::closed;
      }
    }
    // SYNC POINT: key-chain (pairs with link() and split_if_crowded())
    at = e.next.load(std::memory_order_acquire);
  }
  return seen;
}

}  // namespace

Search search(const KeyFile& file, DomainId pd, uint64_t key, EntryCopy& out) noexcept {
  APERTURE_DEBUG_ASSERT(file.header != nullptr && file.capacity != 0 && file.max_buckets != 0);
  const uint64_t hash = hash_key(pd, key);
  for (int i = 0; i < kMaxWalks; ++i) {
    // SYNC POINT: key-structure (a miss counts only if no chain changed during the walk)
    const uint64_t version = file.header->version.load(std::memory_order_acquire);
    if ((version & 1) != 0) {
      cpu_relax();
      continue;
    }
    const uint32_t count = file.header->bucket_count.load(std::memory_order_acquire);
    if (count == 0 || count > file.max_buckets) return Search::unstable;
    // SYNC POINT: key-chain
    APERTURE_DEBUG_ASSERT(bucket_of(hash, count) < count);
    const uint32_t first = file.buckets[bucket_of(hash, count)].load(std::memory_order_acquire);
    const Search answer = walk(file, first, pd, key, out);
    if (answer == Search::valid) return answer;
    if (answer != Search::unstable &&
        file.header->version.load(std::memory_order_acquire) == version) {
      return answer;
    }
  }
  return Search::unstable;
}

bool known_elsewhere(const KeyFile& file, DomainId pd, uint64_t key) noexcept {
  for (const std::atomic<uint32_t>& slot : file.header->domains) {
    const DomainId other = slot.load(std::memory_order_relaxed);  // relaxed: a hint
    EntryCopy ignored;
    if (other != 0 && other != pd && search(file, other, key, ignored) == Search::valid)
      return true;
  }
  return false;
}

}  // namespace aperture::protect
