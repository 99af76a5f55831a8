// Messages of datagram endpoints: fi_ops_msg of FI_EP_DGRAM, with prefixes, multicast addresses and
// descriptors. man 3 fi_msg, fi_endpoint. Data path.
#include "provider/ep_dgram.hpp"

#include <cassert>

#include "nic/datagram_endpoint.hpp"
#include "provider/ep_described.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/prefix.hpp"

namespace aperture::provider {

namespace {

constexpr uint64_t kUnreliableSendFlags = FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_MORE | FI_INJECT |
                                          FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_FENCE |
                                          FI_MULTICAST | kPriority;

[[gnu::cold]] ssize_t refuse_level(const char* call) noexcept {
  return refuse(-FI_EBADFLAGS,
                "%s: a completion level of reliable endpoints; nobody answers a datagram, so "
                "FI_TRANSMIT_COMPLETE is the highest",
                call);
}

[[gnu::cold]] ssize_t refuse_multicast(const Ep& ep, const char* call, uint64_t addr,
                                       bool asked) noexcept {
  if (asked && (ep.body->tx_caps & FI_MULTICAST) == 0)
    return refuse(-FI_EBADFLAGS,
                  "%s: FI_MULTICAST on an endpoint that was opened without it; ask for it in "
                  "hints->caps",
                  call);
  if (asked)
    return refuse(-FI_EINVAL,
                  "%s: FI_MULTICAST, but address %llu is none of a group; pass what fi_mc_addr "
                  "returns",
                  call, static_cast<unsigned long long>(addr));
  return refuse(-FI_EINVAL,
                "%s: the address is that of a multicast group, and FI_MULTICAST is not set; set it "
                "in the flags, or in op_flags for calls without flags",
                call);
}

struct Sending {
  Message m;
  void** desc = nullptr;  // null: none is looked at
  bool multicast = false;
};

ssize_t send_datagram(Ep& ep, const char* call, const Sending& s, const TxWish& wish) noexcept {
  const Message& m = s.m;
  const size_t prefix = ep.body->prefix_bytes;
  if (!ep.may_send) return refuse_side(call, "FI_SEND");
  if (const ssize_t rc = check_prefix(call, m.iov, m.count, prefix); rc != 0) return rc;
  qp::SendWr wr;
  if (!measure(m.iov, m.count, ep.tx_iov_limit, wr.len))
    return refuse_pieces(call, m.count, ep.tx_iov_limit);
  const uint64_t limit = wish.inject ? ep.inject_size : max_message_of(FI_EP_DGRAM);
  if (wr.len - prefix > limit) return refuse_length(call, wr.len - prefix, limit);
  if (s.multicast != nic::DatagramGroups::is_group(m.addr) ||
      (s.multicast && (ep.body->tx_caps & FI_MULTICAST) == 0))
    return refuse_multicast(ep, call, m.addr, s.multicast);
  if (ep.descriptors != DescriptorRule::ignored && !wish.inject) {
    if (const ssize_t rc =
            check_pieces(ep, call, m.iov, s.desc, m.count, ep.tx_iov_limit, kSendSource);
        rc != 0)
      return rc;
  }
  wr.iov = m.iov;
  wr.iov_count = m.count;
  wr.dest = m.addr;
  wr.imm = m.imm;
  wr.context = m.context;
  wr.flags = FI_SEND | FI_MSG | (s.multicast ? FI_MULTICAST : 0);
  wr.has_imm = m.has_imm;
  wr.inject = wish.inject;
  wr.completion = wish.completion;
  return post(ep, call, m.addr, [&wr](nic::Endpoint& core) noexcept { return core.send(wr); });
}

ssize_t send_one(fid_ep* fid, const char* call, Message m, const void* buf, size_t len, void* desc,
                 bool injects) noexcept {
  auto& ep = object_of<Ep>(fid);
  const iovec iov{const_cast<void*>(buf), len};
  m.iov = &iov;
  m.count = 1;
  return send_datagram(ep, call, {m, &desc, (ep.tx_flags & FI_MULTICAST) != 0},
                       injects ? kInjectWish : ep.tx);
}

ssize_t send(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t dest,
             void* context) noexcept {
  return send_one(fid, "fi_send", {.addr = dest, .context = context}, buf, len, desc, false);
}

ssize_t sendv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t dest,
              void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const Message m{.iov = iov, .count = count, .addr = dest, .context = context};
  return send_datagram(ep, "fi_sendv", {m, desc, (ep.tx_flags & FI_MULTICAST) != 0}, ep.tx);
}

ssize_t sendmsg(fid_ep* fid, const fi_msg* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg == nullptr) return -FI_EINVAL;
  if ((flags & ~kUnreliableSendFlags) != 0) {
    if ((flags & ~kUnreliableSendFlags & ~kCompletionLevels) == 0)
      return refuse_level("fi_sendmsg");
    return refuse_flags("fi_sendmsg", flags, kUnreliableSendFlags);
  }
  const Message m{.iov = msg->msg_iov,
                  .count = msg->iov_count,
                  .addr = msg->addr,
                  .context = msg->context,
                  .imm = msg->data,
                  .has_imm = (flags & FI_REMOTE_CQ_DATA) != 0};
  return send_datagram(ep, "fi_sendmsg", {m, msg->desc, (flags & FI_MULTICAST) != 0},
                       ep.wish_of(flags));
}

ssize_t inject(fid_ep* fid, const void* buf, size_t len, fi_addr_t dest) noexcept {
  return send_one(fid, "fi_inject", {.addr = dest, .context = fid->fid.context}, buf, len, nullptr,
                  true);
}

ssize_t senddata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                 fi_addr_t dest, void* context) noexcept {
  return send_one(fid, "fi_senddata",
                  {.addr = dest, .context = context, .imm = data, .has_imm = true}, buf, len, desc,
                  false);
}

ssize_t injectdata(fid_ep* fid, const void* buf, size_t len, uint64_t data,
                   fi_addr_t dest) noexcept {
  return send_one(fid, "fi_injectdata",
                  {.addr = dest, .context = fid->fid.context, .imm = data, .has_imm = true}, buf,
                  len, nullptr, true);
}

ssize_t receive(Ep& ep, const char* call, const Message& m, void** desc, bool many,
                bool completion) noexcept {
  if (!ep.may_recv) return refuse_side(call, "FI_RECV");
  const size_t prefix = ep.body->prefix_bytes;
  if (const ssize_t rc = check_prefix(call, m.iov, m.count, prefix); rc != 0) return rc;
  if (ep.descriptors != DescriptorRule::ignored) {
    if (const ssize_t rc =
            check_pieces(ep, call, m.iov, desc, m.count, ep.rx_iov_limit, kRecvTarget);
        rc != 0)
      return rc;
  }
  return many ? recv_many(ep, call, m, completion) : recv_message(ep, call, m, completion);
}

ssize_t recv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source,
             void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  const iovec iov{buf, len};
  return receive(ep, "fi_recv", {.iov = &iov, .count = 1, .addr = source, .context = context},
                 &desc, (ep.rx_flags & FI_MULTI_RECV) != 0, ep.rx_completion);
}

ssize_t recvv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
              void* context) noexcept {
  auto& ep = object_of<Ep>(fid);
  return receive(ep, "fi_recvv", {.iov = iov, .count = count, .addr = source, .context = context},
                 desc, (ep.rx_flags & FI_MULTI_RECV) != 0, ep.rx_completion);
}

ssize_t recvmsg_dgram(fid_ep* fid, const fi_msg* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (msg == nullptr) return -FI_EINVAL;
  if ((flags & ~(kRecvFlags | FI_MULTI_RECV)) != 0)
    return refuse_flags("fi_recvmsg", flags, kRecvFlags | FI_MULTI_RECV);
  const Message m{
      .iov = msg->msg_iov, .count = msg->iov_count, .addr = msg->addr, .context = msg->context};
  return receive(ep, "fi_recvmsg", m, msg->desc, (flags & FI_MULTI_RECV) != 0,
                 !ep.rx_selective || (flags & FI_COMPLETION) != 0);
}

}  // namespace

ssize_t refuse_prefix(const char* call, size_t count, size_t prefix_bytes) noexcept {
  return refuse(-FI_EINVAL,
                "%s: the first of %zu buffer(s) does not have the %zu bytes of the prefix, which "
                "was agreed on (FI_MSG_PREFIX, msg_prefix_size); it cannot be split or left out",
                call, count, prefix_bytes);
}

const fi_ops_msg& datagram_msg_ops() noexcept {
  static constexpr fi_ops_msg kOps = {.size = sizeof(fi_ops_msg),
                                      .recv = recv,
                                      .recvv = recvv,
                                      .recvmsg = recvmsg_dgram,
                                      .send = send,
                                      .sendv = sendv,
                                      .sendmsg = sendmsg,
                                      .inject = inject,
                                      .senddata = senddata,
                                      .injectdata = injectdata};
  return kOps;
}

int enable_unreliable(EpBody& body) {
  assert(body.core == nullptr && body.datagrams == nullptr);
  nic::DatagramEndpoint::Wish wish;
  wish.receives = (body.rx_caps & FI_RECV) != 0;
  wish.prefix_bytes = body.prefix_bytes;
  wish.group_flag = FI_MULTICAST;
  auto made = nic::DatagramEndpoint::create(options_of(body), wish);
  if (!made)
    return refuse(fi_code(made.error()),
                  "fi_enable: cannot have the UDP port of %s: %s; choose another address or port",
                  body.local.print().c_str(), describe(made.error()));
  // the address vector's other threads look there
  const nic::EngineGuard guard(*body.domain->engine);
  body.datagrams = made->get();
  body.core = *std::move(made);
  return 0;
}

}  // namespace aperture::provider
