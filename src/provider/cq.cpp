// Opening and closing completion queues: see cq.hpp.
#include "provider/cq.hpp"

#include <memory>

#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

int close_cq(fid* fid) noexcept {
  return guarded("fi_close(cq)", [&]() -> int {
    auto& cq = object_of<Cq>(fid);
    if (const uint32_t n = cq.uses.count(); n != 0) {
      APERTURE_WARN("fi_close(cq): %u endpoint(s) or poll set(s) use it; close them first", n);
      return -FI_EBUSY;
    }
    if (cq.wait_set != nullptr) leave_set(*cq.wait_set, fid, cq.sleeper.fd());
    Uses& domain_uses = cq.domain->uses;
    delete &cq;
    domain_uses.drop();
    return 0;
  });
}

int control_cq(fid* fid, int command, void* arg) noexcept {
  auto& cq = object_of<Cq>(fid);
  return control_wait("fi_control(cq)", cq.wait_obj, cq.sleeper.fd(), command, arg);
}

fi_ops g_fid_ops = {
    .size = sizeof(fi_ops),
    .close = close_cq,
    .bind = NotOffered<"fi_bind(cq): bind the completion queue to an endpoint with fi_ep_bind">{},
    .control = control_cq,
    .ops_open = NotOffered<"fi_open_ops(cq): Aperture has no extension of that name">{},
    .tostr = NotOffered<"fi_tostr is libfabric's own">{},
    .ops_set = NotOffered<"fi_set_ops(cq): nothing can be overridden here">{},
};

int check_attr(const fi_cq_attr& attr) {
  if ((attr.flags & ~FI_AFFINITY) != 0) {
    APERTURE_WARN(
        "fi_cq_open: flags 0x%llx; only FI_AFFINITY is known (peer queues are not offered)",
        static_cast<unsigned long long>(attr.flags));
    return -FI_EBADFLAGS;
  }
  if (attr.format > FI_CQ_FORMAT_TAGGED) {
    APERTURE_WARN("fi_cq_open: format %d is none that fi_cq(3) knows",
                  static_cast<int>(attr.format));
    return -FI_EINVAL;
  }
  if (attr.size > kMaxCqSize) {
    APERTURE_WARN("fi_cq_open: size %zu; at most %zu is offered", attr.size, kMaxCqSize);
    return -FI_EINVAL;
  }
  if (const int rc = check_wait_obj("fi_cq_open", attr.wait_obj, attr.wait_set); rc != 0) return rc;
  if (attr.wait_obj != FI_WAIT_NONE && attr.wait_cond > FI_CQ_COND_THRESHOLD) {
    APERTURE_WARN("fi_cq_open: wait condition %d is none that fi_cq(3) knows",
                  static_cast<int>(attr.wait_cond));
    return -FI_EINVAL;
  }
  return 0;
}

struct Wish {
  const qp::Cq* core;
  size_t entries;
};
bool is_fulfilled(const void* what) {
  const auto& wish = *static_cast<const Wish*>(what);
  return wish.core->size() >= wish.entries || wish.core->error_first();
}

}  // namespace

int Cq::try_sleep(size_t threshold) noexcept {
  if (wait_obj == FI_WAIT_NONE) return -FI_EINVAL;
  const Wish wish{&core, threshold};
  nic::EngineGuard guard(*engine);
  if (has_fd(wait_obj)) return sleeper.try_sleep(is_fulfilled, &wish) ? 0 : -FI_EAGAIN;
  engine->poll();
  Sleeper::keep_asleep(*domain);
  return is_fulfilled(&wish) ? -FI_EAGAIN : 0;
}

int open_cq(fid_domain* fid, fi_cq_attr* attr, fid_cq** out, void* context) noexcept {
  return guarded("fi_cq_open", [&]() -> int {
    if (fid == nullptr || attr == nullptr || out == nullptr) {
      APERTURE_WARN("fi_cq_open: domain, attr or cq is NULL");
      return -FI_EINVAL;
    }
    if (const int rc = check_attr(*attr); rc != 0) return rc;
    auto& domain = object_of<Domain>(fid);
    auto cq = std::make_unique<Cq>(attr->size != 0 ? attr->size : kDefaultCqSize);
    cq->domain = &domain;
    cq->engine = domain.engine.get();
    cq->api_version = domain.api_version;
    cq->format = attr->format != FI_CQ_FORMAT_UNSPEC ? attr->format : FI_CQ_FORMAT_CONTEXT;
    cq->wait_obj = settle_wait_obj(attr->wait_obj);
    cq->wait_cond = attr->wait_obj != FI_WAIT_NONE ? attr->wait_cond : FI_CQ_COND_NONE;
    cq->fid.fid = {FI_CLASS_CQ, context, &g_fid_ops};
    cq->fid.ops = cq_ops(cq->format);
    if (const int rc = cq->sleeper.open(domain, cq->wait_obj, &cq->core, nullptr); rc != 0)
      return rc;
    if (cq->wait_obj == FI_WAIT_SET) {
      const int rc = join_set(attr->wait_set, &cq->fid.fid, cq->sleeper.fd(), cq->wait_set);
      if (rc != 0) return rc;
    }
    attr->format = cq->format;  // what FI_CQ_FORMAT_UNSPEC has become
    domain.uses.add();
    *out = &cq.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
