// Linking, unlinking and splitting chains: see key_chains.hpp.
#include "protect/key_chains.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>

#include "base/invariant.hpp"

namespace aperture::protect {

KeyChains::KeyChains(OwnKeyFile& own) noexcept
    : own_(own),
      file_(own.layout()),
      // address space only: pages come with the entries
      shadows_(static_cast<Shadow*>(std::calloc(file_.capacity, sizeof(Shadow)))) {}

bool KeyChains::is_taken(uint64_t hash, DomainId pd, uint64_t key,
                         uint32_t& resting) const noexcept {
  resting = 0;
  uint32_t at = head_of(hash).load(std::memory_order_relaxed);
  for (; at != 0; at = shadows_[at - 1].next) {
    if (shadows_[at - 1].hash != static_cast<uint32_t>(hash)) continue;
    const KeyEntry& e = file_.entries[at - 1];
    // relaxed: keys and states are written under the lock
    if (e.key.load(std::memory_order_relaxed) != key) continue;
    if (e.pd.load(std::memory_order_relaxed) != pd) continue;
    if (state_of(e.state_gen.load(std::memory_order_relaxed)) != EntryState::free) return true;
    resting = at;
  }
  return false;
}

void KeyChains::set_next(uint32_t index, uint32_t next) noexcept {
  APERTURE_DEBUG_ASSERT(index < file_.capacity && next <= file_.capacity);
  APERTURE_DEBUG_ASSERT(next != index + 1);
  shadows_[index].next = next;
  file_.entries[index].next.store(next, std::memory_order_release);
}

void KeyChains::link(uint32_t index, uint64_t hash) noexcept {
  assert(index < file_.capacity && linked_ < file_.capacity);
  std::atomic<uint32_t>& head = head_of(hash);
  shadows_[index].hash = static_cast<uint32_t>(hash);
  set_next(index, head.load(std::memory_order_relaxed));  // relaxed: only we write
  // SYNC POINT: key-chain (the entry's fields become visible with its place in the chain)
  head.store(index + 1, std::memory_order_release);
  ++linked_;
}

void KeyChains::unlink(uint32_t index) noexcept {
  assert(index < file_.capacity && linked_ != 0);
  const Shadow gone = shadows_[index];
  std::atomic<uint32_t>& head = head_of(gone.hash);
  uint32_t at = head.load(std::memory_order_relaxed);  // relaxed: only we write
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
  APERTURE_DEBUG_ASSERT(state_of(e.state_gen.load(std::memory_order_relaxed)) == EntryState::free);
  e.key.store(0, std::memory_order_release);
  e.pd.store(0, std::memory_order_release);
  --linked_;
}

// Entries whose place in their chain stays as it is are not touched.
void KeyChains::split_if_crowded() noexcept {
  const uint32_t count = buckets_;
  if (linked_ * 2 <= count || count >= file_.max_buckets || !own_.have_buckets(count + 1)) return;
  KeyHeader& h = *file_.header;
  const uint32_t half = std::bit_floor(count);
  Tail low{&file_.buckets[count - half]};
  Tail high{&file_.buckets[count]};
  // relaxed loads throughout: only we write
  const uint64_t version = h.version.load(std::memory_order_relaxed);
  assert((version & 1) == 0);
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
  assert(buckets_ <= file_.max_buckets && buckets_ - 1 <= bucket_mask_);
  // SYNC POINT: key-structure (even again: the chains are whole)
  h.version.store(version + 2, std::memory_order_release);
}

// ---- anew ---------------------------------------------------------------------------------------

std::vector<uint32_t> KeyChains::indices() const {
  std::vector<uint32_t> all;
  all.reserve(linked_);
  for (uint32_t bucket = 0; bucket < buckets_; ++bucket) {
    uint32_t at = file_.buckets[bucket].load(std::memory_order_relaxed);  // only we write
    for (; at != 0; at = shadows_[at - 1].next) all.push_back(at - 1);
  }
  assert(all.size() == linked_);
  return all;
}

uint32_t KeyChains::buckets_needed() const noexcept {
  return std::clamp(linked_ * 2, kBucketsAtStart, file_.max_buckets);
}

void KeyChains::begin_anew() noexcept {
  // relaxed load: only we write
  const uint64_t version = file_.header->version.load(std::memory_order_relaxed);
  assert((version & 1) == 0);
  // SYNC POINT: key-structure (odd before any chain changes)
  file_.header->version.store(version + 1, std::memory_order_seq_cst);
}

void KeyChains::end_anew(const std::vector<uint32_t>& indices, uint32_t buckets) noexcept {
  assert(indices.size() == linked_ && buckets <= file_.max_buckets);
  linked_ = 0;
  buckets_ = buckets;
  bucket_mask_ = std::bit_ceil(buckets) - 1;
  file_.header->bucket_count.store(buckets, std::memory_order_release);
  for (const uint32_t index : indices) link(index, shadows_[index].hash);
  go_on();
}

void KeyChains::go_on() noexcept {
  // relaxed load: only we write
  const uint64_t version = file_.header->version.load(std::memory_order_relaxed);
  assert((version & 1) != 0);
  // SYNC POINT: key-structure (even again: the chains are whole)
  file_.header->version.store(version + 1, std::memory_order_release);
}

void KeyChains::forget(uint32_t from, uint32_t end) noexcept {
  assert(from <= end && end <= file_.capacity);
  constexpr uintptr_t kPage = 4096;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(&shadows_[from]) + kPage - 1) & ~(kPage - 1);
  const uintptr_t last = reinterpret_cast<uintptr_t>(shadows_.get() + end) & ~(kPage - 1);
  // where it is refused they stay
  if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

// at: index + 1, or 0 to end the chain.
void KeyChains::extend(Tail& chain, uint32_t at) noexcept {
  APERTURE_DEBUG_ASSERT(at <= file_.capacity && chain.last <= file_.capacity);
  if (chain.last == 0) {
    chain.head->store(at, std::memory_order_release);
  } else if (shadows_[chain.last - 1].next != at) {
    set_next(chain.last - 1, at);
  }
  chain.last = at;
}

}  // namespace aperture::protect
