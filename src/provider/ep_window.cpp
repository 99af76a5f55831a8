// Sending with invalidation: see window.hpp. man 3 fi_msg; docs/man/aperture_fi_window.3. Data
// path: no allocation.
#include "provider/ep_described.hpp"
#include "provider/post_message.hpp"
#include "provider/window.hpp"

namespace aperture::provider {

namespace {
constexpr const char* kCall = "aperture_window send_inv";
}  // namespace

ssize_t send_inv(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t dest, uint64_t key,
                 void* context) noexcept {
  if (fid == nullptr || !is_endpoint(fid->fid.fclass))
    return refuse(-FI_EINVAL, "%s: it is no endpoint", kCall);
  auto& ep = object_of<Ep>(fid);
  if (ep.core == nullptr)
    return refuse(-FI_EOPBADSTATE, "%s: the endpoint is not enabled; call fi_enable first", kCall);
  if ((ep.body->tx_caps & FI_MSG) == 0) return refuse_side(kCall, "FI_MSG");
  if (!ep.may_send) return refuse_side(kCall, "FI_SEND");
  if (ep.body->kind == EpKind::unreliable)
    return refuse(-FI_EOPNOTSUPP,
                  "%s: nobody answers a datagram (FI_EP_DGRAM), so no window is known to be "
                  "invalidated by one; use a reliable endpoint",
                  kCall);
  if (ep.descriptors != DescriptorRule::ignored && !ep.tx.inject) {
    if (const ssize_t rc = check_buffer(ep, kCall, buf, len, desc, kSendSource); rc != 0) return rc;
  }
  const iovec iov{const_cast<void*>(buf), len};
  qp::SendWr wr;
  if (!measure(&iov, 1, ep.tx_iov_limit, wr.len)) return refuse_pieces(kCall, 1, ep.tx_iov_limit);
  const uint64_t limit = ep.tx.inject ? ep.inject_size : qp::kMaxMessageBytes;
  if (wr.len > limit) return refuse_length(kCall, wr.len, limit);
  wr.iov = &iov;
  wr.iov_count = 1;
  wr.dest = dest;
  wr.imm = key;
  wr.has_imm = true;
  wr.context = context;
  wr.flags = FI_SEND | FI_MSG;
  wr.inject = ep.tx.inject;
  wr.completion = ep.tx.completion;
  wr.delivery =
      qp::kInvalidating | (ep.tx.delivery == qp::kMatched ? qp::kMatched : qp::kDelivered);
  wr.fence = ep.tx.fence;
  const Domain& domain = *ep.body->domain;
  return post(ep, kCall, dest, [&](nic::Endpoint& core) noexcept -> Status {
    if (domain.region_rules.raw_keys && !domain.mapped_keys.raw.has(key)) return Errc::no_key;
    return core.send(wr);
  });
}

}  // namespace aperture::provider
