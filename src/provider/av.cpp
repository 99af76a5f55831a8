// Opening and closing address vectors: see av.hpp.
#include "provider/av.hpp"

#include <cassert>
#include <memory>

#include "provider/eq.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

int close_av(fid* fid) noexcept {
  return guarded_close("fi_close(av)", fid, [&]() -> int {
    auto& av = object_of<Av>(fid);
    if (const uint32_t n = av.uses.count(); n != 0)
      return refuse(-FI_EBUSY, "fi_close(av): %u endpoint(s) use it; close them first", n);
    if (av.eq != nullptr) av.eq->uses.drop();
    av.domain->uses.drop();
    delete &av;
    return 0;
  });
}

int bind_av(fid* fid, struct fid* what, uint64_t flags) noexcept {
  auto& av = object_of<Av>(fid);
  return bind_eq("fi_av_bind", what, flags, 0, av.domain->fabric, av.eq);
}

fi_ops g_av_fid_ops = fid_ops<"av">(close_av, bind_av, refuse_control<"av">);

constexpr int kMostContextBits = 32;  // as many are left for indices

int check_attr(const Domain& domain, const fi_av_attr& attr) {
  if (attr.type > FI_AV_TABLE)
    return refuse(-FI_EINVAL, "fi_av_open: type %d is none that fi_av(3) knows",
                  static_cast<int>(attr.type));
  if (attr.type != FI_AV_UNSPEC && domain.av_type != FI_AV_UNSPEC && attr.type != domain.av_type)
    return refuse(-FI_EINVAL,
                  "fi_av_open: the domain was opened for %s only; ask for that type, or leave "
                  "domain_attr->av_type FI_AV_UNSPEC",
                  domain.av_type == FI_AV_MAP ? "FI_AV_MAP" : "FI_AV_TABLE");
  if (attr.name == nullptr && (attr.flags & FI_READ) != 0)
    return refuse(-FI_EINVAL,
                  "fi_av_open: FI_READ is for a shared address vector; give attr.name its name");
  if (attr.name != nullptr && (attr.flags & FI_AV_USER_ID) != 0)
    return refuse(-FI_EINVAL,
                  "fi_av_open: a shared address vector has no user ids; take one of the two");
  if (attr.name != nullptr && domain.av_keys)
    return refuse(-FI_EOPNOTSUPP,
                  "fi_av_open: a shared address vector has no authorization keys; leave attr.name "
                  "NULL in a domain with FI_AV_AUTH_KEY");
  if (attr.rx_ctx_bits < 0 || attr.rx_ctx_bits > kMostContextBits)
    return refuse(-FI_EINVAL,
                  "fi_av_open: rx_ctx_bits %d; 0 to %d are offered, and %zu contexts take 7",
                  attr.rx_ctx_bits, kMostContextBits, kMaxContexts);
  // the flag came with 1.20; before, ids are given with each insertion
  const bool may_set_ids = domain.api_version >= kApi120;
  const uint64_t offered = FI_EVENT | FI_SYMMETRIC | FI_READ | (may_set_ids ? FI_AV_USER_ID : 0);
  if ((attr.flags & ~offered) != 0)
    return refuse(
        -FI_EBADFLAGS,
        "fi_av_open: flags 0x%llx; FI_EVENT, FI_SYMMETRIC, FI_READ and, from API 1.20 on, "
        "FI_AV_USER_ID are offered",
        static_cast<unsigned long long>(attr.flags));
  if ((attr.flags & FI_AV_USER_ID) != 0 && !domain.user_ids)
    return refuse(
        -FI_EINVAL,
        "fi_av_open: FI_AV_USER_ID in a domain that was opened without that capability; ask "
        "for it in hints->domain_attr->caps");
  return 0;
}

}  // namespace

int open_av(fid_domain* fid, fi_av_attr* attr, fid_av** out, void* context) noexcept {
  return guarded("fi_av_open", fid, [&]() -> int {
    if (fid == nullptr || attr == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_av_open: domain, attr or av is NULL");
    auto& domain = object_of<Domain>(fid);
    if (const int rc = check_attr(domain, *attr); rc != 0) return rc;
    auto av = std::make_unique<Av>();
    av->domain = &domain;
    av->type = attr->type != FI_AV_UNSPEC       ? attr->type
               : domain.av_type != FI_AV_UNSPEC ? domain.av_type
                                                : FI_AV_TABLE;
    av->flags = attr->flags;
    av->table.set_context_bits(static_cast<unsigned>(attr->rx_ctx_bits));
    av->fid.fid = {FI_CLASS_AV, context, &g_av_fid_ops};
    av->fid.ops = &g_av_ops;
    assert(av->type != FI_AV_UNSPEC && domain.engine != nullptr);
    if (domain.av_keys) av->keys = std::make_unique<AvKeys>();
    if (attr->name != nullptr) {
      if (const int rc = share_addresses(*av, *attr); rc != 0) return rc;
      if (attr->map_addr == nullptr) attr->map_addr = av->shared->map_addr();
    }
    if (attr->type == FI_AV_UNSPEC) attr->type = av->type;
    domain.uses.add();
    *out = &av.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
