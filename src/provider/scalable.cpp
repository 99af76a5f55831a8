// Scalable endpoints and their contexts: see scalable.hpp.
#include "provider/scalable.hpp"

#include <rdma/fi_collective.h>

#include <cassert>

#include "provider/context_attr.hpp"
#include "provider/ep.hpp"
#include "provider/errors.hpp"
#include "provider/offer.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

using InItsContexts = NotOffered<
    "a scalable endpoint transfers nothing itself; open contexts of it with "
    "fi_tx_context and fi_rx_context, and post to those",
    -FI_EOPNOTSUPP>;

fi_ops_msg g_msg = refusing<fi_ops_msg>(InItsContexts{});
fi_ops_tagged g_tagged = refusing<fi_ops_tagged>(InItsContexts{});
fi_ops_rma g_rma = refusing<fi_ops_rma>(InItsContexts{});
fi_ops_atomic g_atomic = refusing<fi_ops_atomic>(InItsContexts{});

int have_port(EpBody& body) {
  Scalable& s = *body.scalable;
  if (s.port != nullptr) return 0;
  auto port = nic::ContextPort::open(body.local);
  if (!port)
    return refuse(fi_code(port.error()),
                  "fi_enable: cannot listen at %s: %s; choose another address or port",
                  body.local.print().c_str(), describe(port.error()));
  s.port = *std::move(port);
  body.local = s.port->address();
  APERTURE_INFO("scalable endpoint %s is enabled (software NIC)", body.local.print().c_str());
  return 0;
}

// What contexts of both sides are asked alike. `open` are those that are.
int check_context(const char* call, const std::vector<EpBody*>& open, int index, uint64_t beyond) {
  if (index < 0 || static_cast<size_t>(index) >= open.size())
    return refuse(-FI_EINVAL, "%s: index %d; the scalable endpoint was opened with %zu of them",
                  call, index, open.size());
  if (open[static_cast<size_t>(index)] != nullptr)
    return refuse(-FI_EBUSY, "%s: context %d is open already", call, index);
  if (beyond != 0)
    return refuse(-FI_EINVAL,
                  "%s: attr->caps has 0x%llx, which the scalable endpoint was not opened with; a "
                  "context may have less, not more",
                  call, static_cast<unsigned long long>(beyond));
  return 0;
}

std::unique_ptr<EpBody> new_context(EpBody& of, EpPart part, int index) {
  auto body = std::make_unique<EpBody>();
  body->part = part;
  body->context_of = &of;
  body->context_number = static_cast<size_t>(index);
  body->domain = of.domain;
  body->auth_key = of.auth_key;
  body->msg_order = of.msg_order;
  body->min_multi_recv = of.min_multi_recv;
  return body;
}

// Nothing fails any more.
void publish(std::unique_ptr<EpBody> body, std::unique_ptr<Ep> ep, std::vector<EpBody*>& contexts,
             fid_ep** out) noexcept {
  assert(contexts[body->context_number] == nullptr && body->handles.size() == 1);
  ep->settle();
  body->domain->uses.add();
  body->context_of->uses.add();
  contexts[body->context_number] = body.get();
  static_cast<void>(body.release());  // its handles lead to it
  *out = &ep.release()->fid;
}

int open_tx_context(fid_ep* fid, int index, fi_tx_attr* attr, fid_ep** out,
                    void* context) noexcept {
  constexpr const char* kCall = "fi_tx_context";
  return guarded(kCall, fid, [&]() -> int {
    if (out == nullptr) return refuse(-FI_EINVAL, "fi_tx_context: tx_ep is NULL");
    auto& whole = object_of<Ep>(fid);
    EpBody& of = *whole.body;
    fi_tx_attr defaults{};
    defaults.op_flags = whole.tx_flags;
    defaults.msg_order = of.msg_order;
    const fi_tx_attr& asked = attr != nullptr ? *attr : defaults;
    std::vector<EpBody*>& contexts = of.scalable->tx;
    if (const int rc = check_context(kCall, contexts, index, asked.caps & ~of.tx_caps); rc != 0)
      return rc;
    if (const int rc = check_limits(kCall, &asked); rc != 0) return rc;
    if ((asked.msg_order & ~kAllOrderBits) != 0)
      return refuse(-FI_EINVAL, "fi_tx_context: attr->msg_order 0x%llx is not all offered",
                    static_cast<unsigned long long>(asked.msg_order));
    auto body = new_context(of, EpPart::tx_context, index);
    body->tx_caps = with_directions(or_else(asked.caps, of.tx_caps)) & of.tx_caps;
    if (const int rc = check_op_flags(kCall, *body, FI_TRANSMIT, asked.op_flags); rc != 0)
      return rc;
    body->msg_order = asked.msg_order;
    body->tx_size = or_else(asked.size, of.tx_size);
    auto ep = new_ep_handle(*body, context);
    ep->max_msg_size = whole.max_msg_size;
    ep->tx_flags = asked.op_flags;
    ep->inject_size = or_else(asked.inject_size, whole.inject_size);
    ep->tx_iov_limit = or_else(asked.iov_limit, whole.tx_iov_limit);
    ep->rma_iov_limit = or_else(asked.rma_iov_limit, whole.rma_iov_limit);
    body->handles.push_back(ep.get());
    if (attr != nullptr) {
      attr->caps = body->tx_caps;
      attr->inject_size = ep->inject_size;
      attr->size = body->tx_size;
      attr->iov_limit = ep->tx_iov_limit;
      attr->rma_iov_limit = ep->rma_iov_limit;
    }
    publish(std::move(body), std::move(ep), contexts, out);
    return 0;
  });
}

int open_rx_context(fid_ep* fid, int index, fi_rx_attr* attr, fid_ep** out,
                    void* context) noexcept {
  constexpr const char* kCall = "fi_rx_context";
  return guarded(kCall, fid, [&]() -> int {
    if (out == nullptr) return refuse(-FI_EINVAL, "fi_rx_context: rx_ep is NULL");
    auto& whole = object_of<Ep>(fid);
    EpBody& of = *whole.body;
    fi_rx_attr defaults{};
    defaults.op_flags = whole.rx_flags;
    const fi_rx_attr& asked = attr != nullptr ? *attr : defaults;
    std::vector<EpBody*>& contexts = of.scalable->rx;
    if (const int rc = check_context(kCall, contexts, index, asked.caps & ~of.rx_caps); rc != 0)
      return rc;
    if (const int rc = check_limits(kCall, &asked); rc != 0) return rc;
    auto body = new_context(of, EpPart::rx_context, index);
    body->rx_caps = with_directions(or_else(asked.caps, of.rx_caps)) & of.rx_caps;
    if (const int rc = check_op_flags(kCall, *body, FI_RECV, asked.op_flags); rc != 0) return rc;
    body->rx_size = or_else(asked.size, of.rx_size);
    auto ep = new_ep_handle(*body, context);
    ep->rx_flags = asked.op_flags;
    ep->rx_iov_limit = or_else(asked.iov_limit, whole.rx_iov_limit);
    body->buffered = of.buffered && (body->rx_caps & FI_RECV) != 0;
    body->buffered_rule = of.buffered_rule;
    body->buffered_rule.receiver = &ep->fid;
    body->handles.push_back(ep.get());
    if (attr != nullptr) {
      attr->caps = body->rx_caps;
      attr->size = body->rx_size;
      attr->iov_limit = ep->rx_iov_limit;
    }
    publish(std::move(body), std::move(ep), contexts, out);
    return 0;
  });
}

}  // namespace

int make_scalable(const fi_info& info, EpBody& body) {
  const fi_ep_attr* attr = info.ep_attr;
  const size_t tx = attr != nullptr ? or_else(attr->tx_ctx_cnt, size_t{1}) : 1;
  const size_t rx = attr != nullptr ? or_else(attr->rx_ctx_cnt, size_t{1}) : 1;
  if (tx == FI_SHARED_CONTEXT || rx == FI_SHARED_CONTEXT)
    return refuse(
        -FI_EINVAL,
        "fi_scalable_ep: shared contexts are for endpoints of fi_endpoint; give tx_ctx_cnt "
        "and rx_ctx_cnt numbers");
  if (tx > kMaxContexts || rx > kMaxContexts)
    return refuse(-FI_EINVAL,
                  "fi_scalable_ep: tx_ctx_cnt %zu, rx_ctx_cnt %zu; at most %zu of each are offered "
                  "(max_ep_tx_ctx, max_ep_rx_ctx)",
                  tx, rx, kMaxContexts);
  if ((info.caps & FI_COLLECTIVE) != 0)
    return refuse(-FI_EINVAL,
                  "fi_scalable_ep: a context sends or receives, and a member of a group does both; "
                  "open an endpoint of fi_endpoint for FI_COLLECTIVE, and this one without it");
  body.kind = EpKind::scalable;
  body.scalable = std::make_unique<Scalable>();
  body.scalable->named = (info.caps & FI_NAMED_RX_CTX) != 0;
  body.scalable->tx.resize(tx);
  body.scalable->rx.resize(rx);
  return 0;
}

int enable_scalable(EpBody& body) {
  if (body.av == nullptr)
    return refuse(-FI_ENOAV,
                  "fi_enable: no address vector is bound; bind one with fi_scalable_ep_bind");
  return have_port(body);
}

int enter_port(EpBody& context) {
  EpBody& of = *context.context_of;
  if (const int rc = enable_scalable(of); rc != 0) return rc;
  if (context.av != nullptr) return 0;
  nic::EngineGuard guard(*context.domain->engine);
  of.av->endpoints.push_back(&context);
  of.av->uses.add();
  context.av = of.av;
  return 0;
}

void leave_scalable(EpBody& context) noexcept {
  EpBody& of = *context.context_of;
  std::vector<EpBody*>& contexts =
      context.part == EpPart::tx_context ? of.scalable->tx : of.scalable->rx;
  assert(contexts[context.context_number] == &context);
  contexts[context.context_number] = nullptr;
  of.uses.drop();
}

void set_context_options(const EpBody& context, nic::EndpointOptions& options) noexcept {
  const EpBody& of = *context.context_of;
  const Address& at = of.scalable->port->address();
  const size_t number = context.context_number;
  const bool transmits = context.part == EpPart::tx_context;
  const bool named = number == 0 || of.scalable->named;
  options.local = transmits ? at.of_tx_context(number) : at.of_rx_context(number);
  options.at_open_port = true;
  options.connects_only = transmits || !named;
}

void settle_scalable(Ep& ep) noexcept {
  ep.fid.msg = &g_msg;
  ep.fid.tagged = &g_tagged;
  ep.fid.rma = &g_rma;
  ep.fid.atomic = &g_atomic;
}

fi_ops_ep g_scalable_ep_ops = [] {
  fi_ops_ep ops = g_ep_ops;
  ops.tx_ctx = open_tx_context;
  ops.rx_ctx = open_rx_context;
  return ops;
}();

}  // namespace aperture::provider
