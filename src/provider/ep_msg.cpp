// Messages: fi_ops_msg. man 3 fi_msg. Data path.
#include "provider/ep_buffered.hpp"
#include "provider/ep_described.hpp"
#include "provider/ep_device.hpp"
#include "provider/ep_dgram.hpp"
#include "provider/ep_message_calls.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/ep_sources.hpp"
#include "provider/ep_triggered.hpp"
#include "provider/fork.hpp"

namespace aperture::provider {

namespace {

using Calls = MessageCalls<fi_ops_msg, fi_msg, kSendFlags>;

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
    if ((flags & kAuthKeyFlag) != 0) return recv_by_key(fid, "fi_recvmsg", *msg, flags, recvmsg);
    if ((flags & FI_TRIGGER) != 0)
      return trigger(ep, "fi_recvmsg", msg->context, [&](const Later& later) noexcept {
        return recv_later(ep, "fi_recvmsg", *msg, flags & ~FI_TRIGGER, later);
      });
    return refuse_flags("fi_recvmsg", flags, kRecvFlags | FI_MULTI_RECV);
  }
  return recv_message(ep, "fi_recvmsg", m, completion);
}

fi_ops_msg g_msg_not_enabled = refusing<fi_ops_msg>(
    NotOffered<"fi_msg: the endpoint is not enabled; call fi_enable first", -FI_EOPBADSTATE>{});
fi_ops_msg g_msg_not_asked = refusing<fi_ops_msg>(
    NotOffered<"fi_msg: the endpoint was opened without FI_MSG; ask for it in hints->caps",
               -FI_EOPNOTSUPP>{});
const fi_ops_msg g_msg_plain = Calls::table(recvmsg);

}  // namespace

ssize_t send_later(Ep& ep, const char* call, const fi_msg& msg, uint64_t flags,
                   const Later& later) noexcept {
  return Calls::keep_send(ep, call, msg, flags, later);
}

ssize_t recv_later(Ep& ep, const char* call, const fi_msg& msg, uint64_t flags,
                   const Later& later) noexcept {
  if (!ep.may_recv) return refuse_side(call, "FI_RECV");
  constexpr uint64_t known = kRecvFlags | FI_MULTI_RECV;
  if ((flags & ~known) != 0) return refuse_flags(call, flags, known);
  const bool completion = !ep.rx_selective || (flags & FI_COMPLETION) != 0;
  const Message m{
      .iov = msg.msg_iov, .count = msg.iov_count, .addr = msg.addr, .context = msg.context};
  if ((flags & FI_MULTI_RECV) == 0) return recv_message(ep, call, m, completion, later);
  qp::RecvWr wr;
  const ssize_t rc = make_multi_receive(ep, call, m, completion, wr);
  return rc != 0 ? rc : later.recv_multi(ep, call, wr);
}

void fill_messages(CallTables& tables) noexcept {
  tables.msg = g_msg_plain;
  tables.msg_described = described_msg_ops();
  tables.msg_many = multi_recv_ops();
  tables.msg_datagram = datagram_msg_ops();
  tables.msg_buffered = buffered_msg_ops();
  tables.msg_sources = sources_msg_ops();
  tables.msg_device = device_msg_ops();
}

const fi_ops_msg& plain_msg_ops() noexcept {
  return g_msg_plain;
}

fi_ops_msg& msg_ops_at_once(const Ep& ep) noexcept {
  return reaches_devices(ep) ? ep.body->domain->calls->msg_device : msg_ops_of_host(ep);
}

fi_ops_msg& msg_ops_of_host(const Ep& ep) noexcept {
  CallTables& calls = *ep.body->domain->calls;
  if (ep.descriptors != DescriptorRule::ignored) return calls.msg_described;
  if (ep.buffered) return calls.msg_buffered;
  return receives_many(ep, false) ? calls.msg_many : calls.msg;
}

fi_ops_msg& msg_ops_beneath_sources(const Ep& ep) noexcept {
  return triggers_by_default(ep) ? ep.body->domain->calls->msg_triggered : msg_ops_at_once(ep);
}

fi_ops_msg* msg_ops(const Ep& ep) noexcept {
  const EpBody& body = *ep.body;
  if (((body.tx_caps | body.rx_caps) & FI_MSG) == 0) return &g_msg_not_asked;
  if (!body.core) return &g_msg_not_enabled;
  if (body.kind == EpKind::unreliable) return &body.domain->calls->msg_datagram;
  if (reads_sources(body, false)) return &body.domain->calls->msg_sources;
  return &msg_ops_beneath_sources(ep);
}

}  // namespace aperture::provider
