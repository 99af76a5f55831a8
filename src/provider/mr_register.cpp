// What a registration does: checks, pages, the entry in the key table. See mr.hpp; man 3 fi_mr,
// "MEMORY REGION ATTRIBUTES", "FLAGS" and "ERRORS".
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <memory>

#include "base/file_mappings.hpp"
#include "base/guarded_copy.hpp"
#include "base/invariant.hpp"
#include "base/no_throw.hpp"
#include "base/random.hpp"
#include "protect/descriptor.hpp"
#include "provider/errors.hpp"
#include "provider/mr.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

constexpr uint64_t kAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr uint64_t kWrittenInto = FI_RECV | FI_READ | FI_REMOTE_WRITE;
constexpr uint64_t kRegistrationFlags = FI_RMA_EVENT | FI_RMA_PMEM;

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

std::byte* bytes_of(const iovec& iov) noexcept {
  return static_cast<std::byte*>(iov.iov_base);
}

uint64_t total_of(const RegionWish& wish) noexcept {
  uint64_t total = 0;
  for (const iovec& iov : wish.buffers) total += iov.iov_len;  // check_buffers: does not wrap
  return total;
}

int refuse_wrap(const iovec& iov) {
  return refuse(
      -FI_EINVAL,
      "fi_mr_reg: %p and %zu bytes run past the end of memory, or all buffers together do",
      iov.iov_base, iov.iov_len);
}

int check_buffers(const Domain& domain, const RegionWish& wish) {
  if (wish.buffers.size() == 0) return refuse(-FI_EINVAL, "fi_mr_reg: no buffer is given");
  if (wish.buffers.size() > kRegionIovLimit)
    return refuse(-FI_EINVAL, "fi_mr_regv: more than %zu buffers for one region (mr_iov_limit)",
                  kRegionIovLimit);
  uint64_t total = 0;
  for (const iovec& iov : wish.buffers) {
    const auto start = reinterpret_cast<uintptr_t>(iov.iov_base);
    if (iov.iov_len > ~uintptr_t{0} - start) return refuse_wrap(iov);
    if (__builtin_add_overflow(total, iov.iov_len, &total)) return refuse_wrap(iov);
  }
  const auto first = reinterpret_cast<uintptr_t>(wish.buffers.front().iov_base);
  if (domain.region_rules.virtual_addresses && total > ~uintptr_t{0} - first) {
    return refuse_wrap(wish.buffers.front());
  }
  return 0;
}

int check_key(const Domain& domain, const RegionWish& wish) {
  if (domain.region_rules.provider_keys) return 0;
  const size_t bits = 8 * domain.key_bytes;
  if (wish.requested_key == FI_KEY_NOTAVAIL || (bits < 64 && wish.requested_key >> bits != 0))
    return refuse(-FI_EKEYREJECTED,
                  "fi_mr_reg: key 0x%" PRIx64
                  " cannot be requested: it is FI_KEY_NOTAVAIL, or does not fit into the "
                  "mr_key_size of the domain (%zu); choose another",
                  wish.requested_key, domain.key_bytes);
  return 0;
}

// ---- pages --------------------------------------------------------------------------------------

int check_pages(const Domain& domain, const RegionWish& wish) {
  for (const iovec& iov : wish.buffers) {
    if (wish.devices != nullptr) {
      if ((wish.flags & FI_RMA_PMEM) == 0) continue;  // its driver has seen to it that it is there
      return refuse(-FI_EINVAL,
                    "fi_mr_reg: FI_RMA_PMEM, but %p is device memory; leave the flag out",
                    iov.iov_base);
    }
    if (domain.region_rules.must_be_mapped) {
      if (const int rc = populate(iov, wish.access); rc != 0) return rc;
    }
    // what is committed is in a file
    if ((wish.flags & FI_RMA_PMEM) != 0 && !is_mapped_from_files(iov.iov_base, iov.iov_len))
      return refuse(
          -FI_EINVAL,
          "fi_mr_reg: FI_RMA_PMEM, but not all of %p and %zu bytes is a shared mapping of a file "
          "that has a name; map such a file, or leave the flag out",
          iov.iov_base, iov.iov_len);
  }
  return 0;
}

// ---- the entry ----------------------------------------------------------------------------------

// What this region has beyond a flat range; null for most.
std::unique_ptr<protect::SideRecord> make_side(const Domain& domain, Region& region) {
  const RegionRules& rules = domain.region_rules;
  const RegionWish& wish = region.wish;
  const bool plain = wish.buffers.size() == 1 && !rules.raw_keys && !rules.mmu_notify &&
                     !rules.per_endpoint && (wish.flags & kRegistrationFlags) == 0 &&
                     wish.devices == nullptr;
  if (plain) return nullptr;
  auto side = std::make_unique<protect::SideRecord>();
  side->in_device = wish.devices != nullptr;
  for (const iovec& iov : wish.buffers) {
    protect::Segment segment{bytes_of(iov), iov.iov_len, std::nullopt, nullptr};
    if (side->in_device) {
      segment.device = wish.devices[side->segments.size()];
    } else if (rules.mmu_notify) {
      segment.pages.emplace(segment.base, segment.length);
    }
    side->segments.push_back(std::move(segment));
  }
  if (rules.raw_keys) {
    while (region.secret == 0) region.secret = random_u64();
    side->secret = region.secret;
  }
  side->needs_endpoint = rules.per_endpoint;
  side->persistent = (wish.flags & FI_RMA_PMEM) != 0;
  return side;
}

int explain_refusal(Errc e, const RegionWish& wish) {
  if (e == Errc::no_key) {
    APERTURE_WARN("fi_mr_reg: key 0x%" PRIx64
                  " is in use in this domain; request another, or open the domain with "
                  "FI_MR_PROV_KEY",
                  wish.requested_key);
  } else {
    APERTURE_WARN("fi_mr_reg: %s", describe(e));
  }
  return fi_code(e);
}

}  // namespace

int populate(const iovec& iov, uint64_t access) {
  const bool for_writing = (access & kWrittenInto) != 0;
  if (iov.iov_len == 0) return 0;
  if (!protect::is_mapped(bytes_of(iov), iov.iov_len))
    return refuse(
        -FI_EFAULT,
        "fi_mr_reg: not all of %p and %zu bytes is mapped, and the domain was opened with "
        "FI_MR_ALLOCATED; allocate it first, or do not offer that bit",
        iov.iov_base, iov.iov_len);
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<uintptr_t>(iov.iov_base) & ~(page - 1);
  const auto end = reinterpret_cast<uintptr_t>(iov.iov_base) + iov.iov_len;
  if (::madvise(reinterpret_cast<void*>(from), end - from,
                for_writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0) {
    return 0;
  }
#endif
  // before Linux 5.14, or where it refuses: by hand, page by page
  if (guarded_touch(iov.iov_base, iov.iov_len, for_writing)) return 0;
  return refuse(
      -FI_EFAULT,
      "fi_mr_reg: %p and %zu bytes cannot be %s, as the access flags demand, and the domain was "
      "opened with FI_MR_ALLOCATED; map it so, or ask for fewer rights",
      iov.iov_base, iov.iov_len, for_writing ? "written" : "read");
}

int check_wish(const Domain& domain, const RegionWish& wish) {
  if (const int rc = check_buffers(domain, wish); rc != 0) return rc;
  // it gives nothing: FI_SEND and FI_RECV beside it say what a collective call may do
  const uint64_t known = kAccess | (domain.api_version >= kApi114 ? FI_COLLECTIVE : 0);
  if ((wish.access & ~known) != 0)
    return refuse(-FI_EINVAL,
                  "fi_mr_reg: access 0x%" PRIx64
                  " has bits that fi_mr(3) does not know; use FI_SEND, FI_RECV, FI_READ, FI_WRITE, "
                  "FI_REMOTE_READ, FI_REMOTE_WRITE and, from API 1.14 on, FI_COLLECTIVE",
                  wish.access);
  if ((wish.flags & ~kRegistrationFlags) != 0)
    return refuse(-FI_EBADFLAGS,
                  "fi_mr_reg: flags 0x%" PRIx64
                  " are not offered; FI_RMA_EVENT and FI_RMA_PMEM are",
                  wish.flags & ~kRegistrationFlags);
  return check_key(domain, wish);
}

namespace {

// The same region in the protection domain of each of its authorization keys, under the key that it
// has in its own.
Status add_for_keys(Domain& domain, protect::RegionSpec spec, Region& region) {
  region.of_keys.reserve(region.wish.key_domains.size());
  spec.requested_key = region.handle.key;
  for (const protect::DomainId pd : region.wish.key_domains) {
    spec.pd = pd;
    protect::RegionHandle made;
    const Status s = domain.engine->keys().add(spec, make_side(domain, region), made);
    if (!s) return s;
    region.of_keys.push_back(made);
  }
  return {};
}

// Of a registration that has failed: its memory is the application's again.
void drop_entries(Region& region) {
  protect::Revocation& revocation = region.domain->engine->keys().revocation();
  {
    const nic::EngineGuard guard(*region.domain->engine);
    for (size_t i = 0; i < region.entries(); ++i)
      static_cast<void>(revocation.revoke_now(region.entry(i)));
  }
  static_cast<void>(wait_until_quiet(region));  // a key that was asked for may have been guessed
  for (size_t i = 0; i < region.entries(); ++i) static_cast<void>(revocation.poll(region.entry(i)));
}

}  // namespace

int register_region(Region& region) {
  Domain& domain = *region.domain;
  const RegionRules& rules = domain.region_rules;
  const RegionWish& wish = region.wish;
  if (const int rc = check_pages(domain, wish); rc != 0) return rc;
  protect::RegionSpec spec;
  spec.pd = wish.pd;
  spec.base = reinterpret_cast<uint64_t>(wish.buffers.front().iov_base);
  spec.length = total_of(wish);
  spec.rights = rights_of(wish.access);
  spec.zero_based = !rules.virtual_addresses;
  spec.enabled = !rules.per_endpoint && !(rules.rma_event && (wish.flags & FI_RMA_EVENT) != 0);
  if (!rules.provider_keys) spec.requested_key = wish.requested_key;
  spec.registered_at = wish.caller;
  const protect::RegionHandle& handle = region.handle;
  APERTURE_DEBUG_ASSERT(handle.generation == 0 && wish.buffers.size() != 0);
  const Status added = add_region_of(domain, spec, make_side(domain, region), region.handle);
  if (!added) return explain_refusal(added.error(), wish);
  if (!wish.key_domains.empty()) {
    const Status s = no_throw([&] { return add_for_keys(domain, spec, region); });
    if (!s) {
      drop_entries(region);
      return explain_refusal(s.error(), wish);
    }
  }
  APERTURE_DEBUG_ASSERT(handle.generation != 0);
  region.base = spec.zero_based ? 0 : spec.base;
  region.enabled = spec.enabled;
  // the application may look at both while the control thread is here
  std::atomic_ref(region.fid.mem_desc)
      .store(protect::descriptor_of(handle), std::memory_order_release);
  std::atomic_ref(region.fid.key)
      .store(rules.raw_keys ? FI_KEY_NOTAVAIL : handle.key, std::memory_order_release);
  return 0;
}

}  // namespace aperture::provider
