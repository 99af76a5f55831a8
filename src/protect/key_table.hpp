// The key table of this process: registering regions, and the parts that see to the rest.
//
//   own_file()     the memory file that peers of the same user map read-only  own_key_file.hpp
//   entries()      what became of a region                                    key_entries.hpp
//   access()       the access check, for whoever has been handed a key        access_check.hpp
//   revocation()   closing regions                                            revocation.hpp
//   accessors()    the peers that copy by themselves                          accessors.hpp
//
// Threads: add, is_in_use, enable, add_side from any thread (a lock, biased to the one that does so
// most); the parts say for themselves. Invariants: a region that can be reached was valid when it
// was added (its range does not wrap, its rights are known, its domain is not 0); a (domain, key)
// pair names at most one entry that is not FREE. (fi_mr(3); IBTA vol. 1, 10.6.)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/errc.hpp"
#include "protect/access_check.hpp"
#include "protect/accessors.hpp"
#include "protect/drawn_keys.hpp"
#include "protect/image_watch.hpp"
#include "protect/key_chains.hpp"
#include "protect/key_entries.hpp"
#include "protect/own_key_file.hpp"
#include "protect/revocation.hpp"
#include "protect/rights.hpp"
#include "protect/side_record.hpp"
#include "protect/side_table.hpp"

namespace aperture::protect {

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
  std::optional<uint64_t> requested_key{};  // nullopt: an unguessable key is drawn
  const void* registered_at = nullptr;      // return address of the registering call, for explain()
};

class KeyTable {
 public:
  static constexpr uint32_t kDefaultRegions = 1u << 21;
  // A table for that many regions at once; memory is taken only as they come, some 80 bytes each,
  // and kept for those to come until give_back() is called. Errors: no_fds, no_memory, invalid (0,
  // or above 2^24).
  static Result<std::unique_ptr<KeyTable>> create(uint32_t max_regions = kDefaultRegions);
  KeyTable(const KeyTable&) = delete;
  KeyTable& operator=(const KeyTable&) = delete;

  // Registers a region; it can be reached when this returns. Errors: no_key (the requested key is
  // in use in that domain), key_rejected (it is the number that means none), invalid (the range
  // wraps, domain 0, an unknown right, an origin for what is zero_based), no_space (table full),
  // no_memory. With a side record, base is the address of the first byte and length that of all
  // segments. Peers leave the accesses of what has a side record, an origin or an endpoint to the
  // owner, but for a device's memory that is shared (side_record.hpp). The second form writes the
  // handle where it stays: a copy of fields that were stored just now waits for them. On failure it
  // writes nothing.
  Result<RegionHandle> add(const RegionSpec& spec, std::unique_ptr<SideRecord> side = nullptr) {
    RegionHandle made;
    const Status added = add(spec, std::move(side), made);
    if (!added) return added.error();
    return made;
  }
  Status add(const RegionSpec& spec, std::unique_ptr<SideRecord> side, RegionHandle& made);
  // Whether a region of that key is registered in that domain, or is being closed there. One domain
  // of the application's has several of ours where it has several authorization keys, and a key
  // that it chooses names one region among them all (fi_mr(3), "requested_key").
  bool is_in_use(DomainId pd, uint64_t key) const noexcept;
  // Errors: no_entry (closed, or being closed).
  Status enable(RegionHandle region);

  // The region's side record, or null. Change it inside the engine lock of the domain, and only
  // until the region is closed; add_side gives one to a region that has none, and from then on
  // peers leave its accesses to the owner in any case: whoever adds to a record calls it first.
  // Errors: no_entry, no_memory.
  SideRecord* side(RegionHandle region) noexcept;
  Result<SideRecord*> add_side(RegionHandle region);

  // Called once by a thread that lives as long as the program and as this table: when it ends, by
  // exec or with the process, peers copy no more by these keys (image_watch.hpp).
  void end_with_this_thread() noexcept { image_watch_.begin(own_file_.layout().header->image); }

  // Called when there is memory that give_back() would give back, from a thread that closes a
  // region, with a lock held: it may post work to somebody. To be set before the first region is.
  void when_sparse(Callback<> call) noexcept { entries_.when_sparse(std::move(call)); }
  // Whether it would: most regions are closed, and no peer is attached (Accessors::attach()).
  bool may_give_back() const noexcept;
  // Gives back the memory of entries that are not in use, by going on in the other file, which is
  // own_file().make_another(). That is what is published from then on; `other` is then the file
  // before. Nobody attaches meanwhile. False: nothing has changed.
  bool give_back(PublishedFile& other) noexcept;

  const OwnKeyFile& own_file() const noexcept { return own_file_; }
  const KeyEntries& entries() const noexcept { return entries_; }
  const AccessCheck& access() const noexcept { return access_; }
  Revocation& revocation() noexcept { return revocation_; }
  Accessors& accessors() noexcept { return accessors_; }

 private:
  // A key for a registration that is under way, and where it goes.
  struct Place {
    uint64_t key = 0;
    uint64_t hash = 0;
    uint32_t resting = 0;  // index + 1 of the entry that remembers the key; 0: none does
  };

  explicit KeyTable(PublishedFile file) noexcept;
  KeyHeader& header() noexcept { return *own_file_.layout().header; }
  // With the lock of the entries held.
  Status place_requested(const RegionSpec& spec, Place& place) const noexcept;
  void note_domain(DomainId pd) noexcept;

  OwnKeyFile own_file_;
  ImageWatch image_watch_;
  SideTable sides_{own_file_.layout().capacity};
  KeyChains chains_{own_file_};
  KeyEntries entries_{own_file_, chains_, sides_};
  Accessors accessors_{entries_.lock()};
  AccessCheck access_{own_file_.layout(), entries_, sides_};
  Revocation revocation_{entries_, accessors_, access_};

  // guarded by the lock of the entries
  DrawnKeys drawn_;
  DomainId last_domain_ = 0;
  uint32_t domain_cursor_ = 0;
};

}  // namespace aperture::protect
