// Shared receive contexts: fi_srx_context. man 3 fi_endpoint, "SHARED CONTEXTS".
//
// A handle like an endpoint's, with the receiving calls only. Receives may be posted from the
// start; they complete in the queue of the endpoint that the message came to.
#include <rdma/fi_cm.h>

#include <cassert>

#include "provider/ep.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"
#include "provider/window.hpp"

namespace aperture::provider {

namespace {

int check_attr(const fi_rx_attr& attr) {
  if ((attr.op_flags & ~kRxOpFlags) != 0)
    return refuse(-FI_EBADFLAGS, "fi_srx_context: op_flags 0x%llx are not offered",
                  static_cast<unsigned long long>(attr.op_flags));
  if ((attr.caps & ~kRxCaps) != 0 || (attr.caps & (FI_DIRECTED_RECV | FI_SOURCE)) != 0)
    return refuse(-FI_EINVAL,
                  "fi_srx_context: caps 0x%llx; FI_MSG, FI_TAGGED and FI_RECV are offered",
                  static_cast<unsigned long long>(attr.caps));
  if (attr.size > kMaxQueueSize || attr.iov_limit > qp::kIovLimit)
    return refuse(-FI_EINVAL,
                  "fi_srx_context: size %zu, iov_limit %zu; at most %zu and %zu are offered",
                  attr.size, attr.iov_limit, kMaxQueueSize, qp::kIovLimit);
  return 0;
}

}  // namespace

int open_srx(fid_domain* fid, fi_rx_attr* attr, fid_ep** out, void* context) noexcept {
  return guarded("fi_srx_context", fid, [&]() -> int {
    if (fid == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_srx_context: domain or rx_ep is NULL");
    const fi_rx_attr defaults{};
    const fi_rx_attr& asked = attr != nullptr ? *attr : defaults;
    if (const int rc = check_attr(asked); rc != 0) return rc;
    auto body = std::make_unique<EpBody>();
    body->kind = EpKind::shared_receive;
    body->domain = &object_of<Domain>(fid);
    const uint64_t messages = asked.caps & (FI_MSG | FI_TAGGED);
    body->rx_caps = (messages != 0 ? messages : FI_MSG | FI_TAGGED) | FI_RECV;
    body->rx_size = asked.size != 0 ? asked.size : kDefaultQueueSize;
    auto core = std::make_unique<nic::SharedReceive>(*body->domain->engine, body->rx_size,
                                                     FI_REMOTE_CQ_DATA, APERTURE_INVALIDATED);
    body->shared_core = core.get();
    body->core = std::move(core);
    auto ep = new_ep_handle(*body, context);
    ep->rx_flags = asked.op_flags;
    ep->rx_iov_limit =
        asked.iov_limit != 0 ? std::min(asked.iov_limit, qp::kIovLimit) : qp::kIovLimit;
    ep->settle();
    body->handles.push_back(ep.get());
    assert(body->handles.size() == 1 && body->shared_core != nullptr);
    body->domain->uses.add();
    static_cast<void>(body.release());  // its handle leads to it
    *out = &ep.release()->fid;
    return 0;
  });
}

int bind_shared_receive(EpBody& body, EpBody& shared) {
  if (body.kind != EpKind::connected || !body.wants_shared_receive)
    return refuse(
        -FI_EINVAL,
        "fi_ep_bind: the endpoint has receives of its own; open it with ep_attr->type FI_EP_MSG "
        "and rx_ctx_cnt FI_SHARED_CONTEXT");
  if (shared.domain != body.domain)
    return refuse(-FI_EDOMAIN, "fi_ep_bind: the shared receive context belongs to another domain");
  if (body.shared != nullptr)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: a shared receive context is bound already; an endpoint has one");
  assert(body.core == nullptr && shared.shared_core != nullptr);
  shared.uses.add();
  body.shared = &shared;
  return 0;
}

fi_ops_cm g_srx_cm_ops = refusing<fi_ops_cm>(
    NotOffered<"fi_cm: a shared receive context has no address and no connection; its endpoints "
               "have",
               -FI_EOPNOTSUPP>{});

}  // namespace aperture::provider
