// Messages: fi_ops_msg. man 3 fi_msg. Data path.
#include "provider/ep_described.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

ssize_t recv(fid_ep* fid, void* buf, size_t len, void*, fi_addr_t source, void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return recv_flat(ep, "fi_recv", {.addr = source, .context = context}, buf, len);
}

ssize_t recvv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t source,
              void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.may_recv) [[unlikely]]
    return refuse_side("fi_recvv", "FI_RECV");
  return recv_message(ep, "fi_recvv",
                      {.iov = iov, .count = count, .addr = source, .context = context},
                      ep.rx_completion);
}

ssize_t recvmsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.may_recv) [[unlikely]]
    return refuse_side("fi_recvmsg", "FI_RECV");
  if (msg == nullptr) [[unlikely]]
    return -FI_EINVAL;
  const bool completion = !ep.rx_selective || (flags & FI_COMPLETION) != 0;
  const Message m{
      .iov = msg->msg_iov, .count = msg->iov_count, .addr = msg->addr, .context = msg->context};
  if ((flags & ~kRecvFlags) != 0) [[unlikely]] {
    if ((flags & ~(kRecvFlags | FI_MULTI_RECV)) == 0)
      return recv_many(ep, "fi_recvmsg", m, completion);
    return refuse_flags("fi_recvmsg", flags, kRecvFlags | FI_MULTI_RECV);
  }
  return recv_message(ep, "fi_recvmsg", m, completion);
}

ssize_t send(fid_ep* fid, const void* buf, size_t len, void*, fi_addr_t dest,
             void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return send_flat(ep, "fi_send", {.addr = dest, .context = context}, buf, len, ep.tx);
}

ssize_t sendv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t dest,
              void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.may_send) [[unlikely]]
    return refuse_side("fi_sendv", "FI_SEND");
  return send_message(ep, "fi_sendv",
                      {.iov = iov, .count = count, .addr = dest, .context = context}, ep.tx);
}

ssize_t sendmsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.may_send) [[unlikely]]
    return refuse_side("fi_sendmsg", "FI_SEND");
  if (msg == nullptr) [[unlikely]]
    return -FI_EINVAL;
  if ((flags & ~kSendFlags) != 0) [[unlikely]]
    return refuse_flags("fi_sendmsg", flags, kSendFlags);
  return send_message(ep, "fi_sendmsg",
                      {.iov = msg->msg_iov,
                       .count = msg->iov_count,
                       .addr = msg->addr,
                       .context = msg->context,
                       .imm = msg->data,
                       .has_imm = (flags & FI_REMOTE_CQ_DATA) != 0},
                      ep.wish_of(flags));
}

ssize_t inject(fid_ep* fid, const void* buf, size_t len, fi_addr_t dest) noexcept {
  auto& ep = object_of<Ep>(fid);
  return send_flat(ep, "fi_inject", {.addr = dest, .context = ep.fid.fid.context}, buf, len,
                   kInjectWish);
}

ssize_t senddata(fid_ep* fid, const void* buf, size_t len, void*, uint64_t data, fi_addr_t dest,
                 void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return send_flat(ep, "fi_senddata",
                   {.addr = dest, .context = context, .imm = data, .has_imm = true}, buf, len,
                   ep.tx);
}

ssize_t injectdata(fid_ep* fid, const void* buf, size_t len, uint64_t data,
                   fi_addr_t dest) noexcept {
  auto& ep = object_of<Ep>(fid);
  return send_flat(ep, "fi_injectdata",
                   {.addr = dest, .context = ep.fid.fid.context, .imm = data, .has_imm = true}, buf,
                   len, kInjectWish);
}

template <auto Refusal>
fi_ops_msg g_refusing = {
    .size = sizeof(fi_ops_msg),
    .recv = Refusal,
    .recvv = Refusal,
    .recvmsg = Refusal,
    .send = Refusal,
    .sendv = Refusal,
    .sendmsg = Refusal,
    .inject = Refusal,
    .senddata = Refusal,
    .injectdata = Refusal,
};
constexpr NotOffered<"fi_msg: the endpoint is not enabled; call fi_enable first", -FI_EOPBADSTATE>
    kNotEnabled;
constexpr NotOffered<"fi_msg: the endpoint was opened without FI_MSG; ask for it in hints->caps",
                     -FI_EOPNOTSUPP>
    kNotAsked;

fi_ops_msg g_live = {
    .size = sizeof(fi_ops_msg),
    .recv = recv,
    .recvv = recvv,
    .recvmsg = recvmsg,
    .send = send,
    .sendv = sendv,
    .sendmsg = sendmsg,
    .inject = inject,
    .senddata = senddata,
    .injectdata = injectdata,
};

}  // namespace

const fi_ops_msg& live_msg_ops() noexcept {
  return g_live;
}

fi_ops_msg* msg_ops(const Ep& ep) noexcept {
  const EpBody& body = *ep.body;
  if (((body.tx_caps | body.rx_caps) & FI_MSG) == 0) return &g_refusing<kNotAsked>;
  if (!body.core) return &g_refusing<kNotEnabled>;
  if (ep.descriptors != DescriptorRule::ignored) return described_msg_ops();
  return (ep.rx_flags & FI_MULTI_RECV) != 0 ? multi_recv_ops() : &g_live;
}

}  // namespace aperture::provider
