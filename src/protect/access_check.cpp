// The check where the hint does not help, and what is known behind a refusal: see access_check.hpp.
// What only the owner validates is in beside.cpp.
#include "protect/access_check.hpp"

#include <mutex>

namespace aperture::protect {

// The walk.
Denial AccessCheck::find(const AccessAsk& ask, LookupHint* hint, EntryCopy& out) const noexcept {
  const uint64_t key = ask.key.unchecked();  // compared, never used as an index
  Search answer = search(file_, ask.pd, key, out);
  if (answer == Search::unstable) {
    // registrations came in a storm: with the lock held the chains stand still
    std::lock_guard guard(entries_.lock());
    answer = search(file_, ask.pd, key, out);
  }
  switch (answer) {
    case Search::valid:
      if (hint != nullptr) hint->learn(key, out.index);
      return Denial::none;
    case Search::closed: return Denial::closed;
    case Search::revoking: return Denial::revoking;
    case Search::unknown:
    case Search::unstable: break;
  }
  return known_elsewhere(file_, ask.pd, key) ? Denial::wrong_domain : Denial::unknown_key;
}

Checked AccessCheck::check_another(const AccessAsk& ask, LookupHint* hint) const noexcept {
  EntryCopy entry;
  const uint64_t key = ask.key.unchecked();
  if (hint != nullptr) hint->place.fetch(key, ask.addr.unchecked());
  if (hint == nullptr || !copy_near(file_, *hint, ask.pd, key, entry)) {
    const Denial denial = find(ask, hint, entry);
    if (denial != Denial::none) return Checked(denial);
  }
  if (hint != nullptr) hint->place.learn(key, entry);
  return grant(ask, entry);
}

Checked AccessCheck::recheck(const AccessAsk& ask, RegionRef region) const noexcept {
  EntryCopy entry;
  if (copy_entry(file_, region, ask.pd, ask.key.unchecked(), entry)) return grant(ask, entry);
  if (region.index >= file_.capacity) return Checked(Denial::unknown_key);
  const uint64_t s = file_.entries[region.index].state_gen.load(std::memory_order_acquire);
  const bool closing = s == state_gen_of(region.generation, EntryState::revoking);
  return Checked(closing ? Denial::revoking : Denial::closed);
}

// ---- for people ---------------------------------------------------------------------------------

// The entry that (pd, key) named last, dead or alive; else the same key in another domain. Lock
// held.
const KeyEntry* AccessCheck::named_last(DomainId pd, uint64_t key) const noexcept {
  const KeyEntry* best = nullptr;
  uint64_t best_rank = 0;
  for (uint32_t at = 0; (at = entries_.next_used(at)) < entries_.used(); ++at) {
    const KeyEntry& e = file_.entries[at];
    // relaxed: every writer of these fields holds the lock
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

RegionFacts AccessCheck::facts(DomainId pd, uint64_t key) const noexcept {
  std::lock_guard guard(entries_.lock());
  RegionFacts facts;
  facts.regions = entries_.live();
  const KeyEntry* e = named_last(pd, key);
  if (e == nullptr) return facts;
  facts.found = true;
  // relaxed loads throughout: entries are written under the lock only
  const auto index = static_cast<uint32_t>(e - file_.entries);
  const uint32_t flags = e->rights.load(std::memory_order_relaxed);
  facts.pd = e->pd.load(std::memory_order_relaxed);
  facts.origin = origin_of(index, flags);
  facts.length = e->length.load(std::memory_order_relaxed);
  facts.rights = static_cast<Rights>(flags & kRightsMask);
  facts.zero_based = (flags & kFlagZeroBased) != 0;
  facts.bound_to = e->bound_qpn.load(std::memory_order_relaxed);
  facts.registered_at = e->registered_at.load(std::memory_order_relaxed);
  // of a region that is closed it has gone; another domain's may be changing
  const SideRecord* side = facts.pd == pd ? sides_.record(index) : nullptr;
  if ((flags & kFlagsBeside) != 0 && side != nullptr) {
    facts.buffers = side->segments.size();
    if (side->needs_endpoint) facts.endpoint = side->endpoint;
  }
  return facts;
}

}  // namespace aperture::protect
