// Shared receive contexts: fi_srx_context. man 3 fi_endpoint, "SHARED CONTEXTS".
//
// A handle like an endpoint's, with the receiving calls only. Receives may be posted from the
// start; they complete in the queue of the endpoint that the message came to.
#include <rdma/fi_cm.h>

#include <cassert>

#include "provider/context_attr.hpp"
#include "provider/ep.hpp"
#include "provider/ep_sources.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"
#include "provider/window.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

constexpr uint64_t kSourceCaps = FI_DIRECTED_RECV | FI_SOURCE;

int check_attr(const fi_rx_attr& attr) {
  if ((attr.op_flags & FI_MULTI_RECV) != 0)
    return refuse(
        -FI_EBADFLAGS,
        "fi_srx_context: multi-receive buffers (FI_MULTI_RECV) are not offered in a shared "
        "context; post them to endpoints with receives of their own");
  if ((attr.caps & ~kRxCaps) != 0)
    return refuse(-FI_EINVAL,
                  "fi_srx_context: caps 0x%llx; FI_MSG, FI_TAGGED, FI_RECV, FI_DIRECTED_RECV, "
                  "FI_SOURCE and FI_TRIGGER are offered",
                  static_cast<unsigned long long>(attr.caps));
  return check_limits("fi_srx_context", &attr);
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
    body->rx_caps = (messages != 0 ? messages : FI_MSG | FI_TAGGED) | FI_RECV |
                    (asked.caps & (kSourceCaps | FI_TRIGGER));
    const int flagged = check_op_flags("fi_srx_context", *body, FI_RECV, asked.op_flags);
    if (flagged != 0) return flagged;
    if (body->keeps_work()) {
      if (const int rc = begin_work(*body->domain); rc != 0) return rc;
    }
    body->rx_size = or_else(asked.size, kDefaultQueueSize);
    const nic::SharedReceive::Options options{
        .rx_size = body->rx_size,
        .imm_flag = FI_REMOTE_CQ_DATA,
        .invalidated_flag = APERTURE_INVALIDATED,
        .directed_recv = (asked.caps & FI_DIRECTED_RECV) != 0,
        .report_source = (asked.caps & FI_SOURCE) != 0,
    };
    auto core = std::make_unique<nic::SharedReceive>(*body->domain->engine, options);
    body->shared_core = core.get();
    body->core = std::move(core);
    auto ep = new_ep_handle(*body, context);
    ep->rx_flags = asked.op_flags;
    ep->rx_iov_limit = or_else(asked.iov_limit, qp::kIovLimit);
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
  if (!body.wants_shared_receive)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: the endpoint has receives of its own; open it with "
                  "ep_attr->rx_ctx_cnt FI_SHARED_CONTEXT");
  if (shared.domain != body.domain)
    return refuse(-FI_EDOMAIN, "fi_ep_bind: the shared receive context belongs to another domain");
  if (body.shared != nullptr)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: a shared receive context is bound already; an endpoint has one");
  for (const bool tagged : {false, true}) {
    if (reads_sources(body, tagged))
      return refuse(-FI_EINVAL,
                    "fi_ep_bind: FI_TAGGED_DIRECTED_RECV and FI_EXACT_DIRECTED_RECV are for "
                    "endpoints with receives of their own; ask for FI_DIRECTED_RECV");
  }
  constexpr uint64_t kOfReceives = FI_MSG | FI_TAGGED | kSourceCaps;
  if ((body.rx_caps & kOfReceives & ~shared.rx_caps) != 0)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: the endpoint's receive capabilities 0x%llx are no subset of those "
                  "of the shared receive context (0x%llx); open that with the rx_attr of the "
                  "endpoint's info",
                  static_cast<unsigned long long>(body.rx_caps & kOfReceives),
                  static_cast<unsigned long long>(shared.rx_caps));
  assert(body.core == nullptr && shared.shared_core != nullptr);
  shared.uses.add();
  body.shared = &shared;
  return 0;
}

int join_address_vector(EpBody& body) {
  if (body.shared == nullptr || body.in_av_of_shared) return 0;
  EpBody& shared = *body.shared;
  if (shared.av_users != 0 && shared.av != body.av)
    return refuse(-FI_EINVAL,
                  "fi_enable: the endpoint has another address vector than the others that share "
                  "its receive context; bind theirs");
  shared.av = body.av;
  ++shared.av_users;
  body.in_av_of_shared = true;
  return 0;
}

void leave_shared(EpBody& body) noexcept {
  EpBody& shared = *body.shared;
  if (body.in_av_of_shared) {
    assert(shared.av_users != 0);
    if (--shared.av_users == 0) shared.av = nullptr;
  }
  shared.uses.drop();
}

fi_ops_cm g_srx_cm_ops = refusing<fi_ops_cm>(
    NotOffered<"fi_cm: a shared receive context has no address and no connection; its endpoints "
               "have",
               -FI_EOPNOTSUPP>{});

}  // namespace aperture::provider
