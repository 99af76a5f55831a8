// Descriptors of local buffers: see descriptor.hpp.
#include "protect/descriptor.hpp"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "protect/code_place.hpp"
#include "protect/wording.hpp"

namespace aperture::protect {

namespace {

uint64_t bits_of(const void* descriptor) noexcept {
  return reinterpret_cast<uint64_t>(descriptor);
}

// A consistent copy of the entry that a descriptor names, with whose it is. Any denial but none,
// closed and revoking: it never named one.
Denial resolve(const KeyFile& file, const void* descriptor, EntryCopy& out,
               DomainId& owner) noexcept {
  constexpr uint64_t kLow40 = ~uint64_t{0} >> kDescriptorIndexBits;
  const uint64_t index = bits_of(descriptor) & kDescriptorIndexMask;
  const uint64_t generation = bits_of(descriptor) >> kDescriptorIndexBits;
  if (index >= file.capacity || generation == 0) return Denial::unknown_key;
  const KeyEntry& e = file.entries[index];
  // SYNC POINT: key-entry (pairs with the release stores of fill(): the fields of that life)
  const uint64_t s = e.state_gen.load(std::memory_order_acquire);
  const uint64_t birth = e.birth.load(std::memory_order_acquire) & kLow40;
  if (birth != generation) return generation < birth ? Denial::closed : Denial::unknown_key;
  if (state_of(s) == EntryState::revoking) return Denial::revoking;
  if (state_of(s) != EntryState::valid) return Denial::closed;
  // acquire on each field: the last load below may not pass them
  owner = e.pd.load(std::memory_order_acquire);
  out.index = static_cast<uint32_t>(index);
  out.state_gen = s;
  out.base = e.base.load(std::memory_order_acquire);
  out.length = e.length.load(std::memory_order_acquire);
  out.rights = e.rights.load(std::memory_order_acquire);
  return e.state_gen.load(std::memory_order_acquire) == s ? Denial::none : Denial::closed;
}

bool lies_in(uint64_t base, uint64_t length, uint64_t addr, uint64_t len) noexcept {
  // subtract, never add: nothing here can wrap
  return addr >= base && addr - base <= length && len <= length - (addr - base);
}

const char* local_sentence(Denial denial) noexcept {
  switch (denial) {
    case Denial::unknown_key: return "is none that was handed out here";
    case Denial::wrong_domain: return "belongs to another domain";
    case Denial::closed: return "is that of a region that was closed";
    case Denial::revoking: return "is that of a region that is being closed or refreshed";
    case Denial::not_enabled: return "is that of a region that is not enabled";
    case Denial::missing_right: return "is that of a region without this right";
    case Denial::out_of_range: return "is that of a region that does not cover the buffer";
    case Denial::wrong_endpoint: return "is that of a region that is not bound to this endpoint";
    case Denial::not_verified:
      return "is that of a region with pages that were not there when it was registered or "
             "refreshed";
    default: return "is valid";
  }
}

}  // namespace

LocalAnswer check_local(const KeyFile& file, const LocalAsk& ask) noexcept {
  EntryCopy entry;
  DomainId owner = 0;
  const Denial denial = resolve(file, ask.descriptor, entry, owner);
  if (denial != Denial::none) return {denial, {}};
  if (owner != ask.pd) return {Denial::wrong_domain, {}};
  if ((entry.rights & kFlagEnabled) == 0) return {Denial::not_enabled, {}};
  if (!includes(static_cast<Rights>(entry.rights & kRightsMask), ask.need))
    return {Denial::missing_right, {}};
  if ((entry.rights & kFlagsBeside) != 0) {
    LocalAnswer answer;
    answer.beside.index = entry.index;
    answer.beside.generation = generation_of(entry.state_gen);
    return answer;
  }
  const bool covered = lies_in(entry.base, entry.length, ask.addr, ask.len);
  return {covered ? Denial::none : Denial::out_of_range, {}};
}

// A region without a side record that peers leave to its owner nevertheless: one flat range.
static Denial check_flat(const KeyFile& file, RegionHandle region, const LocalAsk& ask) noexcept {
  const KeyEntry& e = file.entries[region.index];
  // SYNC POINT: key-entry
  if (e.state_gen.load(std::memory_order_acquire) !=
      state_gen_of(region.generation, EntryState::valid)) {
    return Denial::closed;
  }
  // relaxed: constant until the entry is revoked, which happens inside the engine lock that we hold
  const uint64_t base = e.base.load(std::memory_order_relaxed);
  const uint64_t length = e.length.load(std::memory_order_relaxed);
  const EndpointId only = e.bound_qpn.load(std::memory_order_relaxed);
  if (!lies_in(base, length, ask.addr, ask.len)) return Denial::out_of_range;
  const bool foreign = only != 0 && ask.through != 0 && only != ask.through;
  return foreign ? Denial::wrong_endpoint : Denial::none;
}

Denial check_beside(KeyTable& table, RegionHandle region, const LocalAsk& ask) noexcept {
  const SideRecord* side = table.side(region);
  if (side == nullptr) return check_flat(table.own_file().layout(), region, ask);
  const EndpointId through = ask.through != 0 ? ask.through : side->endpoint;
  uint64_t at = ask.addr;
  uint64_t left = ask.len;
  // buffers that lie behind one another in memory, in whatever order, cover what spans them
  while (left != 0) {
    uint64_t offset = 0;
    uint64_t n = 0;
    for (const Segment& s : side->segments) {
      const auto base = reinterpret_cast<uint64_t>(s.base);
      if (s.length != 0 && lies_in(base, s.length, at, 1)) {
        offset += at - base;
        n = std::min(left, s.length - (at - base));
        break;
      }
      offset += s.length;
    }
    if (n == 0) return Denial::out_of_range;
    if (const Denial d = side->validate(through, offset, n); d != Denial::none) return d;
    at += n;
    left -= n;
  }
  return Denial::none;
}

std::string explain_local(const KeyFile& file, const LocalAsk& ask, Denial denial,
                          const Wording& door) {
  std::string region;
  char text[512];
  EntryCopy entry;
  DomainId owner = 0;
  if (resolve(file, ask.descriptor, entry, owner) == Denial::none) {
    const auto rights = static_cast<Rights>(entry.rights & kRightsMask);
    std::snprintf(text, sizeof text,
                  " (it has %" PRIu64 " bytes at 0x%" PRIx64 " for %s, registered ", entry.length,
                  entry.base, names_of(door, rights).c_str());
    // relaxed: for people to read
    const uint64_t place = file.entries[entry.index].registered_at.load(std::memory_order_relaxed);
    region = text + describe_code(::getpid(), place, door) + ")";
  }
  std::snprintf(
      text, sizeof text,
      "descriptor 0x%" PRIx64 " of the %" PRIu64 " bytes at 0x%" PRIx64 " (needed: %s) %s",
      bits_of(ask.descriptor), ask.len, ask.addr, name_of(door, ask.need), local_sentence(denial));
  return text + region + "; " + local_remedy(door, denial);
}

}  // namespace aperture::protect
