// Opening and closing XRC domains: see xrc.hpp.
#include "verbs/xrc.hpp"

#include <cassert>

#include <fcntl.h>
#include <sys/stat.h>

namespace aperture::verbs {

namespace {

int validate(const ibv_xrcd_init_attr& attr) noexcept {
  constexpr uint32_t kNeeded = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (attr.comp_mask != kNeeded)
    return refuse(EINVAL, "%s: comp_mask 0x%x; it needs IBV_XRCD_INIT_ATTR_FD and _OFLAGS",
                  kOpenXrcCall, attr.comp_mask);
  if ((attr.oflags & ~(O_CREAT | O_EXCL)) != 0)
    return refuse(EINVAL, "%s: oflags 0x%x; O_CREAT and O_EXCL alone are known", kOpenXrcCall,
                  static_cast<unsigned>(attr.oflags));
  return 0;
}

int find_or_make(Context& context, const ibv_xrcd_init_attr& attr,
                 std::shared_ptr<const XrcDomain>& domain) {
  if (attr.fd == -1) {
    auto made = std::make_shared<XrcDomain>();
    made->number = context.next_handle();
    made->context = &context;
    domain = std::move(made);
    return 0;
  }
  struct stat file;
  if (::fstat(attr.fd, &file) != 0)
    return refuse(EBADF, "%s: %d is no open file", kOpenXrcCall, attr.fd);
  return open_xrc_domain(context, file, attr.oflags, domain);
}

}  // namespace

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr) noexcept {
  return guarded_new_base<Xrcd>(kOpenXrcCall, life_of(context), [&](Xrcd*& out) {
    if (const int error = validate(*attr); error != 0) return error;
    auto xrcd = std::make_unique<Xrcd>();
    xrcd->context = &context_of(context);
    xrcd->base.context = context;
    if (const int error = find_or_make(*xrcd->context, *attr, xrcd->domain); error != 0) {
      return error;
    }
    assert(xrcd->domain != nullptr && xrcd->domain->context == xrcd->context);
    xrcd->use_context = ContextUse(*xrcd->context);
    out = xrcd.release();
    return 0;
  });
}

int close_xrcd(ibv_xrcd* xrcd) noexcept {
  return guarded_release("ibv_close_xrcd", life_of(xrcd), [&] {
    auto& ours = object_of<Xrcd>(xrcd);
    if (const uint32_t uses = ours.uses.count(); uses != 0)
      return refuse(EBUSY, "ibv_close_xrcd: %u SRQs and queue pairs still use it", uses);
    close_xrc_domain(ours.domain);
    assert(ours.domain == nullptr);
    delete &ours;
    return 0;
  });
}

}  // namespace aperture::verbs
