// fid_domain: see domain.hpp.
#include "provider/domain.hpp"

#include <rdma/fi_atomic.h>

#include <cassert>
#include <cstring>

#include "provider/atomic_rules.hpp"
#include "provider/collective.hpp"
#include "provider/eq.hpp"
#include "provider/errors.hpp"
#include "provider/fork.hpp"
#include "provider/offer.hpp"
#include "provider/own_registrations.hpp"
#include "provider/registry.hpp"
#include "provider/stubs.hpp"
#include "provider/window.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

Registry<fid_domain>& domains() {
  static constinit Registry<fid_domain> all;
  return all;
}

uint32_t open_regions(Domain& domain) noexcept {
  nic::EngineGuard guard(*domain.engine);
  return domain.regions;
}

int close_domain(fid* fid) noexcept {
  return guarded_close("fi_close(domain)", fid, [&]() -> int {
    auto& domain = object_of<Domain>(fid);
    if (const uint32_t n = domain.uses.count() + open_regions(domain); n != 0)
      return refuse(
          -FI_EBUSY,
          "fi_close(domain): %u object(s) opened from it are still open; close endpoints, AVs, "
          "CQs, counters, windows and regions first",
          n);
    if (const size_t n = domain.mapped_keys.count(); n != 0)
      return refuse(
          -FI_EBUSY,
          "fi_close(domain): %zu key(s) of peers are still mapped; call fi_mr_unmap_key for each "
          "that fi_mr_map_raw returned",
          n);
    domains().remove(&domain.fid);
    if (domain.eq != nullptr) domain.eq->uses.drop();
    domain.fabric->uses.drop();
    delete &domain;
    return 0;
  });
}

int bind_domain(fid* fid, struct fid* what, uint64_t flags) noexcept {
  auto& domain = object_of<Domain>(fid);
  const int rc = bind_eq("fi_domain_bind", what, flags, kRegionsReport, domain.fabric, domain.eq);
  if (rc == 0) domain.async_regions = (flags & kRegionsReport) != 0;
  return rc;
}

int control_domain(fid* fid, int command, void* arg) noexcept {
  return guarded("fi_control(domain)", fid, [&]() -> int {
    auto& domain = object_of<Domain>(fid);
    switch (command) {
      case FI_MAP_RAW_MR: return map_raw_key(domain, static_cast<const struct fi_mr_map_raw*>(arg));
      case FI_UNMAP_KEY: return unmap_key(domain, static_cast<const uint64_t*>(arg));
      case FI_QUEUE_WORK: return queue_work(domain, static_cast<const fi_deferred_work*>(arg));
      case FI_CANCEL_WORK: return cancel_work(domain, static_cast<const fi_deferred_work*>(arg));
      case FI_FLUSH_WORK: return flush_work(domain, static_cast<const fi_deferred_work*>(arg));
      default: return refuse(-FI_ENOSYS, "fi_control(domain): command %d is not offered", command);
    }
  });
}

fi_ops g_domain_fid_ops = [] {
  fi_ops ops = fid_ops<"domain">(close_domain, bind_domain, control_domain);
  ops.ops_open = open_domain_ops;
  return ops;
}();

fi_ops_domain g_domain_ops = {
    .size = sizeof(fi_ops_domain),
    .av_open = open_av,
    .cq_open = open_cq,
    .endpoint = open_ep,
    .scalable_ep = open_scalable_ep,
    .cntr_open = open_cntr,
    .poll_open = open_poll_set,
    .stx_ctx = open_stx,
    .srx_ctx = open_srx,
    .query_atomic = query_atomic,
    .query_collective = query_collective,
    .endpoint2 = NotOffered<"fi_endpoint2: peer endpoints are not offered; use fi_endpoint">{},
};

// The rules that the application chose, as they stand in the info it hands back to us.
int configure(Domain& domain, const fi_info& info, nic::Engine::Options& options) {
  const fi_domain_attr& attr = *info.domain_attr;
  if (attr.name != nullptr && std::strcmp(attr.name, kDomainName) != 0)
    return refuse(-FI_EINVAL,
                  "fi_domain: \"%s\" is not a domain of this provider; its only one is \"%s\"",
                  attr.name, kDomainName);
  if (!rules_of(info, domain.api_version, domain.region_rules))
    return refuse(
        -FI_EINVAL,
        "fi_domain: mr_mode 0x%x has bits that are not offered, or that exclude each other; open "
        "the domain with the mr_mode that fi_getinfo returned",
        static_cast<unsigned>(attr.mr_mode));
  // an application may narrow it; FI_MR_RAW widens only what travels between applications
  if (attr.mr_key_size != 0) domain.key_bytes = std::min(attr.mr_key_size, kKeyBytes);
  domain.counts_regions = (info.caps & FI_RMA_EVENT) != 0;
  domain.av_type = attr.av_type;
  const uint64_t its_caps = domain.api_version >= kApi15 ? attr.caps : 0;
  const uint64_t directed =
      FI_DIRECTED_RECV |
      (domain.api_version >= kApi20 ? kTaggedDirectedRecv | kExactDirectedRecv : 0);
  domain.directed = ((info.caps | its_caps) & directed) != 0;
  domain.user_ids = ((info.caps | its_caps) & FI_AV_USER_ID) != 0;
  if (info.addr_format != FI_FORMAT_UNSPEC) domain.addr_format = info.addr_format;
  options.auto_progress = attr.data_progress == FI_PROGRESS_AUTO;
  options.threaded = attr.threading != FI_THREAD_DOMAIN || options.auto_progress;
  return 0;
}

// Where local buffers are registered for an application that does not do it.
int open_own_registrations(Domain& domain) {
  const DescriptorRule rule = domain.region_rules.descriptors;
  if (rule != DescriptorRule::own && rule != DescriptorRule::own_or_valid) return 0;
  auto own = OwnRegistrations::open(*domain.engine);
  if (!own)
    return refuse(fi_code(own.error()), "fi_domain: no registration cache (%s)",
                  describe(own.error()));
  domain.own_registrations = *std::move(own);
  return 0;
}

}  // namespace

int open_domain(fid_fabric* fabric, fi_info* info, fid_domain** out, uint64_t flags,
                void* context) noexcept {
  return guarded("fi_domain", fabric, [&]() -> int {
    if (fabric == nullptr || info == nullptr || info->domain_attr == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_domain: fabric, info, info->domain_attr or domain is NULL");
    if (flags != 0)
      return refuse(-FI_EBADFLAGS,
                    "fi_domain2: flags 0x%llx are not offered (peer domains); use fi_domain",
                    static_cast<unsigned long long>(flags));
    auto domain = std::make_unique<Domain>();
    domain->fabric = &object_of<Fabric>(fabric);
    domain->api_version = domain->fabric->fid.api_version;
    nic::Engine::Options options;
    if (const int rc = configure(*domain, *info, options); rc != 0) return rc;
    Result<std::unique_ptr<nic::Engine>> engine = nic::Engine::create(options);
    if (!engine)
      return refuse(fi_code(engine.error()), "fi_domain: the engine could not start (%s)",
                    describe(engine.error()));
    domain->engine = std::move(*engine);
    if (const int rc = open_own_registrations(*domain); rc != 0) return rc;
    const auto calls = call_tables();
    if (!calls) return fi_code(calls.error());
    domain->calls = calls.value();
    if (const Status s = set_default_auth_key(*domain, *info); !s) return fi_code(s);
    domain->fid.fid = {FI_CLASS_DOMAIN, context, &g_domain_fid_ops};
    domain->fid.ops = &g_domain_ops;
    domain->fid.mr = &g_region_ops;
    assert(domain->engine != nullptr && domain->uses.count() == 0);
    domains().add(&domain->fid);
    domain->fabric->uses.add();
    *out = &domain.release()->fid;
    return 0;
  });
}

fid_domain* first_open_domain() noexcept {
  return domains().first();
}
bool is_open_domain(const fid_domain* domain) noexcept {
  return domains().has(domain);
}

}  // namespace aperture::provider
