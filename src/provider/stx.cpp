// Opening, binding and closing shared transmit contexts: see stx.hpp.
#include "provider/stx.hpp"

#include <cassert>

#include "provider/context_attr.hpp"
#include "provider/ep.hpp"
#include "provider/errors.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

int close_stx(fid* fid) noexcept {
  return guarded_close("fi_close(stx)", fid, [&]() -> int {
    auto& stx = object_of<Stx>(fid);
    if (const uint32_t n = stx.uses.count(); n != 0)
      return refuse(-FI_EBUSY, "fi_close(stx): %u endpoint(s) use it; close them first", n);
    assert(stx.queue.queued == 0 && stx.queue.wqes.out() == 0);
    stx.domain->uses.drop();
    delete &stx;
    return 0;
  });
}

int refuse_bind(fid*, struct fid*, uint64_t) noexcept {
  return refuse(-FI_EINVAL,
                "fi_ep_bind: nothing is bound to a shared transmit context; bind it to endpoints, "
                "whose queues and counters its operations complete in");
}

fi_ops g_stx_fid_ops = fid_ops<"stx">(close_stx, refuse_bind, refuse_control<"stx">);

fi_ops_ep g_stx_ops = refusing<fi_ops_ep>(
    NotOffered<"fi_ep: operations are posted to the endpoints of a shared transmit context, and "
               "canceled and configured there">{});

int check_attr(const fi_tx_attr& attr) {
  if ((attr.op_flags & ~kTxOpFlags) != 0)
    return refuse(-FI_EBADFLAGS, "fi_stx_context: op_flags 0x%llx are not offered",
                  static_cast<unsigned long long>(attr.op_flags));
  if ((attr.caps & ~kSharedTxCaps) != 0)
    return refuse(-FI_EINVAL, "fi_stx_context: caps 0x%llx are not offered for transmitting",
                  static_cast<unsigned long long>(attr.caps & ~kSharedTxCaps));
  return check_limits("fi_stx_context", &attr);
}

// What the endpoint has more of than the context; nullptr: nothing.
const char* beyond(const EpBody& body, const Stx& stx) noexcept {
  if ((body.tx_caps & ~stx.caps) != 0) return "caps";
  if (body.tx_size > stx.queue.size) return "size";
  for (const Ep* ep : body.handles) {
    if (ep->inject_size > stx.inject_size) return "inject_size";
    if (ep->tx_iov_limit > stx.iov_limit) return "iov_limit";
    if (ep->rma_iov_limit > stx.rma_iov_limit) return "rma_iov_limit";
  }
  return nullptr;
}

}  // namespace

int open_stx(fid_domain* fid, fi_tx_attr* attr, fid_stx** out, void* context) noexcept {
  return guarded("fi_stx_context", fid, [&]() -> int {
    if (fid == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "fi_stx_context: domain or stx is NULL");
    const fi_tx_attr defaults{};
    const fi_tx_attr& asked = attr != nullptr ? *attr : defaults;
    if (const int rc = check_attr(asked); rc != 0) return rc;
    const uint64_t caps = with_directions(or_else(asked.caps, kSharedTxCaps)) & kSharedTxCaps;
    const size_t size = or_else(asked.size, kDefaultQueueSize);
    auto stx = std::make_unique<Stx>(
        size, (caps & FI_ATOMIC) != 0 ? std::min(size, kAtomicsWaiting) : size_t{0});
    stx->fid.fid = {FI_CLASS_STX_CTX, context, &g_stx_fid_ops};
    stx->fid.ops = &g_stx_ops;
    stx->domain = &object_of<Domain>(fid);
    stx->caps = caps;
    stx->inject_size = or_else(asked.inject_size, qp::kInjectBytes);
    stx->iov_limit = or_else(asked.iov_limit, qp::kIovLimit);
    stx->rma_iov_limit = or_else(asked.rma_iov_limit, qp::kRmaIovLimit);
    stx->domain->uses.add();
    *out = &stx.release()->fid;
    return 0;
  });
}

int bind_shared_transmit(EpBody& body, struct fid* what) {
  auto& stx = object_of<Stx>(what);
  if (!body.wants_shared_transmit)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: the endpoint has a transmit context of its own; open it with "
                  "ep_attr->tx_ctx_cnt FI_SHARED_CONTEXT");
  if (stx.domain != body.domain)
    return refuse(-FI_EDOMAIN, "fi_ep_bind: the shared transmit context belongs to another domain");
  if (body.stx != nullptr)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: a shared transmit context is bound already; an endpoint has one");
  if (const char* attribute = beyond(body, stx); attribute != nullptr)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: the endpoint's tx_attr->%s goes beyond that of the shared transmit "
                  "context; open that with the tx_attr of the endpoint's info",
                  attribute);
  assert(body.core == nullptr);
  stx.uses.add();
  body.stx = &stx;
  return 0;
}

void leave_shared_transmit(EpBody& body) noexcept {
  body.stx->uses.drop();
}

}  // namespace aperture::provider
