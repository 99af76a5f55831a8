// fi_ep_bind: see ep.hpp. man 3 fi_endpoint, "fi_ep_bind".
#include "provider/ep.hpp"

#include <cassert>

namespace aperture::provider {

namespace {

constexpr uint64_t kCqFlags = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
constexpr uint64_t kLocalCounterFlags = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
constexpr uint64_t kRemoteCounterFlags = FI_REMOTE_READ | FI_REMOTE_WRITE;
constexpr uint64_t kCounterFlags = kLocalCounterFlags | kRemoteCounterFlags;
constexpr uint64_t kFlagOfKind[kCounterKinds] = {FI_SEND,  FI_RECV,        FI_READ,
                                                 FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE};

int wrong_domain(const char* what) {
  return refuse(-FI_EDOMAIN, "fi_ep_bind: the %s belongs to another domain than the endpoint",
                what);
}

int bind_cq(EpBody& body, FabricCq& cq, uint64_t flags) {
  if ((flags & ~kCqFlags) != 0)
    return refuse(-FI_EBADFLAGS,
                  "fi_ep_bind: flags 0x%llx; a CQ is bound with FI_TRANSMIT, FI_RECV and "
                  "FI_SELECTIVE_COMPLETION",
                  static_cast<unsigned long long>(flags));
  if ((flags & (FI_TRANSMIT | FI_RECV)) == 0)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: say which completions go to this CQ: FI_TRANSMIT, FI_RECV or both");
  if (body.part != EpPart::whole &&
      (flags & (body.part == EpPart::tx_context ? FI_RECV : FI_TRANSMIT)) != 0)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: a transmit context has no receives, and a receive context transmits "
                  "nothing; bind the one with FI_TRANSMIT, the other with FI_RECV");
  if (cq.domain != body.domain) return wrong_domain("completion queue");
  if (((flags & FI_TRANSMIT) != 0 && body.tx_cq != nullptr) ||
      ((flags & FI_RECV) != 0 && body.rx_cq != nullptr)) {
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: a CQ is bound for that direction already; an endpoint has one each");
  }
  const bool selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
  if ((flags & FI_TRANSMIT) != 0) {
    body.tx_cq = &cq;
    body.tx_selective = selective;
    cq.uses.add();
  }
  if ((flags & FI_RECV) != 0) {
    body.rx_cq = &cq;
    body.rx_selective = selective;
    cq.uses.add();
  }
  return 0;
}

int bind_counter(EpBody& body, Cntr& counter, uint64_t flags) {
  if ((flags & ~kCounterFlags) != 0)
    return refuse(-FI_EBADFLAGS,
                  "fi_ep_bind: flags 0x%llx; a counter is bound with FI_SEND, FI_RECV, FI_READ, "
                  "FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE",
                  static_cast<unsigned long long>(flags));
  if (flags == 0)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: say what the counter counts: FI_SEND, FI_RECV, FI_READ, FI_WRITE, "
                  "FI_REMOTE_READ, FI_REMOTE_WRITE");
  if ((flags & kRemoteCounterFlags) != 0 && (body.rx_caps & FI_RMA_EVENT) == 0) {
    constexpr const char* kWhy =
        "fi_ep_bind: the endpoint was opened without FI_RMA_EVENT, so it cannot count remote "
        "accesses; ask for it in hints->caps, or bind without FI_REMOTE_READ and FI_REMOTE_WRITE";
    flags &= kLocalCounterFlags;
    if (flags == 0) return refuse(-FI_EINVAL, kWhy);
    APERTURE_WARN("%s", kWhy);  // programs that open all kinds of endpoints bind all kinds at once
  }
  if (counter.domain != body.domain) return wrong_domain("counter");
  for (int kind = 0; kind < kCounterKinds; ++kind) {
    if ((flags & kFlagOfKind[kind]) != 0 && body.counters[kind] != nullptr)
      return refuse(-FI_EINVAL,
                    "fi_ep_bind: a counter is bound for that kind of operation already");
  }
  for (int kind = 0; kind < kCounterKinds; ++kind) {
    if ((flags & kFlagOfKind[kind]) == 0) continue;
    assert(body.counters[kind] == nullptr);
    body.counters[kind] = &counter;
    counter.uses.add();
  }
  return 0;
}

int bind_av(EpBody& body, Av& av, uint64_t flags) {
  if (flags != 0) return refuse(-FI_EBADFLAGS, "fi_ep_bind: flags must be 0 for an address vector");
  if (av.domain != body.domain) return wrong_domain("address vector");
  if (body.kind == EpKind::connected)
    return refuse(-FI_EINVAL, "fi_ep_bind: a connected endpoint (FI_EP_MSG) has no address vector");
  if (body.context_of != nullptr)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: a context has the address vector of its scalable endpoint; bind it "
                  "there, with fi_scalable_ep_bind");
  if (body.av != nullptr)
    return refuse(-FI_EINVAL,
                  "fi_ep_bind: an address vector is bound already; an endpoint has one");
  nic::EngineGuard guard(*body.domain->engine);
  assert(body.av == nullptr && body.core == nullptr);
  av.endpoints.push_back(&body);
  av.uses.add();
  body.av = &av;
  return 0;
}

}  // namespace

int bind_ep(fid* fid, struct fid* what, uint64_t flags) noexcept {
  return guarded("fi_ep_bind", fid, [&]() -> int {
    auto& ep = object_of<Ep>(fid);
    EpBody& body = *ep.body;
    if (what == nullptr) return refuse(-FI_EINVAL, "fi_ep_bind: bfid is NULL");
    if (body.kind == EpKind::shared_receive)
      return refuse(
          -FI_EINVAL,
          "fi_ep_bind: nothing is bound to a shared receive context; bind it to endpoints, whose "
          "queues its receives complete in");
    if (body.kind == EpKind::scalable && what->fclass != FI_CLASS_AV && what->fclass != FI_CLASS_EQ)
      return refuse(-FI_EINVAL,
                    "fi_scalable_ep_bind: address vectors and event queues are bound to a scalable "
                    "endpoint, all else to its contexts");
    const bool enabled =
        body.core != nullptr || (body.scalable != nullptr && body.scalable->port != nullptr);
    if (enabled && what->fclass != FI_CLASS_EQ)
      return refuse(-FI_EOPBADSTATE, "fi_ep_bind: the endpoint is enabled; bind before fi_enable");
    switch (what->fclass) {
      case FI_CLASS_CQ: return bind_cq(body, object_of<FabricCq>(what), flags);
      case FI_CLASS_CNTR: return bind_counter(body, object_of<Cntr>(what), flags);
      case FI_CLASS_AV: return bind_av(body, object_of<Av>(what), flags);
      case FI_CLASS_EQ: return bind_eq("fi_ep_bind", what, flags, 0, body.domain->fabric, body.eq);
      case FI_CLASS_SRX_CTX:
        if (flags == 0) return bind_shared_receive(body, *object_of<Ep>(what).body);
        return refuse(-FI_EBADFLAGS, "fi_ep_bind: flags must be 0 for a shared receive context");
      case FI_CLASS_STX_CTX:
        if (flags == 0) return bind_shared_transmit(body, what);
        return refuse(-FI_EBADFLAGS, "fi_ep_bind: flags must be 0 for a shared transmit context");
      case FI_CLASS_MR:
        return refuse(-FI_ENOSYS,
                      "fi_ep_bind: a region is not bound to an endpoint this way; call fi_mr_bind");
      default:
        return refuse(-FI_EINVAL,
                      "fi_ep_bind: an object of class %zu cannot be bound to an endpoint",
                      what->fclass);
    }
  });
}

}  // namespace aperture::provider
