// One sentence for each refusal: see KeyTable::explain and PeerKeyView::explain. Slow path only.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "protect/code_place.hpp"
#include "protect/key_table.hpp"
#include "protect/peer_key_view.hpp"
#include "protect/window.hpp"
#include "protect/wording.hpp"

namespace aperture::protect {

namespace {

template <typename... Args>
[[gnu::format(printf, 2, 0)]] void append(std::string& to, const char* format, Args... args) {
  char text[512];
  std::snprintf(text, sizeof text, format, args...);
  to += text;
}

// The last address of a range, which a wrapping or empty one does not have.
std::string range_text(uint64_t from, uint64_t len, bool zero_based) {
  std::string out;
  const char* what = zero_based ? "offset " : "";
  if (len == 0) {
    append(out, "%s0x%" PRIx64 " (no bytes)", what, from);
  } else if (from > ~uint64_t{0} - (len - 1)) {
    append(out, "%s0x%" PRIx64 " for %" PRIu64 " bytes (wraps round)", what, from, len);
  } else {
    append(out, "%s0x%" PRIx64 "..0x%" PRIx64 " (%" PRIu64 " bytes)", what, from, from + (len - 1),
           len);
  }
  return out;
}

// How the range leaves the region: "begins 8 bytes before it", "ends 1 byte past it".
std::string distance(const AccessAsk& ask, uint64_t origin, uint64_t length) {
  const uint64_t addr = ask.addr.unchecked();
  const uint64_t len = ask.len.unchecked();
  std::string out;
  if (addr < origin) {
    append(out, "begins %" PRIu64 " byte(s) before it", origin - addr);
    return out;
  }
  const uint64_t offset = addr - origin;
  if (offset > length) {
    append(out, "begins %" PRIu64 " byte(s) past its end", offset - length);
  } else {
    append(out, "ends %" PRIu64 " byte(s) past its end", len - (length - offset));
  }
  return out;
}

// The one endpoint that reaches a region, if it is not that of the access.
void append_only(std::string& out, EndpointId only, EndpointId through) {
  if (only == through) return;
  append(out, ", bound to endpoint %" PRIu32 " while endpoint %" PRIu32 " was accessed", only,
         through);
}

// What beside its range decides who reaches a region. Never its secret.
void append_side(std::string& out, const SideRecord& side, EndpointId through) {
  if (side.segments.size() > 1) append(out, ", in %zu buffers", side.segments.size());
  if (!side.needs_endpoint) return;
  if (side.endpoint == 0) {
    out += ", bound to no endpoint that is open";
  } else {
    append_only(out, side.endpoint, through);
  }
}

}  // namespace

// The entry that (pd, key) named last, dead or alive; else the same key in another domain.
const KeyEntry* KeyTable::entry_to_explain(DomainId pd, uint64_t key) const {
  const KeyEntry* best = nullptr;
  uint64_t best_rank = 0;
  for (uint32_t i = 0; i < entries_used_; ++i) {
    const KeyEntry& e = file_.entries[i];
    // relaxed: under mutex_, which every writer of these fields holds
    const uint64_t s = e.state_gen.load(std::memory_order_relaxed);
    const bool alive = state_of(s) != EntryState::free;
    if (e.key.load(std::memory_order_relaxed) != key) continue;
    const DomainId other = e.pd.load(std::memory_order_relaxed);
    if (other == 0 || (other != pd && !alive)) continue;
    const uint64_t rank = (other == pd ? 4u : 0u) + (alive ? 2u : 0u) + 1u;
    if (rank > best_rank) {
      best_rank = rank;
      best = &e;
    }
  }
  return best;
}

std::string KeyTable::explain(const AccessAsk& ask, Denial denial, const Wording& door) const {
  char need[96];
  describe_rights(ask.need, need, sizeof need);
  std::lock_guard guard(mutex_);
  const uint64_t key = ask.key.unchecked();
  const KeyEntry* e = entry_to_explain(ask.pd, key);
  // relaxed loads throughout: entries are written under mutex_ only, which we hold
  const uint32_t rights = e ? e->rights.load(std::memory_order_relaxed) : 0;
  const bool zero_based = (rights & kFlagZeroBased) != 0;

  std::string out;
  append(out, "%s of ", need);
  out += range_text(ask.addr.unchecked(), ask.len.unchecked(), zero_based);
  append(out, " with key 0x%" PRIx64 " in domain %" PRIu32 " refused: %s", key, ask.pd,
         rule(door, denial));
  if (e != nullptr) {
    const auto index = static_cast<uint32_t>(e - file_.entries);
    const uint64_t origin = origin_of(index, rights);
    const uint64_t length = e->length.load(std::memory_order_relaxed);
    char granted[160];
    describe_rights(static_cast<Rights>(rights & kRightsMask), granted, sizeof granted);
    out += "; the key names ";
    out += range_text(origin, length, zero_based);
    append(out, " of domain %" PRIu32 " for %s", e->pd.load(std::memory_order_relaxed), granted);
    if (denial == Denial::out_of_range) {
      out += ", the access " + distance(ask, origin, length);
    }
    const EndpointId only = e->bound_qpn.load(std::memory_order_relaxed);
    if (only != 0 && only != ask.peer) append_only(out, only, ask.through);
    // of a region that is closed it has gone; another domain's may be changing
    const bool ours = e->pd.load(std::memory_order_relaxed) == ask.pd;
    const SideRecord* side = ours ? sides_[index] : nullptr;
    if ((rights & kFlagAskOwner) != 0 && side != nullptr) append_side(out, *side, ask.through);
    out += ", registered " +
           describe_code(::getpid(), e->registered_at.load(std::memory_order_relaxed), door);
  } else {
    append(out, "; %" PRIu32 " region(s) are registered in this process", live_);
  }
  append(out, "; to make it legal, %s.", remedy(door, denial, ask.need, zero_based));
  return out;
}

std::string explain_unseen(Denial denial, Rights need, const Wording& door) {
  std::string out;
  append(out,
         "; to make it legal, %s; the log of its owner (APERTURE_LOG=warn there) has the region",
         remedy(door, denial, need, std::nullopt));
  return out;
}

std::string KeyTable::explain_invalidation(const AccessAsk& ask, Denial denial,
                                           const Wording& door) const {
  std::lock_guard guard(mutex_);
  const uint64_t key = ask.key.unchecked();
  const KeyEntry* e = entry_to_explain(ask.pd, key);
  std::string out;
  append(out, "invalidation of key 0x%" PRIx64 " in domain %" PRIu32 " refused: %s", key, ask.pd,
         rule(door, denial));
  if (e != nullptr) {
    // relaxed: under mutex_
    const EndpointId only = e->bound_qpn.load(std::memory_order_relaxed);
    if (denial == Denial::wrong_endpoint) append_only(out, only, ask.through);
    out += "; the key was given out " +
           describe_code(::getpid(), e->registered_at.load(std::memory_order_relaxed), door);
  }
  append(out, "; to make it legal, %s.", remedy(door, denial, ask.need, false));
  return out;
}

// What KeyTable::explain says after the rule, as far as the accessor can know it.
std::string PeerKeyView::explain(pid_t owner, const AccessAsk& ask, Denial denial,
                                 const Wording& door) const {
  EntryCopy entry;
  std::string out;
  const bool found = search(file_, ask.pd, ask.key.unchecked(), entry) == Search::valid;
  const bool zero_based = found && (entry.rights & kFlagZeroBased) != 0;
  if (found) {
    char granted[160];
    describe_rights(static_cast<Rights>(entry.rights & kRightsMask), granted, sizeof granted);
    const bool known = (entry.rights & kFlagOrigin) == 0;
    out += "; the key names ";
    if (known) {
      out += range_text(zero_based ? 0 : entry.base, entry.length, zero_based);
    } else {
      append(out, "%" PRIu64 " bytes that count from where their owner has chosen", entry.length);
    }
    append(out, " for %s", granted);
    if (known && denial == Denial::out_of_range) {
      out += ", the access " + distance(ask, zero_based ? 0 : entry.base, entry.length);
    }
    out += ", registered " + describe_code(owner, entry_place(entry), door);
  }
  append(out, "; to make it legal, %s",
         remedy(door, denial, ask.need, found ? std::optional(zero_based) : std::nullopt));
  return out;
}

std::string explain(const Window& window, const WindowBind& bind, WindowAnswer answer,
                    const Wording& door) {
  char rights[96];
  describe_rights(bind.rights, rights, sizeof rights);
  std::string out;
  append(out, "binding of memory window 0x%" PRIx32 " for %s to ", bind.key, rights);
  out += range_text(bind.addr, bind.length, false);
  append(out, " refused: %s", sentence(answer));
  if (const BindableRegion* region = bind.region; region != nullptr) {
    char granted[160];
    describe_rights(region->rights, granted, sizeof granted);
    out += "; the MR has ";
    out += range_text(region->origin, region->length, false);
    append(out, " of domain %" PRIu32 " for %s", region->pd, granted);
  }
  append(out, ", the window is of domain %" PRIu32 "; to make it legal, %s.", window.pd(),
         remedy(door, answer));
  return out;
}

std::string explain_invalidation(uint32_t key, WindowAnswer answer, const Wording& door) {
  std::string out;
  append(out, "invalidation of key 0x%" PRIx32 " refused: %s; to make it legal, %s.", key,
         sentence(answer), remedy(door, answer));
  return out;
}

}  // namespace aperture::protect
