// Allocating, binding, invalidating and closing memory windows: see window.hpp. Control path.
#include "provider/window.hpp"

#include <cassert>
#include <cinttypes>

#include "base/clock.hpp"
#include "provider/caller.hpp"
#include "provider/ep.hpp"
#include "provider/errors.hpp"
#include "provider/mr.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

// What of a region's local rights lets bytes out of it, and into it: windows with remote rights
// need as much.
constexpr uint64_t kLetsOut = FI_SEND | FI_WRITE | FI_REMOTE_READ;
constexpr uint64_t kLetsIn = FI_RECV | FI_READ | FI_REMOTE_WRITE;

protect::KeyTable& keys_of(const Window& window) noexcept {
  return window.domain->engine->keys();
}

uint64_t length_of(const Region& region) noexcept {
  uint64_t total = 0;
  for (const iovec& iov : region.wish.buffers) total += iov.iov_len;
  return total;
}

// ---- what a bind may ask for --------------------------------------------------------------------

int check_region(const Window& window, const aperture_window_bind& bind) {
  if (bind.mr == nullptr || bind.mr->fid.fclass != FI_CLASS_MR)
    return refuse(-FI_EINVAL, "aperture_window bind: mr is not a memory region");
  const auto& region = object_of<Region>(bind.mr);
  if (region.domain != window.domain)
    return refuse(
        -FI_EDOMAIN,
        "aperture_window bind: the region belongs to another domain than the window; allocate the "
        "window there");
  // SYNC POINT: region-state
  if (region.state.load(std::memory_order_acquire) != RegionState::ready || !region.enabled)
    return refuse(
        -FI_EOPBADSTATE,
        "aperture_window bind: the region is not registered yet, not enabled, or being closed; "
        "wait for its FI_MR_COMPLETE event and call fi_mr_enable first, where the domain's mr_mode "
        "asks for that");
  return 0;
}

int check_rights(const Region& region, uint64_t access) {
  if (access == 0 || (access & ~(FI_REMOTE_READ | FI_REMOTE_WRITE)) != 0)
    return refuse(-FI_EINVAL,
                  "aperture_window bind: access 0x%" PRIx64
                  "; a window gives FI_REMOTE_READ, FI_REMOTE_WRITE or both",
                  access);
  const bool reads = (access & FI_REMOTE_READ) != 0;
  const bool writes = (access & FI_REMOTE_WRITE) != 0;
  if ((reads && (region.wish.access & kLetsOut) == 0) ||
      (writes && (region.wish.access & kLetsIn) == 0)) {
    return refuse(-FI_EACCES,
                  "aperture_window bind: the region was registered with access 0x%" PRIx64
                  ", which lets no bytes %s it; register it with %s",
                  region.wish.access,
                  reads && (region.wish.access & kLetsOut) == 0 ? "out of" : "into",
                  reads && (region.wish.access & kLetsOut) == 0 ? "FI_SEND or FI_WRITE as well"
                                                                : "FI_RECV or FI_READ as well");
  }
  return 0;
}

int check_range(const Region& region, const aperture_window_bind& bind) {
  const uint64_t total = length_of(region);
  // what lies before the region wraps to beyond its end; below, subtract and never add
  const uint64_t offset = bind.addr - region.base;
  if (bind.length != 0 && offset <= total && bind.length <= total - offset) return 0;
  return refuse(-FI_EINVAL,
                "aperture_window bind: 0x%" PRIx64 " and %" PRIu64
                " bytes; give more than 0 bytes inside the region, which has %" PRIu64
                " from 0x%" PRIx64,
                bind.addr, bind.length, total, region.base);
}

int check_endpoint(const Region& region, const aperture_window_bind& bind) {
  if (bind.ep == nullptr) {
    if (bind.peer == FI_ADDR_UNSPEC) return 0;
    return refuse(-FI_EINVAL,
                  "aperture_window bind: a peer without an endpoint; name the endpoint too");
  }
  if (!is_endpoint(bind.ep->fid.fclass))
    return refuse(-FI_EINVAL, "aperture_window bind: ep is not an endpoint");
  const auto& ep = object_of<Ep>(bind.ep);
  const EpBody& body = *ep.body;
  if (body.domain != region.domain)
    return refuse(-FI_EDOMAIN,
                  "aperture_window bind: the endpoint belongs to another domain than the region");
  if (body.auth_key.pd != region.wish.pd)
    return refuse(
        -FI_EDOMAIN,
        "aperture_window bind: endpoint and region have different authorization keys, so nobody "
        "could reach the region through it; register the region with the endpoint's auth_key");
  if (bind.peer == FI_ADDR_UNSPEC) return 0;
  if (body.kind == EpKind::connected)
    return refuse(
        -FI_EINVAL,
        "aperture_window bind: a connected endpoint has one peer; give FI_ADDR_UNSPEC for it");
  if (body.core == nullptr)
    return refuse(-FI_EOPBADSTATE,
                  "aperture_window bind: the endpoint is not enabled; call fi_enable first");
  return 0;
}

int check_bind(const Window& window, const aperture_window_bind& bind) {
  if (bind.size < sizeof bind)
    return refuse(-FI_EINVAL,
                  "aperture_window bind: size %zu; set it to sizeof(struct aperture_window_bind)",
                  bind.size);
  if ((bind.flags & ~APERTURE_WINDOW_ZERO_BASED) != 0)
    return refuse(-FI_EBADFLAGS,
                  "aperture_window bind: flags 0x%" PRIx64 "; APERTURE_WINDOW_ZERO_BASED is all",
                  bind.flags);
  if (const int rc = check_region(window, bind); rc != 0) return rc;
  const auto& region = object_of<Region>(bind.mr);
  if (const int rc = check_rights(region, bind.access); rc != 0) return rc;
  if (const int rc = check_range(region, bind); rc != 0) return rc;
  return check_endpoint(region, bind);
}

// ---- the entry ----------------------------------------------------------------------------------

// The buffers of the region from `offset` on, `length` bytes of them.
std::vector<protect::Segment> cut(const Region& region, uint64_t offset, uint64_t length) {
  std::vector<protect::Segment> segments;
  const RegionWish& wish = region.wish;
  for (size_t i = 0; i < wish.buffers.size(); ++i) {
    const iovec& iov = wish.buffers.data()[i];
    if (length == 0) break;
    if (offset >= iov.iov_len) {
      offset -= iov.iov_len;
      continue;
    }
    const uint64_t n = std::min<uint64_t>(length, iov.iov_len - offset);
    segments.push_back({static_cast<std::byte*>(iov.iov_base) + offset, n, std::nullopt,
                        wish.devices == nullptr ? nullptr : wish.devices[i]});
    offset = 0;
    length -= n;
  }
  return segments;
}

// Everything about the entry but whom it is bound to; `side` is null for most.
protect::RegionSpec spec_of(const Region& region, const aperture_window_bind& bind,
                            std::unique_ptr<protect::SideRecord>& side) {
  using protect::Rights;
  const RegionRules& rules = region.domain->region_rules;
  std::vector<protect::Segment> segments = cut(region, bind.addr - region.base, bind.length);
  protect::RegionSpec spec;
  spec.pd = region.wish.pd;
  spec.base = reinterpret_cast<uint64_t>(segments.front().base);
  spec.length = bind.length;
  if ((bind.access & FI_REMOTE_READ) != 0) spec.rights |= Rights::remote_read;
  if ((bind.access & FI_REMOTE_WRITE) != 0) {
    spec.rights |= Rights::remote_write | Rights::remote_atomic;
  }
  spec.zero_based = !rules.virtual_addresses || (bind.flags & APERTURE_WINDOW_ZERO_BASED) != 0;
  if (!spec.zero_based) spec.origin = bind.addr;
  const bool persistent = (region.wish.flags & FI_RMA_PMEM) != 0;
  const bool in_device = segments.front().device != nullptr;
  if (segments.size() == 1 && !persistent && !rules.mmu_notify && !in_device) return spec;
  side = std::make_unique<protect::SideRecord>();
  side->persistent = persistent;
  side->in_device = in_device;
  for (protect::Segment& s : segments) {
    if (rules.mmu_notify && !in_device) s.pages.emplace(s.base, s.length);
  }
  side->segments = std::move(segments);
  return spec;
}

// Who alone may use it: an endpoint, a queue pair of it, or (0) everybody. Engine lock held.
Result<protect::EndpointId> holder_of(const Region& region, const aperture_window_bind& bind) {
  EpBody* body = bind.ep != nullptr ? object_of<Ep>(bind.ep).body : region.endpoint;
  if (region.endpoint != nullptr && body != region.endpoint)
    return refuse(
        Errc::invalid,
        "aperture_window bind: the region is bound to another endpoint; windows of it are reached "
        "through that one");
  if (body == nullptr) return protect::EndpointId{0};
  if (bind.peer == FI_ADDR_UNSPEC) return body->id;
  const Result<protect::EndpointId> number = body->core->queue_pair_number(bind.peer);
  if (!number) {
    APERTURE_WARN("aperture_window bind: no connection to address %" PRIu64
                  " can be begun (%s); insert it into the address vector first",
                  bind.peer, describe(number.error()));
    return number.error() == Errc::no_entry ? Errc::invalid : number.error();
  }
  return number;
}

// It is bound to nothing any more. Engine lock held.
void leave_region(Window& window) noexcept {
  if (window.region != nullptr) {
    [[maybe_unused]] const size_t gone = std::erase(window.region->windows, &window);
    assert(gone == 1);
  }
  window.region = nullptr;
  window.entry = {};
}

int bind_now(Window& window, const aperture_window_bind& bind, const void* caller, uint64_t* key) {
  if (const int rc = check_bind(window, bind); rc != 0) return rc;
  auto& region = object_of<Region>(bind.mr);
  std::unique_ptr<protect::SideRecord> side;
  protect::RegionSpec spec = spec_of(region, bind, side);
  spec.registered_at = caller;
  const nic::EngineGuard guard(*window.domain->engine);
  protect::KeyTable& keys = keys_of(window);
  if (window.entry.generation != 0 && !keys.entries().is_over(window.entry))
    return refuse(-FI_EBUSY,
                  "aperture_window bind: the window is bound (key 0x%" PRIx64
                  "); invalidate it first",
                  window.entry.key);
  if (region.had_endpoint && region.endpoint == nullptr)
    return refuse(-FI_EOPBADSTATE,
                  "aperture_window bind: the endpoint that the region was bound to is closed, so "
                  "nobody could reach the window; close the region and register it anew");
  const Result<protect::EndpointId> holder = holder_of(region, bind);
  if (!holder) return fi_code(holder.error());
  spec.bound_to = holder.value();
  region.windows.reserve(region.windows.size() + 1);
  Result<protect::RegionHandle> entry = keys.add(spec, std::move(side));
  if (!entry)
    return refuse(fi_code(entry.error()), "aperture_window bind: %s", describe(entry.error()));
  leave_region(window);  // what a peer has invalidated
  assert(window.region == nullptr && entry->generation != 0);
  window.entry = *entry;
  window.region = &region;
  window.of_one = spec.bound_to != 0;
  region.windows.push_back(&window);
  window.handle.key = entry->key;
  *key = entry->key;
  return 0;
}

// Revocation, as of regions: the begin is inside the engine's lock, the wait outside every lock.
int end_binding(Window& window) {
  protect::KeyTable& keys = keys_of(window);
  bool waits = false;
  {
    const nic::EngineGuard guard(*window.domain->engine);
    if (!keys.entries().is_over(window.entry)) {
      const Status s = window.of_one ? keys.revocation().revoke_bound(window.entry)
                                     : keys.revocation().revoke_now(window.entry);
      waits = s.error() == Errc::busy;
    }
    if (!waits) leave_region(window);
  }
  if (waits) {
    if (!keys.revocation().wait_until_quiet(window.entry, now_ns() + kRevokeNs) ||
        !keys.revocation().poll(window.entry)) {
      return refuse(-FI_EBUSY,
                    "aperture_window: a peer is still inside this window (key 0x%" PRIx64
                    ") and cannot be fenced; it is refused to everybody from now on, call again",
                    window.entry.key);
    }
    const nic::EngineGuard guard(*window.domain->engine);
    leave_region(window);
  }
  window.handle.key = FI_KEY_NOTAVAIL;
  return 0;
}

// ---- the calls ----------------------------------------------------------------------------------

int close_window(fid* fid) noexcept {
  return guarded_close("fi_close(window)", fid, [&]() -> int {
    auto& window = object_of<Window>(fid);
    if (window.entry.generation != 0) {
      if (const int rc = end_binding(window); rc != 0) return rc;
    }
    Domain& domain = *window.domain;
    delete &window;
    domain.uses.drop();
    return 0;
  });
}

fi_ops g_window_fid_ops = fid_ops<"window">(
    close_window, NotOffered<"fi_bind(window): a window is bound by the bind call of its ops">{},
    refuse_control<"window">);

int allocate(fid_domain* fid, const aperture_window_attr* attr, aperture_window** out) noexcept {
  return guarded("aperture_window allocate", fid, [&]() -> int {
    if (fid == nullptr || fid->fid.fclass != FI_CLASS_DOMAIN || out == nullptr)
      return refuse(-FI_EINVAL,
                    "aperture_window allocate: domain or window is NULL, or it is no domain");
    if (attr != nullptr && attr->size < sizeof *attr)
      return refuse(
          -FI_EINVAL,
          "aperture_window allocate: size %zu; set it to sizeof(struct aperture_window_attr)",
          attr->size);
    if (attr != nullptr && attr->flags != 0)
      return refuse(-FI_EBADFLAGS, "aperture_window allocate: flags 0x%" PRIx64 "; they must be 0",
                    attr->flags);
    if (object_of<Domain>(fid).av_keys)
      return refuse(-FI_EOPNOTSUPP,
                    "aperture_window allocate: a window is of one protection domain, and regions "
                    "have several in a domain with FI_AV_AUTH_KEY; open another domain");
    auto window = std::make_unique<Window>();
    window->domain = &object_of<Domain>(fid);
    window->handle.fid = {APERTURE_CLASS_WINDOW, attr != nullptr ? attr->context : nullptr,
                          &g_window_fid_ops};
    window->handle.key = FI_KEY_NOTAVAIL;
    window->domain->uses.add();
    *out = &window.release()->handle;
    return 0;
  });
}

bool is_window(const aperture_window* handle) noexcept {
  return handle != nullptr && handle->fid.fclass == APERTURE_CLASS_WINDOW;
}

int bind_window(aperture_window* handle, const aperture_window_bind* bind, uint64_t* key) noexcept {
  const void* caller = __builtin_return_address(0);
  return guarded("aperture_window bind", handle, [&]() -> int {
    if (!is_window(handle) || bind == nullptr || key == nullptr)
      return refuse(-FI_EINVAL,
                    "aperture_window bind: window, bind or key is NULL, or it is no window");
    return bind_now(object_of<Window>(handle), *bind, caller, key);
  });
}

int invalidate(aperture_window* handle) noexcept {
  return guarded("aperture_window invalidate", handle, [&]() -> int {
    if (!is_window(handle))
      return refuse(-FI_EINVAL, "aperture_window invalidate: it is no window");
    auto& window = object_of<Window>(handle);
    if (window.entry.generation == 0)
      return refuse(-FI_EOPBADSTATE, "aperture_window invalidate: the window is not bound");
    return end_binding(window);
  });
}

aperture_window_ops g_window_ops = {
    .size = sizeof(aperture_window_ops),
    .allocate = allocate,
    .bind = bind_window,
    .invalidate = invalidate,
    .send_inv = send_inv,
};

}  // namespace

int open_domain_ops(fid* fid, const char* name, uint64_t flags, void** ops, void*) noexcept {
  if (fid == nullptr || name == nullptr || ops == nullptr)
    return refuse(-FI_EINVAL, "fi_open_ops(domain): the domain, name or ops is NULL");
  if (flags != 0)
    return refuse(-FI_EBADFLAGS, "fi_open_ops(domain): flags 0x%" PRIx64 "; they must be 0", flags);
  if (std::strcmp(name, APERTURE_WINDOW_OPS) != 0)
    return refuse(-FI_ENOSYS,
                  "fi_open_ops(domain): \"%s\" is not offered; \"%s\" is, see aperture/fi_window.h",
                  name, APERTURE_WINDOW_OPS);
  *ops = &g_window_ops;
  return 0;
}

void drop_ended_windows(Region& region) noexcept {
  const protect::KeyTable& keys = region.domain->engine->keys();
  std::erase_if(region.windows, [&keys](Window* window) {
    if (!keys.entries().is_over(window->entry)) return false;
    window->region = nullptr;
    return true;
  });
}

}  // namespace aperture::provider
