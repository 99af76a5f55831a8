// One sentence for each refusal: see access_check.hpp, window.hpp and PeerKeyView::explain. Slow
// path only.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>

#include "protect/access_check.hpp"
#include "protect/code_place.hpp"
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

// What beside its range decides who reaches a region.
void append_side(std::string& out, const RegionFacts& met, EndpointId through) {
  if (met.buffers > 1) append(out, ", in %zu buffers", met.buffers);
  if (!met.endpoint) return;
  if (*met.endpoint == 0) {
    out += ", bound to no endpoint that is open";
  } else {
    append_only(out, *met.endpoint, through);
  }
}

}  // namespace

std::string explain(const AccessCheck& access, const AccessAsk& ask, Denial denial,
                    const Wording& door) {
  char need[96];
  describe_rights(ask.need, need, sizeof need);
  const uint64_t key = ask.key.unchecked();
  const RegionFacts met = access.facts(ask.pd, key);

  std::string out;
  append(out, "%s of ", need);
  out += range_text(ask.addr.unchecked(), ask.len.unchecked(), met.zero_based);
  append(out, " with key 0x%" PRIx64 " in domain %" PRIu32 " refused: %s", key, ask.pd,
         rule(door, denial));
  if (met.found) {
    char granted[160];
    describe_rights(met.rights, granted, sizeof granted);
    out += "; the key names ";
    out += range_text(met.origin, met.length, met.zero_based);
    append(out, " of domain %" PRIu32 " for %s", met.pd, granted);
    if (denial == Denial::out_of_range) {
      out += ", the access " + distance(ask, met.origin, met.length);
    }
    if (met.bound_to != 0 && met.bound_to != ask.peer) append_only(out, met.bound_to, ask.through);
    append_side(out, met, ask.through);
    out += ", registered " + describe_code(::getpid(), met.registered_at, door);
  } else {
    append(out, "; %" PRIu32 " region(s) are registered in this process", met.regions);
  }
  append(out, "; to make it legal, %s.", remedy(door, denial, ask.need, met.zero_based));
  return out;
}

std::string explain_unseen(Denial denial, Rights need, const Wording& door) {
  std::string out;
  append(out,
         "; to make it legal, %s; the log of its owner (APERTURE_LOG=warn there) has the region",
         remedy(door, denial, need, std::nullopt));
  return out;
}

std::string explain_invalidation(const AccessCheck& access, const AccessAsk& ask, Denial denial,
                                 const Wording& door) {
  const uint64_t key = ask.key.unchecked();
  const RegionFacts met = access.facts(ask.pd, key);
  std::string out;
  append(out, "invalidation of key 0x%" PRIx64 " in domain %" PRIu32 " refused: %s", key, ask.pd,
         rule(door, denial));
  if (met.found) {
    if (denial == Denial::wrong_endpoint) append_only(out, met.bound_to, ask.through);
    out += "; the key was given out " + describe_code(::getpid(), met.registered_at, door);
  }
  append(out, "; to make it legal, %s.", remedy(door, denial, ask.need, false));
  return out;
}

// What the owner's explain() says after the rule, as far as the accessor can know it.
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
