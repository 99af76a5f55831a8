// The registering calls, fi_close and fi_control of regions: see mr.hpp.
#include "provider/mr.hpp"

#include <cassert>
#include <cinttypes>
#include <optional>

#include "base/clock.hpp"
#include "base/invariant.hpp"
#include "base/later_field.hpp"
#include "base/settings.hpp"
#include "nic/control_thread.hpp"
#include "provider/av_keys.hpp"
#include "provider/caller.hpp"
#include "provider/eq.hpp"
#include "provider/errors.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"
#include "provider/window.hpp"

namespace aperture::provider {

namespace {

extern fi_ops g_region_fid_ops;

// APERTURE_MR_DELAY_MS: asynchronous registrations end at least that late, so that a program that
// reads its key before the event is found out.
uint64_t delay_ns() noexcept {
  return setting_number("APERTURE_MR_DELAY_MS") * 1'000'000;
}

// On the control thread. Ends the process where the event finds no memory, not even in the reserve:
// whoever waits for it would wait for ever.
void register_now(Region& region) noexcept {
  region.timer = 0;
  assert(region.domain->eq != nullptr && !region.reported.load(std::memory_order_relaxed));
  const int rc = guarded("fi_mr_reg", [&region] { return register_region(region); });
  Eq& eq = *region.domain->eq;
  region.state.store(rc == 0 ? RegionState::ready : RegionState::failed, std::memory_order_release);
  if (rc == 0) {
    eq.report(FI_MR_COMPLETE, &region.fid.fid, region.wish.context, 0);
  } else {
    eq.report_error(&region.fid.fid, region.wish.context, 0, -rc,
                    "the registration failed; the log (APERTURE_LOG=warn) says why");
  }
  // whoever closes the region meanwhile waits for this: see close_region()
  region.reported.store(true, std::memory_order_release);
}

void begin_registration(Region& region, nic::ControlThread& control) {
  control.post([&region, &control] {
    if (const uint64_t delay = delay_ns(); delay != 0) {
      region.timer = control.add_timer(now_ns() + delay, [&region] { register_now(region); });
    } else {
      register_now(region);
    }
  });
}

// Sees to it that the control thread does not touch the region any more.
void stop_registration(Region& region) noexcept {
  Result<nic::ControlThread*> control = nic::ControlThread::instance();
  if (!control) return;  // a forked child: it does not run here
  (*control)->run([&region, thread = *control] {
    if (region.timer != 0) thread->cancel_timer(region.timer);
    region.timer = 0;
  });
}

// What one of the three calls was given.
struct RegisterCall {
  const iovec* iov;
  size_t count;
  uint64_t access;
  uint64_t offset;
  uint64_t requested_key;
  uint64_t flags;
  void* context;
  const void* caller;
  std::optional<memory::Kind> kind = std::nullopt;  // of device memory
  int device = memory::Driver::kAnyDevice;
  bool device_only = false;  // FI_HMEM_DEVICE_ONLY
};

void take_wish(const RegisterCall& call, RegionWish& wish) {
  // one too many is enough to be refused for
  if (call.iov != nullptr) {
    wish.buffers.assign(call.iov, std::min(call.count, kRegionIovLimit + 1));
  }
  wish.access = call.access;
  wish.requested_key = call.requested_key;
  wish.flags = call.flags;
  wish.context = call.context;
  wish.caller = call.caller;
}

// The tail of the structure has the application's layout: auth_key is there since 1.5, and iface
// and device are looked at only where FI_HMEM was granted. 0 or the refusal.
int take_iface(const Domain& domain, const fi_mr_attr& attr, RegisterCall& call) {
  if (!domain.region_rules.hmem) return 0;
  const fi_hmem_iface iface = later_field(attr.iface);
  const uint64_t where = call.flags & (FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY);
  call.flags &= ~where;
  if (where == (FI_HMEM_HOST_ALLOC | FI_HMEM_DEVICE_ONLY) ||
      (where == FI_HMEM_DEVICE_ONLY && iface == FI_HMEM_SYSTEM))
    return refuse(
        -FI_EINVAL,
        "fi_mr_regattr: FI_HMEM_DEVICE_ONLY, and the memory is said to be the host's too; "
        "leave one of them out");
  if (where == FI_HMEM_HOST_ALLOC) return 0;  // whichever library has allocated it
  call.device_only = where == FI_HMEM_DEVICE_ONLY;
  switch (iface) {
    case FI_HMEM_SYSTEM: return 0;
    case FI_HMEM_CUDA:
      call.kind = memory::Kind::cuda;
      call.device = later_field(attr.device.cuda);
      return 0;
    case FI_HMEM_ROCR: call.kind = memory::Kind::rocr; return 0;  // fi_mr(3) has no number for it
    case FI_HMEM_ZE:
      call.kind = memory::Kind::ze;
      call.device = later_field(attr.device.ze);
      return 0;
    default: break;
  }
  return refuse(-FI_ENOSYS,
                "fi_mr_regattr: iface %d is no memory that can be registered here; FI_HMEM_SYSTEM, "
                "FI_HMEM_CUDA, FI_HMEM_ROCR and FI_HMEM_ZE are",
                static_cast<int>(iface));
}

// The buffers are a device's: its driver says so. 0 or the refusal.
int find_devices(const RegisterCall& call, RegionWish& wish) {
  const char* why = "";
  auto driver = memory::driver(*call.kind, why);
  if (!driver)
    return refuse(-FI_ENOSYS, "fi_mr_regattr: no memory of %s is to be had: %s",
                  memory::name_of(*call.kind), why);
  wish.devices =
      std::make_unique<std::shared_ptr<const memory::Registration>[]>(wish.buffers.size());
  size_t at_host = 0;
  for (size_t i = 0; i < wish.buffers.size(); ++i) {
    const iovec& iov = wish.buffers.data()[i];
    if (iov.iov_len == 0)
      return refuse(-FI_EINVAL, "fi_mr_regattr: a buffer of no bytes in device memory");
    auto found = (*driver)->add(iov.iov_base, iov.iov_len, call.device, why);
    if (found.error() == Errc::not_supported && !call.device_only) {
      ++at_host;
      continue;
    }
    if (!found)
      return refuse(fi_code(found.error()), "fi_mr_regattr: %p and %zu bytes as memory of %s: %s",
                    iov.iov_base, iov.iov_len, memory::name_of(*call.kind), why);
    wish.devices[i] = std::move(*found);
  }
  if (at_host == 0) return 0;
  if (at_host != wish.buffers.size())
    return refuse(
        -FI_EINVAL,
        "fi_mr_regattr: some buffers are in a device of %s and some at the host; register "
        "them apart",
        memory::name_of(*call.kind));
  wish.devices.reset();  // the CPU copies what a driver has pinned; fi_mr(3) names such calls too
  return 0;
}

// The region is open no more; its memory goes back to its domain.
struct EndRegion {
  void operator()(Region* region) const noexcept {
    Domain& domain = *region->domain;
    std::destroy_at(region);
    nic::EngineGuard guard(*domain.engine);
    APERTURE_DEBUG_ASSERT(domain.regions != 0);
    domain.region_blocks.give(region);
    --domain.regions;
  }
};
using OpenRegion = std::unique_ptr<Region, EndRegion>;

OpenRegion open_region(Domain& domain) {
  void* block;
  {
    nic::EngineGuard guard(*domain.engine);
    block = domain.region_blocks.take();
    ++domain.regions;
  }
  // every member has its initializer: wiping the whole before them takes as long as allocating it
  OpenRegion region(new (block) Region);
  region->domain = &domain;
  return region;
}

int add_region(fid* fid, const RegisterCall& call, protect::DomainId pd,
               std::vector<protect::DomainId>&& key_domains, fid_mr** out) {
  if (fid == nullptr || fid->fclass != FI_CLASS_DOMAIN || out == nullptr)
    return refuse(-FI_EINVAL,
                  "fi_mr_reg: the domain or mr is NULL, or something else than a domain is given");
  if (call.offset != 0)
    return refuse(-FI_EINVAL, "fi_mr_reg: offset %" PRIu64 "; fi_mr(3) reserves it, it must be 0",
                  call.offset);
  auto& domain = object_of<Domain>(fid);
  if (domain.av_keys && key_domains.empty())
    return refuse(-FI_ENOSYS,
                  "fi_mr_reg and fi_mr_regv are not there for domains with FI_AV_AUTH_KEY; use "
                  "fi_mr_regattr, whose auth_key names the address vector");
  OpenRegion region = open_region(domain);
  take_wish(call, region->wish);
  region->wish.pd = pd != 0 ? pd : domain.engine->domain();
  region->wish.key_domains = std::move(key_domains);
  if (const int rc = check_wish(domain, region->wish); rc != 0) return rc;
  if (call.kind) {
    if (const int rc = find_devices(call, region->wish); rc != 0) return rc;
  }
  region->fid.fid = {FI_CLASS_MR, call.context, &g_region_fid_ops};
  region->fid.key = FI_KEY_NOTAVAIL;
  nic::ControlThread* later = nullptr;  // which registers, or this call does
  if (domain.async_regions) {
    Result<nic::ControlThread*> control = nic::ControlThread::instance();
    if (!control)
      return refuse(fi_code(control.error()), "fi_mr_reg: no control thread (%s)",
                    describe(control.error()));
    later = *control;
  } else {
    if (const int rc = register_region(*region); rc != 0) return rc;
    region->state.store(RegionState::ready, std::memory_order_release);
  }
  *out = &region->fid;  // nothing fails any more; before the event can be read, as the page says
  if (later != nullptr) begin_registration(*region, *later);
  (void)region.release();
  return 0;
}

int reg(fid* fid, const void* buf, size_t len, uint64_t access, uint64_t offset,
        uint64_t requested_key, uint64_t flags, fid_mr** mr, void* context) noexcept {
  const void* caller = caller_of(__builtin_return_address(0), __builtin_frame_address(0));
  return guarded("fi_mr_reg", fid, [&] {
    const iovec iov{const_cast<void*>(buf), len};
    return add_region(fid, {&iov, 1, access, offset, requested_key, flags, context, caller}, 0, {},
                      mr);
  });
}

int regv(fid* fid, const iovec* iov, size_t count, uint64_t access, uint64_t offset,
         uint64_t requested_key, uint64_t flags, fid_mr** mr, void* context) noexcept {
  const void* caller = caller_of(__builtin_return_address(0), __builtin_frame_address(0));
  return guarded("fi_mr_regv", fid, [&] {
    return add_region(fid, {iov, count, access, offset, requested_key, flags, context, caller}, 0,
                      {}, mr);
  });
}

int regattr(fid* fid, const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) noexcept {
  const void* caller = caller_of(__builtin_return_address(0), __builtin_frame_address(0));
  return guarded("fi_mr_regattr", fid, [&]() -> int {
    if (fid == nullptr || fid->fclass != FI_CLASS_DOMAIN || attr == nullptr)
      return refuse(-FI_EINVAL, "fi_mr_regattr: domain or attr is NULL");
    auto& domain = object_of<Domain>(fid);
    RegisterCall call{attr->mr_iov,        attr->iov_count, attr->access,  attr->offset,
                      attr->requested_key, flags,           attr->context, caller};
    if (const int rc = take_iface(domain, *attr, call); rc != 0) return rc;
    std::vector<protect::DomainId> key_domains;
    if (domain.av_keys) {
      const int rc = take_region_keys(domain, later_field(attr->auth_key),
                                      later_field(attr->auth_key_size), flags, key_domains);
      if (rc != 0) return rc;
      call.flags &= ~kAuthKeyFlag;
    }
    const bool keyed = domain.api_version >= kApi15 && !domain.av_keys;
    const auto pd = keyed ? pd_of_auth_key(domain, later_field(attr->auth_key),
                                           later_field(attr->auth_key_size))
                          : pd_of_auth_key(domain, nullptr, 0);
    if (!pd) return fi_code(pd.error());
    return add_region(fid, call, pd.value(), std::move(key_domains), mr);
  });
}

// The region lets go of what is bound to it, or it does not: -FI_EBUSY. Engine lock held.
int let_go(Region& region) {
  const bool in_order = region.counters.empty() && closes_regions_first(*region.domain);
  if (!in_order && closes_strictly())
    return refuse(-FI_EBUSY,
                  "fi_close(mr): %s is bound to this region (key 0x%" PRIx64
                  "); close that first, as fi_mr(3) has it, or set APERTURE_MR_CLOSE=lenient",
                  what_is_bound(region).c_str(), region.handle.key);
  if (!in_order) {
    APERTURE_WARN("fi_close(mr): %s was bound to this region (key 0x%" PRIx64
                  ") and is no more; fi_mr(3) lets a provider answer -FI_EBUSY, so close that "
                  "first",
                  what_is_bound(region).c_str(), region.handle.key);
  }
  unbind_region(region);
  return 0;
}

int refuse_windows(const Region& region) {
  const Window& window = *region.windows.front();
  return refuse(
      -FI_EBUSY,
      "fi_close(mr): %zu memory window(s) are bound to this region (key 0x%" PRIx64
      "), such as the one with key 0x%" PRIx64 " (context %p); invalidate or close them first",
      region.windows.size(), region.handle.key, window.entry.key, window.handle.fid.context);
}

// Revocation: docs/revocation.md. The begin is inside the engine's lock, the wait outside every
// lock.
int revoke(Region& region) {
  protect::KeyTable& keys = region.domain->engine->keys();
  {
    nic::EngineGuard guard(*region.domain->engine);
    if (!region.windows.empty()) [[unlikely]] {
      drop_ended_windows(region);
      if (!region.windows.empty()) return refuse_windows(region);
    }
    if (region.endpoint != nullptr || !region.counters.empty()) {
      if (const int rc = let_go(region); rc != 0) return rc;
    }
    // what was closed before, in a call that ran into its deadline, is over
    const bool again = region.state.load(std::memory_order_relaxed) == RegionState::revoking;
    bool busy = false;
    for (size_t i = 0; i < region.entries(); ++i) {
      const Status s = keys.revocation().revoke_now(region.entry(i));
      if (s.error() == Errc::busy) {
        busy = true;
      } else if (!s && !(again && s.error() == Errc::no_entry)) {
        return fi_code(s);
      }
    }
    if (!busy) return 0;
  }
  if (!wait_until_quiet(region))
    return refuse(
        -FI_EBUSY,
        "fi_close(mr): a peer is still inside this region (key 0x%" PRIx64
        ") and cannot be fenced; it is refused to everybody from now on, call fi_close again",
        region.handle.key);
  bool over = true;
  for (size_t i = 0; i < region.entries(); ++i)
    over = keys.revocation().poll(region.entry(i)) && over;
  return over ? 0 : -FI_EBUSY;
}

int close_region(fid* fid) noexcept {
  return guarded_close("fi_close(mr)", fid, [&]() -> int {
    auto& region = object_of<Region>(fid);
    // SYNC POINT: region-reported (a region in force may have its event still to come)
    if (region.domain->async_regions && !region.reported.load(std::memory_order_acquire)) {
      stop_registration(region);
    }
    // SYNC POINT: region-state
    const RegionState state = region.state.load(std::memory_order_acquire);
    if (state == RegionState::ready || state == RegionState::revoking) {
      if (const int rc = revoke(region); rc != 0) return rc;
    }
    if (region.domain->async_regions) region.domain->eq->forget(fid);
    EndRegion()(&region);
    return 0;
  });
}

int control_region(fid* fid, int command, void* arg) noexcept {
  return guarded("fi_control(mr)", fid, [&]() -> int {
    auto& region = object_of<Region>(fid);
    if (region.state.load(std::memory_order_acquire) != RegionState::ready &&
        (command == FI_GET_RAW_MR || command == FI_REFRESH || command == FI_ENABLE)) {
      return refuse(
          -FI_EOPBADSTATE,
          "fi_mr: the registration has not completed, or the region is being closed; wait for its "
          "FI_MR_COMPLETE event");
    }
    switch (command) {
      case FI_GET_RAW_MR:
        return raw_attr_of(region, static_cast<const struct fi_mr_raw_attr*>(arg));
      case FI_REFRESH:
        if (arg == nullptr) return -FI_EINVAL;
        return refresh_region(region, *static_cast<const struct fi_mr_modify*>(arg));
      case FI_ENABLE: return enable_region(region);
      default: return refuse(-FI_ENOSYS, "fi_control(mr): command %d is not offered", command);
    }
  });
}

fi_ops g_region_fid_ops = fid_ops<"mr">(close_region, bind_region, control_region);

}  // namespace

fi_ops_mr g_region_ops = {.size = sizeof(fi_ops_mr), .reg = reg, .regv = regv, .regattr = regattr};

}  // namespace aperture::provider
