// Opening, enabling, aliasing and closing endpoints: see ep.hpp.
#include "provider/ep.hpp"

#include <cassert>

#include "provider/addressing.hpp"
#include "provider/collective.hpp"
#include "provider/context_attr.hpp"
#include "provider/ep_buffered.hpp"
#include "provider/ep_dgram.hpp"
#include "provider/ep_sources.hpp"
#include "provider/errors.hpp"
#include "provider/stubs.hpp"
#include "provider/stx.hpp"
#include "provider/window.hpp"
#include "provider/wording.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

void let_go(EpBody& body) noexcept {
  {
    nic::EngineGuard guard(*body.domain->engine);
    body.closing = true;
    if (body.av != nullptr) std::erase(body.av->endpoints, &body);
    body.leave_regions();
    if (body.domain->work != nullptr) body.domain->work->forget(body);
    if (body.groups != nullptr) body.groups->close();
  }
  body.core.reset();  // not under the lock: it may wait for a connection to come up
  body.groups.reset();
  leave_request(body);
  if (body.context_of != nullptr) leave_scalable(body);
  if (body.shared != nullptr) leave_shared(body);
  if (body.stx != nullptr) leave_shared_transmit(body);
  if (body.av != nullptr) body.av->uses.drop();
  if (body.tx_cq != nullptr) body.tx_cq->uses.drop();
  if (body.rx_cq != nullptr) body.rx_cq->uses.drop();
  if (body.eq != nullptr) {
    for (const Ep* handle : body.handles) body.eq->forget(&handle->fid.fid);
    body.eq->uses.drop();
  }
  for (Cntr* counter : body.counters) {
    if (counter != nullptr) counter->uses.drop();
  }
  body.domain->uses.drop();
}

// False: it is the last handle. Nothing that is still to be read names one that is closed.
bool close_alias(Ep& ep) {
  EpBody& body = *ep.body;
  nic::EngineGuard guard(*body.domain->engine);
  if (body.handles.size() == 1) return false;
  [[maybe_unused]] const size_t gone = std::erase(body.handles, &ep);
  assert(gone == 1 && !body.handles.empty());
  fid_ep* const now = &body.handles.front()->fid;
  body.reports.name(&now->fid);
  if (body.eq != nullptr) body.eq->rename(&ep.fid.fid, &now->fid);
  body.buffered_rule.receiver = now;
  return true;
}

int close_ep(fid* fid) noexcept {
  return guarded_close("fi_close(ep)", fid, [&]() -> int {
    auto& ep = object_of<Ep>(fid);
    EpBody* body = ep.body;
    if (const uint32_t n = body->uses.count(); n != 0)
      return refuse(-FI_EBUSY, "fi_close(%s): %u %s; close them first",
                    body->scalable ? "sep" : "srx", n,
                    body->scalable ? "context(s) of it are open" : "endpoint(s) use it");
    if (!close_alias(ep)) {
      if (const uint32_t n = body->multicasts.count(); n != 0)
        return refuse(-FI_EBUSY, "fi_close(ep): %u multicast group(s) are joined; close them first",
                      n);
      if (const int rc = body->check_regions(); rc != 0) return rc;
      if (body->groups != nullptr && !body->groups->joined.empty())
        return refuse(-FI_EBUSY,
                      "fi_close(ep): it is a member of %zu group(s) (fi_join_collective); close "
                      "these first",
                      body->groups->joined.size());
      let_go(*body);
      delete body;
    }
    delete &ep;
    return 0;
  });
}

fi_ops g_ep_fid_ops = fid_ops<"ep">(close_ep, bind_ep, control_ep);

fi_ep_type type_of(const fi_info& info) noexcept {
  return info.ep_attr != nullptr ? info.ep_attr->type : FI_EP_UNSPEC;
}

int check_type(const fi_ep_attr& attr) {
  if (attr.type != FI_EP_RDM && attr.type != FI_EP_MSG && attr.type != FI_EP_DGRAM &&
      attr.type != FI_EP_UNSPEC)
    return refuse(
        -FI_EINVAL,
        "fi_endpoint: FI_EP_RDM, FI_EP_MSG and FI_EP_DGRAM are offered; type %d was given",
        static_cast<int>(attr.type));
  return 0;
}

// Prefixes are of both directions or of none.
int check_modes(const fi_info& info) {
  const uint64_t tx = info.tx_attr != nullptr ? info.tx_attr->mode : info.mode;
  const uint64_t rx = info.rx_attr != nullptr ? info.rx_attr->mode : info.mode;
  if (((tx ^ rx) & FI_MSG_PREFIX) != 0)
    return refuse(
        -FI_EINVAL,
        "fi_endpoint: FI_MSG_PREFIX is a mode of one direction alone; leave tx_attr->mode "
        "and rx_attr->mode as fi_getinfo returned them");
  if ((tx & FI_MSG_PREFIX) == 0 || type_of(info) == FI_EP_DGRAM) return 0;
  return refuse(-FI_EINVAL,
                "fi_endpoint: FI_MSG_PREFIX is for FI_EP_DGRAM; leave the modes as fi_getinfo "
                "returned them");
}

int check_info(const fi_info& info) {
  if (info.ep_attr != nullptr) {
    if (const int rc = check_type(*info.ep_attr); rc != 0) return rc;
  }
  if (const int rc = check_modes(info); rc != 0) return rc;
  const uint64_t known = caps_of(type_of(info));
  if ((info.caps & ~known) != 0)
    return refuse(
        -FI_EINVAL,
        "fi_endpoint: info->caps has bits that fi_getinfo did not return (0x%llx); pass the info "
        "that it returned",
        static_cast<unsigned long long>(info.caps & ~known));
  if (const int rc = check_limits("fi_endpoint", info.tx_attr); rc != 0) return rc;
  return check_limits("fi_endpoint", info.rx_attr);
}

int set_auth_key(EpBody& body, const fi_info& info) {
  const bool given = body.domain->api_version >= kApi15 && info.ep_attr != nullptr;
  if (body.domain->av_keys) {
    if (body.kind != EpKind::datagram)
      return refuse(-FI_EOPNOTSUPP,
                    "fi_endpoint: in a domain with FI_AV_AUTH_KEY endpoints are FI_EP_RDM, and not "
                    "scalable ones; open another domain for others");
    if (given && (info.ep_attr->auth_key != nullptr || info.ep_attr->auth_key_size != 0))
      return refuse(-FI_EINVAL,
                    "fi_endpoint: ep_attr has an authorization key, and the domain FI_AV_AUTH_KEY; "
                    "leave auth_key NULL and its size 0");
  }
  auto key = auth_key_of(*body.domain, "fi_endpoint: ep_attr->auth_key",
                         given ? info.ep_attr->auth_key : nullptr,
                         given ? info.ep_attr->auth_key_size : 0);
  if (!key) return fi_code(key.error());
  if (body.kind == EpKind::unreliable && key->secret != nullptr)
    return refuse(-FI_EOPNOTSUPP,
                  "fi_endpoint: datagrams (FI_EP_DGRAM) prove no authorization key, and the "
                  "endpoint has one, its own or the domain's; open it without, or an FI_EP_RDM");
  body.auth_key = *std::move(key);
  return 0;
}

void take_limits(Ep& ep, EpBody& body, const fi_info& info) {
  const fi_tx_attr* tx = info.tx_attr;
  const fi_rx_attr* rx = info.rx_attr;
  body.tx_caps = (tx != nullptr && tx->caps != 0 ? tx->caps : info.caps) & kTxCaps;
  body.rx_caps = (rx != nullptr && rx->caps != 0 ? rx->caps : info.caps) & kRxCaps;
  const uint64_t mode = tx != nullptr ? tx->mode : info.mode;
  if ((mode & FI_MSG_PREFIX) != 0) body.prefix_bytes = kPrefixBytes;
  body.msg_order = tx != nullptr ? tx->msg_order : 0;
  body.tx_size = or_else(tx != nullptr ? tx->size : 0, kDefaultQueueSize);
  body.rx_size = or_else(rx != nullptr ? rx->size : 0, kDefaultQueueSize);
  ep.tx_flags = tx != nullptr ? tx->op_flags : 0;
  ep.rx_flags = rx != nullptr ? rx->op_flags : 0;
  if (info.ep_attr != nullptr && info.ep_attr->max_msg_size != 0)
    ep.max_msg_size = std::min<uint64_t>(info.ep_attr->max_msg_size, qp::kMaxMessageBytes);
  ep.inject_size = tx != nullptr ? tx->inject_size : qp::kInjectBytes;
  ep.tx_iov_limit = or_else(tx != nullptr ? tx->iov_limit : 0, qp::kIovLimit);
  ep.rx_iov_limit = or_else(rx != nullptr ? rx->iov_limit : 0, qp::kIovLimit);
  ep.rma_iov_limit = or_else(tx != nullptr ? tx->rma_iov_limit : 0, qp::kRmaIovLimit);
}

qp::Counter* core_of(Cntr* counter) noexcept {
  return counter != nullptr ? &counter->core : nullptr;
}

}  // namespace

EpBody::EpBody() noexcept = default;
EpBody::~EpBody() = default;

std::unique_ptr<Ep> new_ep_handle(EpBody& body, void* context) {
  const bool shared = body.kind == EpKind::shared_receive;
  const bool scalable = body.kind == EpKind::scalable;
  auto ep = std::make_unique<Ep>();
  ep->body = &body;
  ep->engine = body.domain->engine.get();
  const size_t fclass = shared                            ? FI_CLASS_SRX_CTX
                        : scalable                        ? FI_CLASS_SEP
                        : body.part == EpPart::tx_context ? FI_CLASS_TX_CTX
                        : body.part == EpPart::rx_context ? FI_CLASS_RX_CTX
                                                          : FI_CLASS_EP;
  ep->fid.fid = {fclass, context, &g_ep_fid_ops};
  ep->fid.ops = scalable ? &g_scalable_ep_ops : &g_ep_ops;
  ep->fid.cm = shared                           ? &g_srx_cm_ops
               : body.kind == EpKind::connected ? &g_msg_cm_ops
                                                : &g_ep_cm_ops;
  ep->fid.collective = &g_collective_ops;
  return ep;
}

nic::EndpointOptions options_of(const EpBody& body) {
  nic::EndpointOptions o;
  o.engine = body.domain->engine.get();
  o.addresses = body.av != nullptr ? &body.av->table : nullptr;
  o.tx_cq = body.tx_cq != nullptr ? &body.tx_cq->core : nullptr;
  o.rx_cq = body.rx_cq != nullptr ? &body.rx_cq->core : nullptr;
  o.counters.send = core_of(body.counters[kSendCounter]);
  o.counters.recv = core_of(body.counters[kRecvCounter]);
  o.counters.read = core_of(body.counters[kReadCounter]);
  o.counters.write = core_of(body.counters[kWriteCounter]);
  o.counters.remote_read = core_of(body.counters[kRemoteReadCounter]);
  o.counters.remote_write = core_of(body.counters[kRemoteWriteCounter]);
  o.id = body.id;
  o.wording = &kFabricWording;
  o.watches_regions = (body.rx_caps & FI_RMA_EVENT) != 0;
  o.local = body.local;
  o.domain = body.auth_key.pd;
  o.auth_key = body.auth_key.secret;
  o.keys = body.av_keys;
  if (body.domain->region_rules.raw_keys) o.raw_keys = &body.domain->mapped_keys.raw;
  o.imm_flag = FI_REMOTE_CQ_DATA;
  o.invalidated_flag = APERTURE_INVALIDATED;
  o.release_flag = FI_MULTI_RECV;
  if (body.buffered) o.buffered = &body.buffered_rule;
  o.remote_write_flags = FI_REMOTE_WRITE | FI_RMA;
  o.groups = body.groups != nullptr;
  o.directed_recv = names_sources(body);
  o.report_source = (body.rx_caps & FI_SOURCE) != 0;
  o.strict_rma_order = (body.msg_order & kRmaOrderBits) != 0;
  o.tx_size = body.tx_size;
  if ((body.tx_caps & FI_ATOMIC) != 0) o.atomics_waiting = std::min(body.tx_size, kAtomicsWaiting);
  o.rx_size = body.rx_size;
  if (body.shared != nullptr) o.shared_receive = body.shared->shared_core;
  if (body.stx != nullptr) o.shared_transmit = &body.stx->queue;
  if (body.context_of != nullptr) set_context_options(body, o);
  return o;
}

namespace {

bool needs_tx_cq(const EpBody& body) noexcept {
  const uint64_t c = body.tx_caps;
  return ((c & (FI_MSG | FI_TAGGED)) != 0 && (c & FI_SEND) != 0) || (c & FI_COLLECTIVE) != 0 ||
         ((c & (FI_RMA | FI_ATOMIC)) != 0 && (c & (FI_READ | FI_WRITE)) != 0);
}

bool needs_rx_cq(const EpBody& body) noexcept {
  return (body.rx_caps & (FI_MSG | FI_TAGGED)) != 0 && (body.rx_caps & FI_RECV) != 0;
}

}  // namespace

void Ep::settle() noexcept {
  if (body->kind == EpKind::scalable) return settle_scalable(*this);
  tx_selective = body->tx_selective;
  rx_selective = body->rx_selective;
  tx = wish_of(tx_flags);
  tx.fence = false;  // of single operations only
  rx_completion = !rx_selective || (rx_flags & FI_COMPLETION) != 0;
  may_send = (body->tx_caps & FI_SEND) != 0;
  line_end = may_send ? std::min({wire::kLineBytes, inject_size, max_msg_size}) + 1 : 0;
  may_recv = (body->rx_caps & FI_RECV) != 0;
  may_read = (body->tx_caps & FI_READ) != 0;
  may_write = (body->tx_caps & FI_WRITE) != 0;
  buffered = body->buffered;
  may_trigger = body->triggers();
  may_commit = ((body->tx_caps | body->rx_caps) & FI_RMA_PMEM) != 0;
  descriptors = body->domain->region_rules.descriptors;
  pd = body->auth_key.pd != 0 ? body->auth_key.pd : body->domain->engine->domain();
  through = body->kind == EpKind::shared_receive ? 0 : body->id;
  core = body->core.get();
  fid.msg = msg_ops(*this);
  fid.tagged = tagged_ops(*this);
  fid.rma = rma_ops(*this);
  fid.atomic = atomic_ops(*this);
}

namespace {

int enable_datagram(EpBody& body) {
  if (const int rc = take_av_keys(body); rc != 0) return rc;
  if (const int rc = join_address_vector(body); rc != 0) return rc;
  // into the body before it listens: the address vector tells it of changes from there on
  const Status made = nic::Endpoint::create(body.core, options_of(body));
  if (!made)
    return refuse(fi_code(made),
                  "fi_enable: cannot listen at %s: %s; choose another address or port",
                  body.local.print().c_str(), describe(made.error()));
  return 0;
}

}  // namespace

int check_shared(const EpBody& body) {
  if (body.wants_shared_receive && body.shared == nullptr)
    return refuse(-FI_EOPBADSTATE,
                  "fi_enable: no shared receive context is bound; bind one with fi_ep_bind");
  if (body.wants_shared_transmit && body.stx == nullptr)
    return refuse(-FI_EOPBADSTATE,
                  "fi_enable: no shared transmit context is bound; bind one with fi_ep_bind");
  if (body.shared != nullptr && body.rx_cq == nullptr)
    return refuse(
        -FI_ENOCQ,
        "fi_enable: no completion queue is bound with FI_RECV; receives of the shared context "
        "complete there");
  return 0;
}

int enable_ep(Ep& ep) {
  EpBody& body = *ep.body;
  if (body.kind == EpKind::scalable) return enable_scalable(body);
  if (body.core) return 0;
  if (body.context_of != nullptr) {
    if (const int rc = enter_port(body); rc != 0) return rc;
  }
  const bool has_addresses = body.kind == EpKind::datagram || body.kind == EpKind::unreliable;
  if (body.av == nullptr && has_addresses)
    return refuse(-FI_ENOAV, "fi_enable: no address vector is bound; bind one with fi_ep_bind");
  if (needs_tx_cq(body) && body.tx_cq == nullptr)
    return refuse(
        -FI_ENOCQ,
        "fi_enable: no completion queue is bound with FI_TRANSMIT, and errors need one even where "
        "counters do; bind one, or ask for fewer caps");
  if (needs_rx_cq(body) && body.rx_cq == nullptr)
    return refuse(
        -FI_ENOCQ,
        "fi_enable: no completion queue is bound with FI_RECV; bind one, or ask for fewer caps");
  if (const int rc = check_shared(body); rc != 0) return rc;
  const int rc = body.kind == EpKind::connected    ? enable_connected(body)
                 : body.kind == EpKind::unreliable ? enable_unreliable(body)
                                                   : enable_datagram(body);
  if (rc != 0) return rc;
  {
    nic::EngineGuard guard(*body.domain->engine);
    body.local = body.core->address();
    for (Ep* handle : body.handles) handle->settle();
  }
  APERTURE_INFO("endpoint %s is enabled (software NIC)", body.local.print().c_str());
  return 0;
}

int alias_ep(Ep& ep, const struct fi_alias* alias) {
  if (alias == nullptr || alias->fid == nullptr) return -FI_EINVAL;
  const uint64_t side = alias->flags & (FI_TRANSMIT | FI_RECV);
  const uint64_t flags = alias->flags & ~side;
  if (side != FI_TRANSMIT && side != FI_RECV)
    return refuse(-FI_EINVAL, "fi_ep_alias: flags must hold one of FI_TRANSMIT and FI_RECV");
  if (const int rc = check_op_flags("fi_ep_alias", *ep.body, side, flags); rc != 0) return rc;
  if (ep.body->kind == EpKind::shared_receive || ep.body->kind == EpKind::scalable)
    return refuse(-FI_ENOSYS,
                  "fi_ep_alias: shared receive contexts and scalable endpoints have no aliases");
  auto made = new_ep_handle(*ep.body, ep.fid.fid.context);
  made->inject_size = ep.inject_size;
  made->max_msg_size = ep.max_msg_size;
  made->tx_iov_limit = ep.tx_iov_limit;
  made->rx_iov_limit = ep.rx_iov_limit;
  made->rma_iov_limit = ep.rma_iov_limit;
  made->tx_flags = side == FI_TRANSMIT ? flags : ep.tx_flags;
  made->rx_flags = side == FI_RECV ? flags : ep.rx_flags;
  nic::EngineGuard guard(*ep.body->domain->engine);  // it may be being enabled, or closed
  made->settle();
  ep.body->handles.push_back(made.get());
  *alias->fid = &made.release()->fid.fid;
  return 0;
}

namespace {

// What its attributes say of contexts, in an endpoint of fi_endpoint.
int take_contexts(EpBody& body, const fi_ep_attr* attr) {
  if (attr == nullptr) return 0;
  if (attr->type == FI_EP_MSG) body.kind = EpKind::connected;
  if (attr->type == FI_EP_DGRAM) body.kind = EpKind::unreliable;
  body.wants_shared_receive = attr->rx_ctx_cnt == FI_SHARED_CONTEXT;
  body.wants_shared_transmit = attr->tx_ctx_cnt == FI_SHARED_CONTEXT;
  if (attr->type == FI_EP_DGRAM && (body.wants_shared_receive || body.wants_shared_transmit))
    return refuse(-FI_EINVAL,
                  "fi_endpoint: shared contexts are for FI_EP_RDM and FI_EP_MSG; leave tx_ctx_cnt "
                  "and rx_ctx_cnt 0");
  if ((attr->tx_ctx_cnt > 1 && !body.wants_shared_transmit) ||
      (attr->rx_ctx_cnt > 1 && !body.wants_shared_receive))
    return refuse(
        -FI_EINVAL,
        "fi_endpoint: tx_ctx_cnt %zu, rx_ctx_cnt %zu; an endpoint with several contexts is "
        "opened with fi_scalable_ep",
        attr->tx_ctx_cnt, attr->rx_ctx_cnt);
  return 0;
}

template <typename Take>
int open_endpoint(const char* call, fid_domain* fid, const fi_info* info, fid_ep** out,
                  void* context, Take&& take) noexcept {
  return guarded(call, fid, [&]() -> int {
    if (fid == nullptr || info == nullptr || out == nullptr)
      return refuse(-FI_EINVAL, "%s: domain, info or ep is NULL", call);
    if (const int rc = check_info(*info); rc != 0) return rc;
    auto body = std::make_unique<EpBody>();
    body->domain = &object_of<Domain>(fid);
    if (const int rc = take(*body); rc != 0) return rc;
    auto ep = new_ep_handle(*body, context);
    body->handles.push_back(ep.get());
    const uint32_t format = body->domain->addr_format;
    const int taken = take_source(call, *info, format, body->local);
    if (taken != 0) return taken;
    if (const int rc = set_auth_key(*body, *info); rc != 0) return rc;
    take_limits(*ep, *body, *info);
    if (const int rc = check_op_flags(call, *body, FI_TRANSMIT, ep->tx_flags); rc != 0) return rc;
    if (const int rc = check_op_flags(call, *body, FI_RECV, ep->rx_flags); rc != 0) return rc;
    if (const int rc = set_buffered(*ep, *info); rc != 0) return rc;
    ep->settle();
    if (body->keeps_work()) {
      if (const int rc = begin_work(*body->domain); rc != 0) return rc;
    }
    if ((body->tx_caps & FI_COLLECTIVE) != 0) {
      if (const int rc = begin_groups(*body); rc != 0) return rc;
    }
    // last: from here on nothing fails
    if (info->handle != nullptr && body->kind == EpKind::connected) {
      if (const int rc = take_handle(*body, *info); rc != 0) return rc;
    }
    assert(body->handles.size() == 1 && body->core == nullptr);
    body->domain->uses.add();
    if ((body->rx_caps & FI_RMA_EVENT) != 0) body->domain->counts_regions = true;
    static_cast<void>(body.release());  // its handles lead to it
    *out = &ep.release()->fid;
    return 0;
  });
}

}  // namespace

int open_ep(fid_domain* fid, fi_info* info, fid_ep** out, void* context) noexcept {
  return open_endpoint("fi_endpoint", fid, info, out, context,
                       [&](EpBody& body) { return take_contexts(body, info->ep_attr); });
}

int open_scalable_ep(fid_domain* fid, fi_info* info, fid_ep** out, void* context) noexcept {
  return open_endpoint("fi_scalable_ep", fid, info, out, context, [&](EpBody& body) {
    if (type_of(*info) == FI_EP_MSG || type_of(*info) == FI_EP_DGRAM)
      return refuse(-FI_EINVAL,
                    "fi_scalable_ep: an endpoint of FI_EP_MSG or FI_EP_DGRAM has one "
                    "context; FI_EP_RDM may have several");
    return make_scalable(*info, body);
  });
}

}  // namespace aperture::provider
