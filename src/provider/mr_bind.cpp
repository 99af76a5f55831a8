// fi_mr_bind, fi_mr_enable and fi_mr_refresh: see mr.hpp. man 3 fi_mr.
#include <cassert>
#include <cinttypes>
#include <cstdio>

#include "base/clock.hpp"
#include "base/settings.hpp"
#include "provider/cntr.hpp"
#include "provider/ep.hpp"
#include "provider/errors.hpp"
#include "provider/mr.hpp"
#include "provider/mr_mode.hpp"
#include "provider/offer.hpp"
#include "provider/window.hpp"

namespace aperture::provider {

namespace {

int refuse_state(const char* why) {
  return refuse(-FI_EOPBADSTATE, "fi_mr_bind: %s", why);
}

// What is kept beside each of its entries. Engine lock held.
Result<std::vector<protect::SideRecord*>> add_sides(Region& region) {
  std::vector<protect::SideRecord*> sides;
  for (size_t i = 0; i < region.entries(); ++i) {
    auto side = region.domain->engine->keys().add_side(region.entry(i));
    if (!side) return side.error();
    assert(*side != nullptr);
    sides.push_back(*side);
  }
  return sides;
}

// Calls with_side() for each that there is. Engine lock held, or nobody reads them.
template <typename WithSide>
void for_each_side(Region& region, WithSide&& with_side) {
  protect::KeyTable& keys = region.domain->engine->keys();
  for (size_t i = 0; i < region.entries(); ++i) {
    if (protect::SideRecord* side = keys.side(region.entry(i)); side != nullptr) with_side(*side);
  }
}

int bind_counter(Region& region, Cntr& counter, uint64_t flags) {
  const RegionRules& rules = region.domain->region_rules;
  if (setting_is("APERTURE_RMA_EVENT", "off"))
    return refuse(
        -FI_ENOSYS,
        "fi_mr_bind: events of regions are switched off (APERTURE_RMA_EVENT=off); unset that");
  if (flags != FI_REMOTE_WRITE)
    return refuse(-FI_EBADFLAGS,
                  "fi_mr_bind: flags 0x%" PRIx64 "; a counter is bound with FI_REMOTE_WRITE",
                  flags);
  if (!region.domain->counts_regions)
    return refuse(-FI_EINVAL,
                  "fi_mr_bind: neither the domain nor an endpoint in it was opened with "
                  "FI_RMA_EVENT, so nothing would ever be counted; ask for it in hints->caps");
  if (counter.domain != region.domain)
    return refuse(-FI_EDOMAIN, "fi_mr_bind: the counter belongs to another domain than the region");
  if (rules.rma_event && (region.wish.flags & FI_RMA_EVENT) == 0)
    return refuse(
        -FI_EINVAL,
        "fi_mr_bind: the region was registered without FI_RMA_EVENT, and the domain was opened "
        "with FI_MR_RMA_EVENT; pass that flag to fi_mr_reg");
  if (rules.rma_event && region.enabled) {
    return refuse_state("the region is enabled; bind its counters before fi_mr_enable");
  }
  nic::EngineGuard guard(*region.domain->engine);
  for (const Cntr* bound : region.counters) {
    if (bound != &counter) continue;
    return refuse(-FI_EINVAL, "fi_mr_bind: that counter is bound to this region already");
  }
  auto sides = add_sides(region);
  if (!sides) return fi_code(sides.error());
  // all or nothing
  region.counters.reserve(region.counters.size() + 1);
  counter.regions.reserve(counter.regions.size() + 1);
  for (protect::SideRecord* side : *sides) side->watchers.reserve(side->watchers.size() + 1);
  for (protect::SideRecord* side : *sides) side->watchers.push_back(&counter.watcher);
  region.counters.push_back(&counter);
  counter.regions.push_back(&region);
  return 0;
}

int bind_endpoint(Region& region, Ep& ep, uint64_t flags) {
  EpBody& body = *ep.body;
  if (flags != 0)
    return refuse(-FI_EBADFLAGS, "fi_mr_bind: flags 0x%" PRIx64 "; they must be 0 for an endpoint",
                  flags);
  if (body.domain != region.domain)
    return refuse(-FI_EDOMAIN,
                  "fi_mr_bind: the endpoint belongs to another domain than the region");
  const RegionRules& rules = region.domain->region_rules;
  nic::EngineGuard guard(*region.domain->engine);
  if (region.had_endpoint)
    return refuse(-FI_EINVAL, "fi_mr_bind: an endpoint %s to this region already; it can have one",
                  region.endpoint != nullptr ? "is bound" : "that is closed was bound");
  if ((rules.per_endpoint || rules.rma_event) && region.enabled) {
    return refuse_state("the region is enabled; bind its endpoint before fi_mr_enable");
  }
  drop_ended_windows(region);
  // what one of them gives, to everybody or to another endpoint, would be more than the region does
  if (!region.windows.empty())
    return refuse(-FI_EBUSY,
                  "fi_mr_bind: %zu memory windows are bound to this region, such as the one with "
                  "key 0x%" PRIx64 "; bind the region's endpoint first, its windows afterwards",
                  region.windows.size(), region.windows.front()->entry.key);
  auto sides = add_sides(region);
  if (!sides) return fi_code(sides.error());
  assert(region.endpoint == nullptr && body.id != 0);
  body.regions.push_back(&region);
  region.endpoint = &body;
  region.had_endpoint = true;
  for (protect::SideRecord* side : *sides) {
    side->endpoint = body.id;
    side->needs_endpoint = true;
  }
  return 0;
}

// ---- refresh ------------------------------------------------------------------------------------

bool lies_in_region(const Region& region, const iovec& part) noexcept {
  const auto from = reinterpret_cast<uintptr_t>(part.iov_base);
  for (const iovec& iov : region.wish.buffers) {
    const auto start = reinterpret_cast<uintptr_t>(iov.iov_base);
    if (from >= start && from - start <= iov.iov_len &&
        part.iov_len <= iov.iov_len - (from - start)) {
      return true;
    }
  }
  return false;
}

int check_parts(const Region& region, const struct fi_mr_modify& what) {
  if (what.flags != 0)
    return refuse(-FI_EBADFLAGS, "fi_mr_refresh: flags 0x%" PRIx64 "; there are none", what.flags);
  if (what.attr.mr_iov == nullptr && what.attr.iov_count != 0)
    return refuse(-FI_EINVAL, "fi_mr_refresh: iov is NULL with a count of %zu",
                  what.attr.iov_count);
  for (size_t i = 0; i < what.attr.iov_count; ++i) {
    const iovec& part = what.attr.mr_iov[i];
    if (lies_in_region(region, part)) continue;
    return refuse(
        -FI_EINVAL,
        "fi_mr_refresh: %p and %zu bytes (iov %zu) do not lie inside one buffer of the region; "
        "give parts of what was registered",
        part.iov_base, part.iov_len, i);
  }
  return 0;
}

// Looks again at the pages of one part, as far as the record has them. Nobody reads the record: the
// region is being revoked, or the engine's lock held.
void verify(protect::SideRecord& side, const iovec& part) {
  auto* from = static_cast<std::byte*>(part.iov_base);
  for (protect::Segment& s : side.segments) {
    const std::byte* begin = std::max<const std::byte*>(from, s.base);
    const std::byte* end = std::min<const std::byte*>(from + part.iov_len, s.base + s.length);
    if (s.pages && begin < end) s.pages->verify(begin, static_cast<uint64_t>(end - begin));
  }
}

}  // namespace

int bind_region(fid* fid, struct fid* what, uint64_t flags) noexcept {
  return guarded("fi_mr_bind", fid, [&]() -> int {
    auto& region = object_of<Region>(fid);
    if (what == nullptr) return refuse(-FI_EINVAL, "fi_mr_bind: bfid is NULL");
    // SYNC POINT: region-state
    if (region.state.load(std::memory_order_acquire) != RegionState::ready) {
      return refuse_state(
          "the registration has not completed, or the region is being closed; wait for its "
          "FI_MR_COMPLETE event");
    }
    switch (what->fclass) {
      case FI_CLASS_CNTR: return bind_counter(region, object_of<Cntr>(what), flags);
      case FI_CLASS_EP:
      case FI_CLASS_TX_CTX:
      case FI_CLASS_RX_CTX: return bind_endpoint(region, object_of<Ep>(what), flags);
      default:
        return refuse(
            -FI_EINVAL,
            "fi_mr_bind: an object of class %zu; counters and endpoints can be bound to a region",
            what->fclass);
    }
  });
}

int enable_region(Region& region) {
  if (region.enabled) return 0;
  if (region.domain->region_rules.per_endpoint && region.endpoint == nullptr)
    return refuse(
        -FI_EOPBADSTATE,
        "fi_mr_enable: no endpoint is bound to the region, and the domain was opened with "
        "FI_MR_ENDPOINT; call fi_mr_bind with an endpoint first");
  for (size_t i = 0; i < region.entries(); ++i) {
    const Status s = region.domain->engine->keys().enable(region.entry(i));
    if (!s) return fi_code(s);
  }
  region.enabled = true;
  return 0;
}

bool wait_until_quiet(Region& region) {
  protect::KeyTable& keys = region.domain->engine->keys();
  const uint64_t deadline_ns = now_ns() + kRevokeNs;
  bool quiet = true;
  for (size_t i = 0; i < region.entries(); ++i)
    quiet = keys.revocation().wait_until_quiet(region.entry(i), deadline_ns) && quiet;
  if (quiet) return true;
  region.state.store(RegionState::revoking, std::memory_order_release);
  return false;
}

// The page: disables the region, verifies what it is told of, enables it again. Where nothing is
// kept of pages (no FI_MR_MMU_NOTIFY, no FI_MR_ALLOCATED) there is nothing to update, and the
// region stays as it is all the time.
int refresh_region(Region& region, const struct fi_mr_modify& what) {
  if (const int rc = check_parts(region, what); rc != 0) return rc;
  const RegionRules& rules = region.domain->region_rules;
  if (!rules.mmu_notify && !rules.must_be_mapped) return 0;
  const bool parts = what.attr.iov_count != 0;
  const iovec* const first = parts ? what.attr.mr_iov : region.wish.buffers.data();
  const size_t count = parts ? what.attr.iov_count : region.wish.buffers.size();
  if (rules.must_be_mapped && region.wish.devices == nullptr) {
    for (size_t i = 0; i < count; ++i) {
      if (const int rc = populate(first[i], region.wish.access); rc != 0) return rc;
    }
  }
  protect::KeyTable& keys = region.domain->engine->keys();
  {
    nic::EngineGuard guard(*region.domain->engine);
    for (size_t i = 0; i < region.entries(); ++i) {
      if (Status s = keys.revocation().begin(region.entry(i)); !s) return fi_code(s);
    }
  }
  if (!wait_until_quiet(region))
    return refuse(-FI_EBUSY,
                  "fi_mr_refresh: a peer is still inside this region (key 0x%" PRIx64
                  ") and cannot be fenced; it is refused to everybody from now on, close it",
                  region.handle.key);
  for_each_side(region, [&](protect::SideRecord& side) {
    for (size_t i = 0; i < count; ++i) verify(side, first[i]);
  });
  for (size_t i = 0; i < region.entries(); ++i) {
    protect::RegionHandle& entry = region.entry(i);
    Result<protect::RegionHandle> next = keys.revocation().revive(entry);
    if (!next) return fi_code(next.error());
    assert(next->key == entry.key && next->generation != entry.generation);
    entry = *next;
  }
  // windows stay in force meanwhile, and keep records of their own
  nic::EngineGuard guard(*region.domain->engine);
  for (const Window* window : region.windows) {
    protect::SideRecord* side = keys.side(window->entry);
    for (size_t i = 0; side != nullptr && i < count; ++i) verify(*side, first[i]);
  }
  return 0;
}

bool closes_strictly() noexcept {
  if (setting_is("APERTURE_MR_CLOSE", "strict")) return true;
  return !setting_is("APERTURE_MR_CLOSE", "lenient") && demands_verbs();
}

bool closes_regions_first(const Domain& domain) noexcept {
  return domain.api_version >= kApi25;
}

void unbind_region(Region& region) noexcept {
  for (Cntr* counter : region.counters) {
    std::erase(counter->regions, &region);
    for_each_side(region, [counter](protect::SideRecord& side) {
      std::erase(side.watchers, &counter->watcher);
    });
  }
  region.counters.clear();
  if (region.endpoint != nullptr) std::erase(region.endpoint->regions, &region);
  region.endpoint = nullptr;
}

void Cntr::leave_regions() noexcept {
  nic::EngineGuard guard(*engine);
  // the pages of both would have the other closed first, so this order is there under all rules
  if (!regions.empty() && !closes_strictly()) {
    APERTURE_WARN("fi_close(cntr): it was bound to %zu region(s), the first with key 0x%" PRIx64
                  ", whose remote writes nobody counts from now on",
                  regions.size(), regions.front()->handle.key);
  }
  for (Region* region : regions) {
    std::erase(region->counters, this);
    for_each_side(*region,
                  [this](protect::SideRecord& side) { std::erase(side.watchers, &watcher); });
  }
  regions.clear();
}

int EpBody::check_regions() const noexcept {
  nic::EngineGuard guard(*domain->engine);
  if (regions.empty() || !closes_regions_first(*domain)) return 0;
  const uint64_t key = regions.front()->handle.key;
  if (closes_strictly())
    return refuse(
        -FI_EBUSY,
        "fi_close(ep): %zu region(s) are bound to this endpoint, such as the one with key "
        "0x%" PRIx64
        "; from API 2.5 on they are closed first; do so, or set APERTURE_MR_CLOSE=lenient",
        regions.size(), key);
  APERTURE_WARN(
      "fi_close(ep): %zu region(s) were bound to this endpoint, such as the one with key "
      "0x%" PRIx64 ", and are reached by nobody any more; from API 2.5 on they are closed first",
      regions.size(), key);
  return 0;
}

void EpBody::leave_regions() noexcept {
  for (Region* region : regions) {
    assert(region->had_endpoint);
    region->endpoint = nullptr;
    // and no other can be bound: reached by nobody
    for_each_side(*region, [](protect::SideRecord& side) { side.endpoint = 0; });
  }
  regions.clear();
}

std::string what_is_bound(const Region& region) {
  std::string out;
  char text[64];
  const auto add = [&](const char* what, const void* context) {
    std::snprintf(text, sizeof text, "%s%s (context %p)", out.empty() ? "" : " and ", what,
                  context);
    out += text;
  };
  for (const Cntr* counter : region.counters) add("a counter", counter->fid.fid.context);
  if (region.endpoint != nullptr) {
    add("an endpoint", region.endpoint->handles.front()->fid.fid.context);
  }
  return out;
}

}  // namespace aperture::provider
