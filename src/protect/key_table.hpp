// The key table of this process: every registered region, in a memory file that peers of the same
// user map read-only (key_file.hpp has its layout).
//
// Threads: add and revoke from any thread (a lock, biased to the thread that does so most); check()
// and recheck() from any thread, without a lock, inside the engine lock of the region's domain
// (grant.hpp says why). Invariants: an entry that is VALID never changes but for its enabled bit; a
// generation is never used twice; a (domain, key) pair names at most one entry that is not FREE.
// (fi_mr(3); IBTA vol. 1, 10.6.)
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errc.hpp"
#include "base/fd.hpp"
#include "base/lock.hpp"
#include "base/wild.hpp"
#include "protect/accessors.hpp"
#include "protect/grant.hpp"
#include "protect/image_watch.hpp"
#include "protect/key_file.hpp"
#include "protect/rights.hpp"
#include "protect/side_record.hpp"

namespace aperture::protect {

struct Wording;  // wording.hpp
extern const Wording kNeutralWording;

struct RegionSpec {
  DomainId pd = 0;
  uint64_t base = 0;    // virtual address of the first byte, also when zero_based
  uint64_t length = 0;  // bytes
  Rights rights = Rights::none;
  bool zero_based = false;  // peers give offsets from base (scalable mode), not addresses
  // Peers give addresses that begin here rather than at base (an IOVA, ibv_reg_mr(3)); not
  // with zero_based.
  std::optional<uint64_t> origin{};
  // Reached through this endpoint alone (a type 2 memory window); 0: through any of the domain.
  EndpointId bound_to = 0;  // or, of a window, by the one queue pair that has this number
  bool enabled = true;      // false: refused until enable()
  std::optional<uint64_t> requested_key;  // nullopt: an unguessable key is drawn
  const void* registered_at = nullptr;    // return address of the registering call, for explain()
};

struct RegionHandle {
  uint32_t index = 0;
  uint64_t generation = 0;
  uint64_t key = 0;
  uint64_t birth = 0;  // generation of its first life
};

// What somebody wants to do, as it came from the peer.
struct AccessAsk {
  DomainId pd = 0;      // our own: the domain of the queue pair it came through
  EndpointId peer = 0;  // our own: the number of that queue pair itself; 0: it has none
  Wild<uint64_t> key;
  Wild<uint64_t> addr;  // virtual address or offset, as the region was registered
  Wild<uint64_t> len;   // bytes
  Rights need = Rights::none;
  EndpointId through = 0;   // our own: the endpoint that it came to; 0: none
  Wild<uint64_t> secret{};  // of a raw key; else 0
};

class KeyTable {
 public:
  static constexpr uint32_t kDefaultRegions = 1u << 21;
  // A table for that many regions at once; memory is taken only as they come, some 80 bytes each,
  // and kept for those to come: the seal by which peers cannot write the file forbids the kernel to
  // take pages out of it. Errors: no_fds, no_memory, invalid (0, or above 2^24).
  static Result<std::unique_ptr<KeyTable>> create(uint32_t max_regions = kDefaultRegions);
  ~KeyTable();
  KeyTable(const KeyTable&) = delete;
  KeyTable& operator=(const KeyTable&) = delete;

  // Registers a region; it can be reached when this returns. Errors: no_key (the requested key is
  // in use in that domain), key_rejected (it is the number that means none), invalid (the range
  // wraps, domain 0, an unknown right, an origin for what is zero_based), no_space (table full),
  // no_memory. With a side record, base is the address of the first byte and length that of all
  // segments. Peers leave the accesses of what has a side record, an origin or an endpoint to the
  // owner. The second form writes the handle where it stays: a copy of fields that were stored just
  // now waits for them. On failure it writes nothing.
  Result<RegionHandle> add(const RegionSpec& spec, std::unique_ptr<SideRecord> side = nullptr) {
    RegionHandle made;
    const Status added = add(spec, std::move(side), made);
    if (!added) return added.error();
    return made;
  }
  Status add(const RegionSpec& spec, std::unique_ptr<SideRecord> side, RegionHandle& made);
  // Errors: no_entry (closed, or being closed).
  Status enable(RegionHandle region);
  // Neither closed nor being closed.
  bool in_force(const RegionHandle& region) const noexcept {
    if (region.generation == 0 || region.index >= file_.capacity) return false;
    return file_.entries[region.index].state_gen.load(std::memory_order_acquire) ==
           state_gen_of(region.generation, EntryState::valid);
  }

  // The region's side record, or null. Change it inside the engine lock of the domain, and only
  // until the region is closed; add_side gives one to a region that has none, from then on peers
  // leave its accesses to the owner. Errors: no_entry, no_memory.
  SideRecord* side(RegionHandle region) noexcept;
  Result<SideRecord*> add_side(RegionHandle region);

  // Closing. revoke_begin: refused from now on; call it inside the engine lock of the domain.
  // no_entry if it is closed already. revoke_poll: true once nothing older can land any more (the
  // entry is free then). revoke: both, until `deadline_ns` (now_ns() time) has passed, then busy:
  // the region stays refused, and calling again finishes. Poll and revoke are called outside every
  // lock (but by windows, which poll now and then: window.hpp).
  Status revoke_begin(RegionHandle region);
  bool revoke_poll(RegionHandle region);
  // revoke_begin() and one revoke_poll() in one step, inside the engine lock: ok when it is over,
  // busy when it is to be polled on, no_entry.
  Status revoke_now(const RegionHandle& region);
  Status revoke(RegionHandle region, uint64_t deadline_ns);
  // Of a region that was added with bound_to, inside the engine lock: over when this returns. No
  // peer ever pins such a region, and our own threads are in it inside that lock only. Errors:
  // no_entry.
  Status revoke_bound(const RegionHandle& region);
  // A peer's invalidation of a memory window by its key: the same for what was added with bound_to,
  // if that is the endpoint or the queue pair that it came through; ask.addr, len and need do not
  // matter. none, or why not.
  Denial invalidate(const AccessAsk& ask);
  // Closed, to the end: nothing of that life is left. Inside the engine lock.
  bool is_over(RegionHandle region) const noexcept {
    return !in_force(region) && !being_closed(region);
  }

  // To refresh a region: instead of revoke_poll, until it is true; then revive() puts the region in
  // force again, key, rights and side record as they are, in a new life: what is under way in the
  // old one is refused. Its new handle; no_entry if it is not being revoked.
  bool is_quiet(RegionHandle region);
  bool wait_until_quiet(RegionHandle region, uint64_t deadline_ns);  // as revoke() waits
  Result<RegionHandle> revive(RegionHandle region);

  // May this be done? Checks the whole of [addr, addr + len) and grants its first chunk. The hint
  // is the caller's own and may be null.
  Checked check(const AccessAsk& ask, LookupHint* hint = nullptr) const noexcept {
    // mostly the region that was met last: no search, and no call
    EntryCopy entry;
    const uint64_t key = ask.key.unchecked();
    if (hint != nullptr && key == hint->key && copy_near(file_, *hint, ask.pd, key, entry))
      return grant(ask, entry);
    return check_another(ask, hint);
  }
  // The next chunk of a longer operation: the same life of the same region, or closed.
  Checked recheck(const AccessAsk& ask, RegionRef region) const noexcept;

  // A remote write or atomic has changed that region: its watchers are told. Engine lock held.
  void note_write(RegionRef region) const noexcept;
  // Sees to it that what lies in the range is in the file behind it: system calls. none, or why
  // not.
  Denial commit(const AccessAsk& ask) const noexcept;
  // The ask becomes one for every byte that its key reaches. none, or why the key reaches nothing;
  // whether that is allowed is for check() to say.
  Denial widen(AccessAsk& ask) const noexcept;

  // Descriptor and size of the key file, to be handed to peers that may map it.
  int fd() const noexcept { return fd_.get(); }
  // Called once by a thread that lives as long as the program and as this table: when it ends, by
  // exec or with the process, peers copy no more by these keys (image_watch.hpp).
  void end_with_this_thread() noexcept { image_watch_.begin(file_.header->image); }
  size_t size_bytes() const noexcept { return mapping_.size(); }
  const KeyFile& file() const noexcept { return file_; }  // to read: descriptor.hpp
  uint32_t regions() const noexcept;

  // The slots through which process `accessor` will reach us. They must stay mapped until
  // detach_slots has said true. Errors: not_supported (its threads cannot be watched through /proc:
  // serve it through the ring), no_memory.
  Status attach_slots(SlotArray* slots, pid_t accessor) {
    return accessors_.attach(slots, accessor);
  }
  // Its key file, once that is known: who pins with its first thread and then becomes another
  // program is told by it. Null, or slots that are not attached: nothing happens.
  void know_accessor(const SlotArray* slots, std::shared_ptr<const PeerKeyView> its_keys) noexcept {
    accessors_.know(slots, std::move(its_keys));
  }
  // True once no access through them is under way or can begin: only then unmap them. Not blocking;
  // call it again after a while when it says false.
  bool detach_slots(SlotArray* slots) { return accessors_.detach(slots); }
  // The peer has found its slots dormant and would copy by itself again: they are open when this
  // returns. Null, or slots that are not attached: nothing happens.
  void wake_slots(const SlotArray* slots) noexcept { accessors_.wake(slots); }

  // Puts a number into the gate of a lane: no direct access under the number before begins then.
  static void move_gate(std::atomic<uint64_t>& gate, uint64_t number) noexcept;
  // Asked after that: true once none that had begun under it can land any more. So ends what a
  // peer may do through that lane. `watched`: the slots of its segment. Not blocking; as a rule the
  // first call says true, and one that says false has looked at /proc.
  bool is_lane_quiet(const SlotArray* watched, uint32_t lane) noexcept {
    return accessors_.is_lane_quiet(watched, lane);
  }

  // One sentence: what was attempted, the key, the address, the region that it met or how near, the
  // rule, where that region was registered, and what would make it legal, in the words of the door
  // that the asker uses. Slow; may allocate.
  std::string explain(const AccessAsk& ask, Denial denial,
                      const Wording& door = kNeutralWording) const;
  // The same of a peer's invalidation.
  std::string explain_invalidation(const AccessAsk& ask, Denial denial,
                                   const Wording& door = kNeutralWording) const;

  // Tests put their own in. Not owned.
  void set_thread_probe(ThreadProbe* probe) noexcept { accessors_.set_thread_probe(probe); }
  Accessors& accessors() noexcept { return accessors_; }

 private:
  struct
      Resting {  // an entry in quarantine: FREE, but still in its chain, so that it says "closed"
    uint32_t index = 0;
    uint64_t generation = 0;
  };
  static constexpr size_t kQuarantine = 128;
  // A key drawn in advance, and its hash in the domain that registered last when it was drawn.
  struct Drawn {
    uint64_t key = 0;
    uint64_t hash = 0;
    DomainId pd = 0;
  };
  static constexpr size_t kAhead = 16;
  // What our own walks need of a linked entry. Among a million entries of 64 bytes each step of a
  // walk would miss both the cache and the TLB.
  struct Shadow {
    uint32_t next = 0;  // as in the entry
    uint32_t hash = 0;  // low half of that of its domain and key
  };
  // A chain that is being put together.
  struct Tail {
    std::atomic<uint32_t>* head;
    uint32_t last = 0;  // index + 1, 0 = none yet
  };

  explicit KeyTable(PublishedFile file) noexcept;

  // guarded by mutex_: key_table.cpp
  Status take_entry(uint32_t& index);
  bool key_in_use(uint64_t hash, DomainId pd, uint64_t key, uint32_t& resting) const noexcept;
  std::atomic<uint32_t>& head_of(uint64_t hash) const noexcept;
  Drawn next_drawn() noexcept;
  Drawn draw_key(DomainId pd) noexcept;
  static uint32_t flags_beside(const RegionSpec& spec, bool has_side) noexcept;
  void fill(KeyEntry& entry, const RegionSpec& spec, uint64_t key, uint32_t flags) noexcept;
  void set_next(uint32_t index, uint32_t next) noexcept;
  void extend(Tail& chain, uint32_t at) noexcept;
  void link(uint32_t index, uint64_t hash) noexcept;
  void unlink(uint32_t index) noexcept;
  void rest(uint32_t index, uint64_t generation) noexcept;
  void wake_oldest() noexcept;
  void split_if_crowded() noexcept;
  void note_domain(DomainId pd) noexcept;
  Status have_entries(uint32_t count) noexcept;
  bool have_buckets(uint32_t count) noexcept;

  Denial find(const AccessAsk& ask, LookupHint* hint, EntryCopy& out) const noexcept;
  Checked check_another(const AccessAsk& ask, LookupHint* hint) const noexcept;
  Checked grant(const AccessAsk& ask, const EntryCopy& entry) const noexcept {
    if ((entry.rights & kFlagAskOwner) != 0) [[unlikely]]
      return grant_beside(ask, entry);
    uint64_t offset = 0;
    const uint64_t len = ask.len.unchecked();
    const Denial denial = validate_entry(entry, ask.addr.unchecked(), len, ask.need, offset);
    if (denial != Denial::none) return Checked(denial);
    auto* data = reinterpret_cast<std::byte*>(entry.base + offset);
    return Checked(data, std::min(len, kChunkBytes), entry.ref());
  }
  Checked grant_beside(const AccessAsk& ask, const EntryCopy& entry) const noexcept;
  uint64_t origin_of(uint32_t index, uint32_t flags) const noexcept;  // where peers count from
  uint64_t next_generation() noexcept { return next_generation_++; }
  void set_free(RegionHandle region) noexcept;
  void free_entry(const RegionHandle& region) noexcept;
  bool being_closed(const RegionHandle& region) const noexcept {
    return region.index < file_.capacity &&
           file_.entries[region.index].state_gen.load(std::memory_order_acquire) ==
               state_gen_of(region.generation, EntryState::revoking);
  }
  Status begin_under_mutex(const RegionHandle& region) noexcept;
  const KeyEntry* entry_to_explain(DomainId pd, uint64_t key) const;

  UniqueFd fd_;
  Mapping mapping_;
  KeyFile file_;  // the mapping, seen as header, buckets and entries
  ImageWatch image_watch_;

  mutable EngineLock mutex_{true};  // guards what follows and every write to the structure
  uint64_t next_generation_ = 1;
  uint32_t entries_used_ = 0;    // high-water mark
  uint32_t entries_backed_ = 0;  // entries whose pages are allocated
  uint32_t buckets_backed_ = 0;
  uint32_t buckets_ = kBucketsAtStart;          // bucket_count of the file, which is ours ...
  uint32_t bucket_mask_ = kBucketsAtStart - 1;  // ... and the next power of two, less one
  uint32_t linked_ = 0;                         // entries in chains, resting ones included
  uint32_t live_ = 0;                           // entries that are not FREE
  uint32_t free_head_ = 0;  // index + 1 of the first unlinked free entry, 0 = none
  DomainId last_domain_ = 0;
  std::array<Drawn, kAhead> ahead_{};  // drawn in advance, so that their chains are at hand
  size_t ahead_at_ = 0;
  std::array<uint64_t, 64> fresh_{};  // of the generator, which is asked for many at a time
  size_t fresh_at_ = 64;
  uint32_t domain_cursor_ = 0;
  std::array<Resting, kQuarantine> quarantine_;
  size_t quarantine_head_ = 0;
  size_t quarantine_size_ = 0;

  // By index; null for most. Written under mutex_ before the entry is VALID, or inside the engine
  // lock of its domain, where it is read.
  struct Free {
    void operator()(void* p) const noexcept { std::free(p); }
  };
  std::unique_ptr<SideRecord*[], Free> sides_;
  std::unique_ptr<uint64_t[], Free> origins_;  // by index, where kFlagOrigin is set; as sides_
  std::unique_ptr<Shadow[], Free> shadows_;    // by index; guarded by mutex_

  Accessors accessors_{mutex_};
};

}  // namespace aperture::protect
