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

fi_ops g_fid_ops = fid_ops<"av">(close_av, bind_av, refuse_control<"av">);

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
  if (attr.name != nullptr || (attr.flags & FI_READ) != 0)
    return refuse(
        -FI_ENOSYS,
        "fi_av_open: named (shared) address vectors are not offered; leave attr.name NULL and "
        "FI_READ unset");
  if (attr.rx_ctx_bits < 0 || attr.rx_ctx_bits > kMostContextBits)
    return refuse(-FI_EINVAL,
                  "fi_av_open: rx_ctx_bits %d; 0 to %d are offered, and %zu contexts take 7",
                  attr.rx_ctx_bits, kMostContextBits, kMaxContexts);
  if ((attr.flags & ~(FI_EVENT | FI_SYMMETRIC)) != 0)
    return refuse(-FI_EBADFLAGS, "fi_av_open: flags 0x%llx; FI_EVENT and FI_SYMMETRIC are offered",
                  static_cast<unsigned long long>(attr.flags));
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
    av->fid.fid = {FI_CLASS_AV, context, &g_fid_ops};
    av->fid.ops = &g_av_ops;
    assert(av->type != FI_AV_UNSPEC && domain.engine != nullptr);
    if (attr->type == FI_AV_UNSPEC) attr->type = av->type;
    domain.uses.add();
    *out = &av.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
