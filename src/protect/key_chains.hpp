// The chains of the key file, as its owner keeps them: which entry has which key.
//
// Writes what search() in key_file.hpp reads, and walks the chains for the owner itself, by a
// shadow: what such a walk needs of each entry, in an array of its own. Among a million entries of
// 64 bytes each step of a walk would miss both the cache and the TLB.
//
// Threads: whoever holds the lock of the entries (key_entries.hpp); readers take no lock.
// Invariants: an entry is in one chain at most, that of its domain and key; an entry that left a
// chain is announced by `version` before it can be used again, a split while it is under way; the
// shadow of a chain is the chain.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "protect/key_file.hpp"
#include "protect/own_key_file.hpp"
#include "protect/rights.hpp"

namespace aperture::protect {

class KeyChains {
 public:
  // Of the file, which is new and outlives it. is_made(): there was memory.
  explicit KeyChains(OwnKeyFile& own) noexcept;
  KeyChains(const KeyChains&) = delete;
  KeyChains& operator=(const KeyChains&) = delete;
  bool is_made() const noexcept { return shadows_ != nullptr; }

  // Whether a living entry has (pd, key), whose hash is given. A freed one that still remembers
  // the key is named in `resting` (index + 1; 0: none): its next life can be the new one.
  bool is_taken(uint64_t hash, DomainId pd, uint64_t key, uint32_t& resting) const noexcept;
  // An entry that is filled and in no chain comes into that of the hash.
  void link(uint32_t index, uint64_t hash) noexcept;
  // An entry that is FREE leaves its chain, and forgets its key.
  void unlink(uint32_t index) noexcept;
  // Another bucket, if there are too few: to be called with each registration.
  void split_if_crowded() noexcept;

  // Puts all chains together anew, in another file at the same addresses: `indices` are the entries
  // in them, `buckets` how many of those there are, all empty. Between the two calls readers wait.
  void begin_anew() noexcept;
  void end_anew(const std::vector<uint32_t>& indices, uint32_t buckets) noexcept;
  void go_on() noexcept;  // instead of end_anew(): they are as they were
  // The entries in chains, by index and in no order. Throws bad_alloc.
  std::vector<uint32_t> indices() const;
  // How many buckets are enough for them.
  uint32_t buckets_needed() const noexcept;
  // No entry of those has a place in a chain: what is kept of them needs no memory.
  void forget(uint32_t from, uint32_t end) noexcept;

  uint32_t linked() const noexcept { return linked_; }  // entries in chains
  // So many that a walk misses the cache: what will be needed is better fetched in advance.
  bool is_large() const noexcept { return linked_ > kCachedRegions; }
  // The bucket of that hash, the first entry behind it, and the second.
  // always_inline: as in PlaceHint::fetch().
  [[gnu::always_inline]] void fetch_bucket(uint64_t hash) const noexcept {
    __builtin_prefetch(&head_of(hash), 1);
  }
  [[gnu::always_inline]] void fetch_first(uint64_t hash) const noexcept {
    const uint32_t first = head_of(hash).load(std::memory_order_relaxed);  // only we write
    if (first != 0) __builtin_prefetch(&shadows_[first - 1]);
  }
  [[gnu::always_inline]] void fetch_second(uint64_t hash) const noexcept {
    const uint32_t first = head_of(hash).load(std::memory_order_relaxed);  // only we write
    if (first == 0) return;
    const uint32_t second = shadows_[first - 1].next;
    if (second != 0) __builtin_prefetch(&shadows_[second - 1]);
  }

 private:
  static constexpr uint32_t kCachedRegions = 4096;  // so many are in a near cache anyway

  struct Shadow {
    uint32_t next = 0;  // as in the entry
    uint32_t hash = 0;  // low half of that of its domain and key
  };
  // A chain that is being put together.
  struct Tail {
    std::atomic<uint32_t>* head;
    uint32_t last = 0;  // index + 1, 0 = none yet
  };
  struct Free {
    void operator()(void* p) const noexcept { std::free(p); }
  };

  // bucket_of() for the owner, who knows the power of two.
  std::atomic<uint32_t>& head_of(uint64_t hash) const noexcept {
    const auto b = static_cast<uint32_t>(hash) & bucket_mask_;
    return file_.buckets[b < buckets_ ? b : b & (bucket_mask_ >> 1)];
  }
  void set_next(uint32_t index, uint32_t next) noexcept;
  void extend(Tail& chain, uint32_t at) noexcept;

  OwnKeyFile& own_;
  const KeyFile file_;
  std::unique_ptr<Shadow[], Free> shadows_;     // by index
  uint32_t buckets_ = kBucketsAtStart;          // bucket_count of the file, which is ours ...
  uint32_t bucket_mask_ = kBucketsAtStart - 1;  // ... and the next power of two, less one
  uint32_t linked_ = 0;                         // resting entries included
};

}  // namespace aperture::protect
