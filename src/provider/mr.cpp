// Memory regions: fi_ops_mr and fid_mr. man 3 fi_mr.
//
// A region lives in the process's key table from the return of fi_mr_reg to the return of fi_close:
// when that returns, no earlier remote access can land any more. Any thread.
#include <rdma/fi_domain.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/clock.hpp"
#include "protect/key_table.hpp"
#include "provider/domain.hpp"
#include "provider/eq.hpp"
#include "provider/errors.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

struct Region {
  fid_mr fid{};
  Domain* domain = nullptr;
  protect::RegionHandle handle;
  uint64_t base = 0;  // what peers call its first byte
};

// What a registering call asks for, whichever of the three it was.
struct Asked {
  const iovec* iov = nullptr;
  size_t iov_count = 0;
  uint64_t access = 0;
  uint64_t offset = 0;
  uint64_t requested_key = 0;
  uint64_t flags = 0;
  void* context = nullptr;
  const void* caller = nullptr;  // for the explanation of refused accesses
};

constexpr uint64_t kAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr uint64_t kRevokeNs = 5'000'000'000;  // then -FI_EBUSY, and fi_close may be called again

protect::Rights rights_of(uint64_t access) noexcept {
  using protect::Rights;
  Rights r = Rights::none;
  if ((access & FI_SEND) != 0) r |= Rights::send;
  if ((access & FI_RECV) != 0) r |= Rights::recv;
  if ((access & FI_READ) != 0) r |= Rights::local_write;  // result of our reads
  if ((access & FI_WRITE) != 0) r |= Rights::local_read;  // source of our writes
  if ((access & FI_REMOTE_READ) != 0) r |= Rights::remote_read;
  if ((access & FI_REMOTE_WRITE) != 0) r |= Rights::remote_write | Rights::remote_atomic;
  return r;
}

// msync with MS_ASYNC does nothing but say whether every page of the range is mapped.
bool is_mapped(const iovec& iov) noexcept {
  if (iov.iov_len == 0) return true;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(iov.iov_base);
  const uintptr_t from = start & ~(page - 1);
  return ::msync(reinterpret_cast<void*>(from), start + iov.iov_len - from, MS_ASYNC) == 0;
}

int check_region(const Domain& domain, const Asked& a) {
  if (a.iov == nullptr || a.iov_count == 0) {
    APERTURE_WARN("fi_mr_reg: no buffer is given");
    return -FI_EINVAL;
  }
  if (a.iov_count > kRegionIovLimit) {
    APERTURE_WARN(
        "fi_mr_regv: %zu buffers for one region; mr_iov_limit is %zu, register each by itself",
        a.iov_count, kRegionIovLimit);
    return -FI_EINVAL;
  }
  if (a.offset != 0) {
    APERTURE_WARN("fi_mr_reg: offset %llu; fi_mr(3) reserves it, it must be 0",
                  static_cast<unsigned long long>(a.offset));
    return -FI_EINVAL;
  }
  if ((a.access & ~kAccess) != 0) {
    APERTURE_WARN(
        "fi_mr_reg: access 0x%llx has bits that fi_mr(3) does not know; use FI_SEND, FI_RECV, "
        "FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE",
        static_cast<unsigned long long>(a.access));
    return -FI_EINVAL;
  }
  if (a.flags != 0) {
    APERTURE_WARN(
        "fi_mr_reg: flags 0x%llx are not offered (FI_RMA_EVENT, FI_RMA_PMEM and device memory "
        "are not yet); pass 0",
        static_cast<unsigned long long>(a.flags));
    return -FI_EBADFLAGS;
  }
  const auto start = reinterpret_cast<uintptr_t>(a.iov->iov_base);
  if (a.iov->iov_len > ~uintptr_t{0} - start) {
    APERTURE_WARN("fi_mr_reg: %p and %zu bytes run past the end of memory", a.iov->iov_base,
                  a.iov->iov_len);
    return -FI_EINVAL;
  }
  if (domain.region_rules.must_be_mapped && !is_mapped(*a.iov)) {
    APERTURE_WARN(
        "fi_mr_reg: not all of %p and %zu bytes is mapped, and the domain was opened with "
        "FI_MR_ALLOCATED; allocate it first, or do not offer that bit",
        a.iov->iov_base, a.iov->iov_len);
    return -FI_EFAULT;
  }
  return 0;
}

protect::RegionSpec spec_of(const Domain& domain, const Asked& a) {
  protect::RegionSpec spec;
  spec.pd = domain.engine->domain();
  spec.base = reinterpret_cast<uint64_t>(a.iov->iov_base);
  spec.length = a.iov->iov_len;
  spec.rights = rights_of(a.access);
  spec.zero_based = !domain.region_rules.virtual_addresses;
  if (!domain.region_rules.provider_keys) spec.requested_key = a.requested_key;
  spec.registered_at = a.caller;
  return spec;
}

int explain_refusal(Errc e, const Asked& a) {
  switch (e) {
    case Errc::no_key:
      APERTURE_WARN(
          "fi_mr_reg: key 0x%llx is in use in this domain; request another, or open the "
          "domain with FI_MR_PROV_KEY",
          static_cast<unsigned long long>(a.requested_key));
      break;
    case Errc::key_rejected:
      APERTURE_WARN("fi_mr_reg: key 0x%llx (FI_KEY_NOTAVAIL) cannot be requested; choose another",
                    static_cast<unsigned long long>(a.requested_key));
      break;
    default: APERTURE_WARN("fi_mr_reg: %s", describe(e));
  }
  return fi_code(e);
}

extern fi_ops g_region_fid_ops;

int add_region(fid* fid, const Asked& a, fid_mr** out) {
  if (fid == nullptr || fid->fclass != FI_CLASS_DOMAIN || out == nullptr) {
    APERTURE_WARN("fi_mr_reg: the domain or mr is NULL, or something else than a domain is given");
    return -FI_EINVAL;
  }
  auto& domain = object_of<Domain>(fid);
  if (const int rc = check_region(domain, a); rc != 0) return rc;
  auto region = std::make_unique<Region>();
  const protect::RegionSpec spec = spec_of(domain, a);
  Result<protect::RegionHandle> handle = domain.engine->keys().add(spec);
  if (!handle) return explain_refusal(handle.error(), a);
  region->domain = &domain;
  region->handle = *handle;
  region->base = spec.zero_based ? 0 : spec.base;
  region->fid.fid = {FI_CLASS_MR, a.context, &g_region_fid_ops};
  region->fid.mem_desc = region.get();
  region->fid.key = handle->key;
  domain.uses.add();
  Region* made = region.release();
  *out = &made->fid;  // before the event, as the page says
  if (domain.async_regions) {
    domain.eq->report(FI_MR_COMPLETE, &made->fid.fid, a.context, 0);
  }
  return 0;
}

int reg(fid* fid, const void* buf, size_t len, uint64_t access, uint64_t offset,
        uint64_t requested_key, uint64_t flags, fid_mr** mr, void* context) noexcept {
  const void* caller = __builtin_return_address(0);
  return guarded("fi_mr_reg", [&] {
    const iovec iov{const_cast<void*>(buf), len};
    return add_region(fid, {&iov, 1, access, offset, requested_key, flags, context, caller}, mr);
  });
}

int regv(fid* fid, const iovec* iov, size_t count, uint64_t access, uint64_t offset,
         uint64_t requested_key, uint64_t flags, fid_mr** mr, void* context) noexcept {
  const void* caller = __builtin_return_address(0);
  return guarded("fi_mr_regv", [&] {
    return add_region(fid, {iov, count, access, offset, requested_key, flags, context, caller}, mr);
  });
}

int regattr(fid* fid, const fi_mr_attr* attr, uint64_t flags, fid_mr** mr) noexcept {
  const void* caller = __builtin_return_address(0);
  return guarded("fi_mr_regattr", [&]() -> int {
    if (fid == nullptr || attr == nullptr) {
      APERTURE_WARN("fi_mr_regattr: domain or attr is NULL");
      return -FI_EINVAL;
    }
    // the structure has the application's layout: auth_key is there since 1.5, and what comes after
    // it matters only with FI_HMEM, which is not offered
    if (object_of<Domain>(fid).api_version >= kApi15 && attr->auth_key_size != 0) {
      APERTURE_WARN("fi_mr_regattr: authorization keys are not offered yet; leave auth_key_size 0");
      return -FI_EINVAL;
    }
    return add_region(fid,
                      {attr->mr_iov, attr->iov_count, attr->access, attr->offset,
                       attr->requested_key, flags, attr->context, caller},
                      mr);
  });
}

// Revocation: revocation.md. The begin is inside the engine's lock, the wait outside every lock.
int close_region(fid* fid) noexcept {
  return guarded("fi_close(mr)", [&]() -> int {
    auto& region = object_of<Region>(fid);
    protect::KeyTable& keys = region.domain->engine->keys();
    {
      nic::EngineGuard guard(*region.domain->engine);
      if (Status s = keys.revoke_begin(region.handle); !s) return fi_code(s);
    }
    if (!keys.revoke_poll(region.handle)) {
      if (Status s = keys.revoke(region.handle, now_ns() + kRevokeNs); !s) {
        APERTURE_WARN(
            "fi_close(mr): a peer is still inside this region (key 0x%llx) and cannot be "
            "fenced; it is refused to everybody from now on, call fi_close again",
            static_cast<unsigned long long>(region.fid.key));
        return fi_code(s);
      }
    }
    region.domain->uses.drop();
    delete &region;
    return 0;
  });
}

int raw_attr(const Region& region, const struct fi_mr_raw_attr* attr) {
  if (attr == nullptr || attr->key_size == nullptr) return -FI_EINVAL;
  if (attr->flags != 0) return -FI_EBADFLAGS;
  const size_t room = *attr->key_size;
  *attr->key_size = kKeyBytes;  // also when the buffer is too small, as the page says
  if (room < kKeyBytes || attr->raw_key == nullptr) return -FI_ETOOSMALL;
  std::memcpy(attr->raw_key, &region.fid.key, kKeyBytes);
  if (attr->base_addr != nullptr) *attr->base_addr = region.base;
  return 0;
}

int control_region(fid* fid, int command, void* arg) noexcept {
  auto& region = object_of<Region>(fid);
  switch (command) {
    case FI_GET_RAW_MR: return raw_attr(region, static_cast<struct fi_mr_raw_attr*>(arg));
    case FI_REFRESH:
      APERTURE_WARN(
          "fi_mr_refresh: this domain was not opened with FI_MR_MMU_NOTIFY; pages may come and "
          "go without notice");
      return -FI_ENOSYS;
    case FI_ENABLE:
      APERTURE_WARN(
          "fi_mr_enable: regions of this domain are enabled from the start (no FI_MR_ENDPOINT, "
          "no FI_MR_RMA_EVENT)");
      return -FI_ENOSYS;
    default: APERTURE_WARN("fi_control(mr): command %d is not offered", command); return -FI_ENOSYS;
  }
}

fi_ops g_region_fid_ops = {
    .size = sizeof(fi_ops),
    .close = close_region,
    .bind = NotOffered<
        "fi_mr_bind: events of regions (FI_RMA_EVENT) and FI_MR_ENDPOINT are not offered "
        "yet">{},
    .control = control_region,
    .ops_open = NotOffered<"fi_open_ops(mr): Aperture has no extension of that name yet">{},
    .tostr = NotOffered<"fi_tostr is libfabric's own">{},
    .ops_set = NotOffered<"fi_set_ops(mr): nothing can be overridden here">{},
};

}  // namespace

fi_ops_mr g_region_ops = {.size = sizeof(fi_ops_mr), .reg = reg, .regv = regv, .regattr = regattr};

// A raw key of ours is its 8 bytes: mapping it holds nothing.
int map_raw_key(void* arg) noexcept {
  const auto* map = static_cast<struct fi_mr_map_raw*>(arg);
  if (map == nullptr || map->raw_key == nullptr || map->key == nullptr) return -FI_EINVAL;
  if (map->flags != 0) return -FI_EBADFLAGS;
  if (map->key_size != kKeyBytes) {
    APERTURE_WARN("fi_mr_map_raw: a key of %zu bytes; keys of Aperture have %zu", map->key_size,
                  kKeyBytes);
    return -FI_EINVAL;
  }
  std::memcpy(map->key, map->raw_key, kKeyBytes);
  return 0;
}

}  // namespace aperture::provider
