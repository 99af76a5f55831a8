// The entries of the key table, and their lives: the one place where an entry's word is written.
//
//   FREE ---- begin_life ----> VALID ---- begin_close ----> REVOKING ---- end_life ----> FREE
//                                ^                              |
//                                +----------- revive -----------+       end_life also from VALID
//
// A life has a generation, which is never used again. Whoever holds a RegionHandle can ask at any
// time what became of that life, and changes nothing but that.
//
// An entry that is FREE rests for a while: it stays in its chain for kQuarantine further closes, so
// that its key is answered with `closed` rather than `unknown_key`. Then it leaves its chain, and
// its memory may serve again.
//
// Memory of entries that are not needed any more is given back a step at a time (give_back()): what
// is left of them is a hole, in which every entry is FREE, and which gets memory again before it is
// used. Generations are counted outside of the file, so that nothing that was forgotten comes back.
//
// Threads: one lock guards the entries and what belongs to them (chains, drawn keys, side table,
// accessors). It is biased to the thread that registers most. What says so is called with it held;
// the rest from any thread without. Invariants: a generation is never used twice; a VALID entry
// never changes but for two flags, each set once; an entry is alive, resting, on the free list,
// in a hole, or was never used.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/callback.hpp"
#include "base/errc.hpp"
#include "base/lock.hpp"
#include "protect/key_chains.hpp"
#include "protect/key_file.hpp"
#include "protect/own_key_file.hpp"
#include "protect/side_table.hpp"

namespace aperture::protect {

struct RegionHandle {
  uint32_t index = 0;
  uint64_t generation = 0;
  uint64_t key = 0;
  uint64_t birth = 0;  // generation of its first life
};

class KeyEntries {
 public:
  // All of one table, new, and outlive it.
  KeyEntries(OwnKeyFile& own, KeyChains& chains, SideTable& sides) noexcept
      : own_(own), file_(own.layout()), chains_(chains), sides_(sides) {}
  KeyEntries(const KeyEntries&) = delete;
  KeyEntries& operator=(const KeyEntries&) = delete;

  EngineLock& lock() const noexcept { return lock_; }

  // What became of that life; FREE: there is nothing of it left.
  EntryState state(const RegionHandle& region) const noexcept {
    if (region.generation == 0 || region.index >= file_.capacity) return EntryState::free;
    const uint64_t s = file_.entries[region.index].state_gen.load(std::memory_order_acquire);
    return generation_of(s) == region.generation ? state_of(s) : EntryState::free;
  }
  // Neither closed nor being closed.
  bool in_force(const RegionHandle& region) const noexcept {
    return state(region) == EntryState::valid;
  }
  // Closed, to the end. Inside the engine lock.
  bool is_over(const RegionHandle& region) const noexcept {
    return state(region) == EntryState::free;
  }
  // That are registered, those included that are being closed. Takes the lock.
  uint32_t regions() const noexcept;

  // --- with the lock held ---

  // An entry for the next registration, FREE and in no chain. Errors: no_space, no_memory.
  Status take(uint32_t& index) noexcept;
  // A FREE entry whose fields are filled is VALID from now on, in the life that is returned.
  uint64_t begin_life(uint32_t index) noexcept;
  // VALID to REVOKING, or REVOKING already. Errors: no_entry.
  Status begin_close(const RegionHandle& region) noexcept;
  // REVOKING to VALID, in another life: key and fields are as they were. Errors: no_entry.
  Result<RegionHandle> revive(const RegionHandle& region) noexcept;
  // VALID or REVOKING to FREE, side record and all. Nobody is inside, or can get in.
  void end_life(const RegionHandle& region) noexcept;

  // Whether give_back() is worth its while: more than a few steps have memory, and few of the
  // entries in them are alive.
  bool is_sparse() const noexcept {
    return steps() > kStepsKept && live_ < steps() * OwnKeyFile::kStepEntries / kSparse;
  }
  // Called when that becomes so, with the lock held: it may post work to somebody, and no more.
  void when_sparse(Callback<> call) noexcept { when_sparse_ = std::move(call); }
  // Goes on in `other`, a file with nothing in it, with those steps in which an entry is alive or
  // resting; `other` is then the file before. False: nothing was to be gained, or there was no
  // memory. No peer has the file mapped.
  bool give_back(PublishedFile& other) noexcept;

  // Registered for one endpoint or queue pair.
  bool is_bound(const RegionHandle& region) const noexcept {
    // relaxed: written under the lock
    return file_.entries[region.index].bound_qpn.load(std::memory_order_relaxed) != 0;
  }
  uint32_t live() const noexcept { return live_; }  // entries that are not FREE
  uint32_t used() const noexcept { return used_; }  // no entry from here on was ever filled
  // The first entry from that one on, below used(), that lies in no hole; else used().
  uint32_t next_used(uint32_t index) const noexcept;

 private:
  static constexpr size_t kQuarantine = 128;
  static constexpr size_t kStepsKept = 8;  // with memory for 8192 regions, which is not given back
  static constexpr size_t kSparse = 8;     // that share of the entries, or less, is alive
  struct Resting {
    uint32_t index = 0;
    uint64_t generation = 0;
  };

  uint64_t next_generation() noexcept { return next_generation_++; }
  void rest(uint32_t index, uint64_t generation) noexcept;
  void wake_oldest() noexcept;

  size_t steps() const noexcept { return own_.steps() - holes_.size(); }  // that have memory
  Status fill_hole() noexcept;
  void list_free(uint32_t step) noexcept;
  void watch_sparse() noexcept;
  void call_sparse() noexcept;
  bool move_to(PublishedFile& other);

  OwnKeyFile& own_;
  const KeyFile file_;
  KeyChains& chains_;
  SideTable& sides_;

  mutable EngineLock lock_{true};  // guards what follows and every write to an entry
  uint64_t next_generation_ = 1;
  uint32_t used_ = 0;
  uint32_t live_ = 0;
  uint32_t free_head_ = 0;     // index + 1 of the first unlinked free entry, 0 = none
  uint32_t sparse_below_ = 0;  // so few that are alive are to be told of; 0: no number is
  Callback<> when_sparse_;
  std::vector<uint32_t> holes_;  // steps below used_ that have no memory, the first of them last
  std::array<Resting, kQuarantine> quarantine_;
  size_t quarantine_head_ = 0;
  size_t quarantine_size_ = 0;
};

}  // namespace aperture::protect
