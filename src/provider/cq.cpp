// Opening and closing completion queues: see cq.hpp.
#include "provider/cq.hpp"

#include <cassert>
#include <memory>

#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

int close_cq(fid* fid) noexcept {
  return guarded_close("fi_close(cq)", fid, [&]() -> int {
    auto& cq = object_of<FabricCq>(fid);
    if (const int rc = cq.check_unused("fi_close(cq)"); rc != 0) return rc;
    FabricCq::end(cq);
    return 0;
  });
}

int control_cq(fid* fid, int command, void* arg) noexcept {
  auto& cq = object_of<FabricCq>(fid);
  return control_wait("fi_control(cq)", cq.wait_obj, cq.sleeper.descriptor(), command, arg);
}

fi_ops g_cq_fid_ops = fid_ops<"cq">(
    close_cq, NotOffered<"fi_bind(cq): bind the completion queue to an endpoint with fi_ep_bind">{},
    control_cq);

int check_attr(const fi_cq_attr& attr) {
  if ((attr.flags & ~FI_AFFINITY) != 0)
    return refuse(
        -FI_EBADFLAGS,
        "fi_cq_open: flags 0x%llx; only FI_AFFINITY is known (peer queues are not offered)",
        static_cast<unsigned long long>(attr.flags));
  if (attr.format > FI_CQ_FORMAT_TAGGED)
    return refuse(-FI_EINVAL, "fi_cq_open: format %d is none that fi_cq(3) knows",
                  static_cast<int>(attr.format));
  if (attr.size > kMaxCqSize)
    return refuse(-FI_EINVAL, "fi_cq_open: size %zu; at most %zu is offered", attr.size,
                  kMaxCqSize);
  if (const int rc = check_wait_obj("fi_cq_open", attr.wait_obj, attr.wait_set); rc != 0) return rc;
  if (attr.wait_obj != FI_WAIT_NONE && attr.wait_cond > FI_CQ_COND_THRESHOLD)
    return refuse(-FI_EINVAL, "fi_cq_open: wait condition %d is none that fi_cq(3) knows",
                  static_cast<int>(attr.wait_cond));
  return 0;
}

struct Wish {
  const qp::Cq* core;
  size_t entries;
};
bool is_fulfilled(const void* what) {
  const auto& wish = *static_cast<const Wish*>(what);
  return wish.core->size() >= wish.entries || wish.core->has_error();
}

}  // namespace

int FabricCq::try_sleep(Waits waits, size_t threshold) noexcept {
  const Wish wish{&core, threshold};
  const int rc = try_sleep_unless(waits, is_fulfilled, &wish);
  // going to sleep may have drained the descriptor that a signal had rung a moment before
  // SYNC POINT: cq-signal
  const bool is_late = waits == Waits::in_call && signaled.load(std::memory_order_acquire);
  return rc == 0 && is_late ? -FI_EAGAIN : rc;
}

int open_cq(fid_domain* fid, fi_cq_attr* attr, fid_cq** out, void* context) noexcept {
  return guarded("fi_cq_open", fid, [&]() -> int {
    if (fid == nullptr || attr == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_cq_open: domain, attr or cq is NULL");
    if (const int rc = check_attr(*attr); rc != 0) return rc;
    auto& domain = object_of<Domain>(fid);
    auto cq = std::make_unique<FabricCq>(attr->size != 0 ? attr->size : kDefaultCqSize);
    cq->api_version = domain.api_version;
    cq->format = attr->format != FI_CQ_FORMAT_UNSPEC ? attr->format : FI_CQ_FORMAT_CONTEXT;
    cq->wait_cond = attr->wait_obj != FI_WAIT_NONE ? attr->wait_cond : FI_CQ_COND_NONE;
    cq->fid.fid = {FI_CLASS_CQ, context, &g_cq_fid_ops};
    cq->fid.ops = cq_ops(*domain.calls, cq->format);
    const int rc = cq->open(domain, attr->wait_obj, attr->wait_set, cq->core.wake_fd);
    if (rc != 0) return rc;
    assert(cq->entries >= attr->size && cq->core.empty());
    // what it has become; attributes that left nothing open are not written to
    if (attr->format == FI_CQ_FORMAT_UNSPEC) attr->format = cq->format;
    domain.uses.add();
    *out = &cq.release()->fid;
    return 0;
  });
}

}  // namespace aperture::provider
