// Opening and closing XRC domains: see xrc.hpp.
#include "verbs/xrc.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace aperture::verbs {

namespace {

constexpr const char* kCall = "ibv_open_xrcd";

int judge(const ibv_xrcd_init_attr& attr) noexcept {
  constexpr uint32_t kNeeded = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (attr.comp_mask != kNeeded) {
    return APERTURE_REFUSE(EINVAL, "%s: comp_mask 0x%x; it needs IBV_XRCD_INIT_ATTR_FD and _OFLAGS",
                           kCall, attr.comp_mask);
  }
  if ((attr.oflags & ~(O_CREAT | O_EXCL)) != 0) {
    return APERTURE_REFUSE(EINVAL, "%s: oflags 0x%x; O_CREAT and O_EXCL alone are known", kCall,
                           static_cast<unsigned>(attr.oflags));
  }
  if (attr.fd == -1 && attr.oflags != O_CREAT) {
    return APERTURE_REFUSE(EINVAL, "%s: without a file (fd -1) oflags is O_CREAT", kCall);
  }
  return 0;
}

// The domain that somebody in this context has opened with that file. members_mutex held.
std::shared_ptr<const XrcDomain> open_one_of(Context& context, const struct stat& file) {
  const auto at = std::find_if(
      context.xrc_domains.begin(), context.xrc_domains.end(), [&](const auto& weak) noexcept {
        const auto domain = weak.lock();
        return domain != nullptr && domain->has_file && domain->device == file.st_dev &&
               domain->inode == file.st_ino;
      });
  return at != context.xrc_domains.end() ? at->lock() : nullptr;
}

// members_mutex held.
std::shared_ptr<const XrcDomain> make_domain(Context& context, const struct stat* file) {
  auto domain = std::make_shared<XrcDomain>();
  domain->number = context.next_handle();
  if (file != nullptr) {
    domain->has_file = true;
    domain->device = file->st_dev;
    domain->inode = file->st_ino;
  }
  auto& all = context.xrc_domains;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const auto& weak) noexcept { return weak.expired(); }),
            all.end());
  all.push_back(domain);
  return domain;
}

int find_or_make(Context& context, const ibv_xrcd_init_attr& attr,
                 std::shared_ptr<const XrcDomain>& domain) {
  std::lock_guard guard(context.members_mutex);
  if (attr.fd == -1) {
    domain = make_domain(context, nullptr);
    return 0;
  }
  struct stat file;
  if (::fstat(attr.fd, &file) != 0) {
    return APERTURE_REFUSE(EBADF, "%s: %d is no open file", kCall, attr.fd);
  }
  domain = open_one_of(context, file);
  if (domain != nullptr && (attr.oflags & O_EXCL) != 0) {
    return APERTURE_REFUSE(EINVAL, "%s: O_EXCL, and the domain of this file is open already",
                           kCall);
  }
  if (domain != nullptr) return 0;
  if ((attr.oflags & O_CREAT) == 0) {
    return APERTURE_REFUSE(EAGAIN,
                           "%s: no domain of this file is open in this context (domains are not "
                           "shared with other processes), and O_CREAT is not set",
                           kCall);
  }
  domain = make_domain(context, &file);
  return 0;
}

}  // namespace

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* attr) noexcept {
  auto* made = guarded_new<Xrcd>(kCall, [&](Xrcd*& out) {
    if (const int error = judge(*attr); error != 0) return error;
    auto xrcd = std::make_unique<Xrcd>();
    xrcd->context = &context_of(context);
    xrcd->base.context = context;
    if (const int error = find_or_make(*xrcd->context, *attr, xrcd->domain); error != 0) {
      return error;
    }
    xrcd->use_context = ContextUse(*xrcd->context);
    out = xrcd.release();
    return 0;
  });
  return made != nullptr ? &made->base : nullptr;
}

int close_xrcd(ibv_xrcd* xrcd) noexcept {
  return guarded_release("ibv_close_xrcd", [&] {
    auto& ours = object_of<Xrcd>(xrcd);
    if (const uint32_t uses = ours.uses.count(); uses != 0) {
      return APERTURE_REFUSE(EBUSY, "ibv_close_xrcd: %u SRQs and queue pairs still use it", uses);
    }
    delete &ours;
    return 0;
  });
}

}  // namespace aperture::verbs
