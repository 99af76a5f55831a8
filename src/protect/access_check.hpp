// The access check: may this be done? Nothing else makes a Grant.
//
// Reads the entries of this process, and what its owner alone knows of some of them (beside.cpp);
// changes nothing. Also what is done with an answer: watchers told of a write, a commit, the facts
// behind a refusal.
//
// Threads: any, without a lock, inside the engine lock of the region's domain (grant.hpp says why);
// what also takes the lock of the entries says so. Invariants: a Grant is of an entry that was
// VALID and enabled, of that key in that domain, with that right, and lies in the region; whatever
// the peer has said decides nothing else.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/wild.hpp"
#include "protect/grant.hpp"
#include "protect/key_entries.hpp"
#include "protect/key_file.hpp"
#include "protect/rights.hpp"
#include "protect/side_record.hpp"
#include "protect/side_table.hpp"

namespace aperture::protect {

struct Wording;  // wording.hpp
extern const Wording kNeutralWording;

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

// What the table knows of the entry that a key named last, dead or alive. For people.
struct RegionFacts {
  uint32_t regions = 0;  // registered in this process, whatever their keys
  bool found = false;    // what follows is of that entry
  DomainId pd = 0;  // another one's, where the key names nothing in the domain that was asked for
  uint64_t origin = 0;  // where peers count from
  uint64_t length = 0;  // bytes
  Rights rights = Rights::none;
  bool zero_based = false;
  EndpointId bound_to = 0;     // 0: none
  uint64_t registered_at = 0;  // code address
  // of its side record, never the secret
  size_t buffers = 1;
  std::optional<EndpointId> endpoint{};  // the one that it needs; 0: none that is open
};

class AccessCheck {
 public:
  // All of one table; they outlive it.
  AccessCheck(const KeyFile& file, const KeyEntries& entries, const SideTable& sides) noexcept
      : file_(file), entries_(entries), sides_(sides) {}
  AccessCheck(const AccessCheck&) = delete;
  AccessCheck& operator=(const AccessCheck&) = delete;

  // Checks the whole of [addr, addr + len) and grants its first chunk. The hint is the caller's own
  // and may be null.
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
  // Of a peer's invalidation: the life that the key names, if it was registered for the endpoint or
  // the queue pair that the ask came through; ask.addr, len and need do not matter. none, or why
  // not.
  Denial find_bound(const AccessAsk& ask, RegionRef& life) const noexcept;
  // The ask becomes one for every byte that its key reaches. none, or why the key reaches nothing;
  // whether that is allowed is for check() to say.
  Denial widen(AccessAsk& ask) const noexcept;

  // A remote write or atomic has changed that region: its watchers are told.
  void note_write(RegionRef region) const noexcept;
  // Sees to it that what lies in the range is in the file behind it: system calls. none, or why
  // not.
  Denial commit(const AccessAsk& ask) const noexcept;

  // Slow; takes the lock of the entries.
  RegionFacts facts(DomainId pd, uint64_t key) const noexcept;

 private:
  Denial find(const AccessAsk& ask, LookupHint* hint, EntryCopy& out) const noexcept;
  Checked check_another(const AccessAsk& ask, LookupHint* hint) const noexcept;
  Checked grant(const AccessAsk& ask, const EntryCopy& entry) const noexcept {
    if ((entry.rights & kFlagsBeside) != 0) [[unlikely]]
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
  const KeyEntry* named_last(DomainId pd, uint64_t key) const noexcept;

  const KeyFile file_;
  const KeyEntries& entries_;
  const SideTable& sides_;
};

// One sentence: what was attempted, the key, the address, the region that it met or how near, the
// rule, where that region was registered, and what would make it legal, in the words of the door
// that the asker uses. Slow; may allocate.
std::string explain(const AccessCheck& access, const AccessAsk& ask, Denial denial,
                    const Wording& door = kNeutralWording);
// The same of a peer's invalidation.
std::string explain_invalidation(const AccessCheck& access, const AccessAsk& ask, Denial denial,
                                 const Wording& door = kNeutralWording);

}  // namespace aperture::protect
