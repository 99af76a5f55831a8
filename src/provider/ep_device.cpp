// The calls of endpoints with FI_HMEM: messages, tagged messages and remote memory access, of which
// some buffers may lie in a device. man 3 fi_mr ("FI_MR_HMEM"), fi_msg, fi_tagged, fi_rma.
//
// Such endpoints have their own tables, so that all others pay nothing. A call with host memory
// alone becomes the one that it would be elsewhere. Any other becomes the call with flags, and host
// memory stands in for the device's (staging.hpp). No state.
#include "provider/ep_device.hpp"

#include <type_traits>

#include "provider/device_places.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/fork.hpp"
#include "provider/with_flags.hpp"

namespace aperture::provider {

namespace {

template <typename Ops>
const Ops& of_host(const Ep& ep) noexcept {
  if constexpr (std::is_same_v<Ops, fi_ops_msg>) return msg_ops_of_host(ep);
  if constexpr (std::is_same_v<Ops, fi_ops_tagged>) return tagged_ops_of_host(ep);
  if constexpr (std::is_same_v<Ops, fi_ops_rma>) return rma_ops_of_host(ep);
}

[[gnu::cold]] ssize_t refuse_with_device(const char* call, const char* what) noexcept {
  return refuse(-FI_EOPNOTSUPP, "%s: %s is not offered for device memory; use host memory", call,
                what);
}

// ---- messages: `Tag` as in ep_message_calls.hpp -------------------------------------------------

template <typename Ops, typename Msg, uint64_t kSendKnown, typename... Tag>
struct Messages {
  using Built = BuiltMessage<Msg, Tag...>;
  static constexpr bool kTagged = sizeof...(Tag) != 0;
  static constexpr const char* name(const char* plain, const char* tagged) noexcept {
    return kTagged ? tagged : plain;
  }

  static ssize_t stage_send(Ep& ep, const char* call, const Msg& m, uint64_t flags,
                            Places& places) noexcept {
    if ((flags & FI_TRIGGER) != 0) return refuse_with_device(call, "FI_TRIGGER");
    return staged(ep, call, m.addr, {{&places, 0, Staging::Way::out}},
                  [&](const Later& later) { return send_later(ep, call, m, flags, later); });
  }
  static ssize_t stage_receive(Ep& ep, const char* call, const Msg& m, uint64_t flags,
                               Places& places) noexcept {
    if ((flags & FI_TRIGGER) != 0) return refuse_with_device(call, "FI_TRIGGER");
    if ((flags & FI_MULTI_RECV) != 0) return refuse_with_device(call, "FI_MULTI_RECV");
    if (ep.buffered || (flags & FI_CLAIM) != 0) return refuse_with_device(call, "FI_CLAIM");
    return staged(ep, call, m.addr, {{&places, 0, Staging::Way::back}},
                  [&](const Later& later) { return recv_later(ep, call, m, flags, later); });
  }
  static uint64_t receive_flags(const Ep& ep) noexcept {
    const uint64_t many = receives_many(ep, kTagged) ? FI_MULTI_RECV : 0;
    return ep.rx_flags & (kRecvFlags | many);
  }

  // A receive without flags; `args`: as the call in the slot has them, behind its endpoint.
  template <auto Slot, typename... Args>
  static ssize_t receive(fid_ep* fid, const char* call, const iovec* iov, void** desc, size_t count,
                         fi_addr_t source, Tag... tag, Tag... ignore, void* context,
                         Args... args) noexcept {
    auto& ep = object_of<Ep>(fid);
    Places places;
    if (const ssize_t rc = places.find(ep, call, iov, desc, count, ep.rx_iov_limit, kRecvTarget);
        rc != 0)
      return rc;
    if (!places.any()) return (of_host<Ops>(ep).*Slot)(fid, args...);
    const Msg m = Built::of(iov, desc, count, source, tag..., ignore..., context);
    return stage_receive(ep, call, m, receive_flags(ep), places);
  }
  static ssize_t recv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source, Tag... tag,
                      Tag... ignore, void* context) noexcept {
    const iovec iov{buf, len};
    return receive<&Ops::recv>(fid, name("fi_recv", "fi_trecv"), &iov, &desc, 1, source, tag...,
                               ignore..., context, buf, len, desc, source, tag..., ignore...,
                               context);
  }
  static ssize_t recvv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
                       Tag... tag, Tag... ignore, void* context) noexcept {
    return receive<&Ops::recvv>(fid, name("fi_recvv", "fi_trecvv"), iov, desc, count, source,
                                tag..., ignore..., context, iov, desc, count, source, tag...,
                                ignore..., context);
  }
  static ssize_t recvmsg(fid_ep* fid, const Msg* msg, uint64_t flags) noexcept {
    constexpr const char* call = name("fi_recvmsg", "fi_trecvmsg");
    auto& ep = object_of<Ep>(fid);
    Places places;
    if (msg != nullptr && (flags & (FI_PEEK | FI_DISCARD)) == 0) {  // these place nothing
      const ssize_t rc = places.find(ep, call, msg->msg_iov, msg->desc, msg->iov_count,
                                     ep.rx_iov_limit, kRecvTarget);
      if (rc != 0) return rc;
    }
    if (msg == nullptr || !places.any()) return of_host<Ops>(ep).recvmsg(fid, msg, flags);
    return stage_receive(ep, call, *msg, flags, places);
  }

  // A send without flags, but for those that the call itself means.
  struct Data {
    uint64_t value = 0;
    uint64_t flag = 0;
  };
  template <auto Slot, typename... Args>
  static ssize_t transmit(fid_ep* fid, const char* call, const iovec* iov, void** desc,
                          size_t count, const Data& data, fi_addr_t dest, Tag... tag, void* context,
                          Args... args) noexcept {
    auto& ep = object_of<Ep>(fid);
    Places places;
    if (const ssize_t rc = places.find(ep, call, iov, desc, count, ep.tx_iov_limit, kSendSource);
        rc != 0)
      return rc;
    if (!places.any()) return (of_host<Ops>(ep).*Slot)(fid, args...);
    Msg m = Built::of(iov, desc, count, dest, tag..., Tag{}..., context);
    m.data = data.value;
    return stage_send(ep, call, m, (ep.tx_flags & kSendKnown) | data.flag, places);
  }
  static ssize_t send(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t dest,
                      Tag... tag, void* context) noexcept {
    const iovec iov{const_cast<void*>(buf), len};
    return transmit<&Ops::send>(fid, name("fi_send", "fi_tsend"), &iov, &desc, 1, {}, dest, tag...,
                                context, buf, len, desc, dest, tag..., context);
  }
  static ssize_t sendv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t dest,
                       Tag... tag, void* context) noexcept {
    return transmit<&Ops::sendv>(fid, name("fi_sendv", "fi_tsendv"), iov, desc, count, {}, dest,
                                 tag..., context, iov, desc, count, dest, tag..., context);
  }
  static ssize_t senddata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                          fi_addr_t dest, Tag... tag, void* context) noexcept {
    const iovec iov{const_cast<void*>(buf), len};
    return transmit<&Ops::senddata>(fid, name("fi_senddata", "fi_tsenddata"), &iov, &desc, 1,
                                    {data, FI_REMOTE_CQ_DATA}, dest, tag..., context, buf, len,
                                    desc, data, dest, tag..., context);
  }
  static ssize_t sendmsg(fid_ep* fid, const Msg* msg, uint64_t flags) noexcept {
    constexpr const char* call = name("fi_sendmsg", "fi_tsendmsg");
    auto& ep = object_of<Ep>(fid);
    Places places;
    if (msg != nullptr) {
      const ssize_t rc = places.find(ep, call, msg->msg_iov, msg->desc, msg->iov_count,
                                     ep.tx_iov_limit, kSendSource);
      if (rc != 0) return rc;
    }
    if (msg == nullptr || !places.any()) return of_host<Ops>(ep).sendmsg(fid, msg, flags);
    return stage_send(ep, call, *msg, flags, places);
  }

  static ssize_t inject(fid_ep* fid, const void* buf, size_t len, fi_addr_t dest,
                        Tag... tag) noexcept {
    auto& ep = object_of<Ep>(fid);
    InjectedBytes in;
    if (const ssize_t rc = in.take(name("fi_inject", "fi_tinject"), buf, len); rc != 0) return rc;
    return of_host<Ops>(ep).inject(fid, in.bytes(), len, dest, tag...);
  }
  static ssize_t injectdata(fid_ep* fid, const void* buf, size_t len, uint64_t data, fi_addr_t dest,
                            Tag... tag) noexcept {
    auto& ep = object_of<Ep>(fid);
    InjectedBytes in;
    if (const ssize_t rc = in.take(name("fi_injectdata", "fi_tinjectdata"), buf, len); rc != 0)
      return rc;
    return of_host<Ops>(ep).injectdata(fid, in.bytes(), len, data, dest, tag...);
  }

  static constexpr Ops table() noexcept {
    return {.size = sizeof(Ops),
            .recv = recv,
            .recvv = recvv,
            .recvmsg = recvmsg,
            .send = send,
            .sendv = sendv,
            .sendmsg = sendmsg,
            .inject = inject,
            .senddata = senddata,
            .injectdata = injectdata};
  }
};

// ---- remote memory ------------------------------------------------------------------------------

struct Remote {
  using Ops = fi_ops_rma;

  template <bool kIsWrite>
  static ssize_t stage_access(Ep& ep, const char* call, const fi_msg_rma& m, uint64_t flags,
                              Places& places) noexcept {
    if ((flags & FI_TRIGGER) != 0) return refuse_with_device(call, "FI_TRIGGER");
    const Staging::Way way = kIsWrite ? Staging::Way::out : Staging::Way::back;
    return staged(ep, call, m.addr, {{&places, 0, way}}, [&](const Later& later) {
      return access_later(ep, call, m, kIsWrite, flags, later);
    });
  }
  template <bool kIsWrite>
  static ssize_t find(const Ep& ep, const char* call, const iovec* iov, void** desc, size_t count,
                      Places& places) noexcept {
    return places.find(ep, call, iov, desc, count, ep.tx_iov_limit,
                       kIsWrite ? kWriteSource : kReadResult);
  }

  // What both kinds of calls name.
  struct There {
    fi_addr_t peer;
    uint64_t addr;
    uint64_t key;
    void* context;
    uint64_t data = 0;
    uint64_t flag = 0;  // beside the defaults
  };
  // One without flags; `args`: as the call in the slot has them, behind its endpoint.
  template <bool kIsWrite, auto Slot, typename... Args>
  static ssize_t start(fid_ep* fid, const char* call, const iovec* iov, void** desc, size_t count,
                       const There& there, Args... args) noexcept {
    auto& ep = object_of<Ep>(fid);
    Places places;
    if (const ssize_t rc = find<kIsWrite>(ep, call, iov, desc, count, places); rc != 0) return rc;
    if (!places.any()) return (of_host<Ops>(ep).*Slot)(fid, args...);
    constexpr uint64_t known = (kIsWrite ? kWriteKnown : kReadKnown) & ~FI_TRIGGER;
    const BuiltAccess b(iov, desc, count, there.peer, there.addr, there.key, there.context,
                        there.data);
    return stage_access<kIsWrite>(ep, call, b.msg, (ep.tx_flags & known) | there.flag, places);
  }
  template <bool kIsWrite, auto Slot>
  static ssize_t start_msg(fid_ep* fid, const char* call, const fi_msg_rma* msg,
                           uint64_t flags) noexcept {
    auto& ep = object_of<Ep>(fid);
    Places places;
    if (msg != nullptr) {
      const ssize_t rc = find<kIsWrite>(ep, call, msg->msg_iov, msg->desc, msg->iov_count, places);
      if (rc != 0) return rc;
    }
    if (msg == nullptr || !places.any()) return (of_host<Ops>(ep).*Slot)(fid, msg, flags);
    return stage_access<kIsWrite>(ep, call, *msg, flags, places);
  }

  static ssize_t read(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
                      uint64_t key, void* context) noexcept {
    const iovec iov{buf, len};
    return start<false, &Ops::read>(fid, "fi_read", &iov, &desc, 1, {peer, addr, key, context}, buf,
                                    len, desc, peer, addr, key, context);
  }
  static ssize_t readv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
                       uint64_t addr, uint64_t key, void* context) noexcept {
    return start<false, &Ops::readv>(fid, "fi_readv", iov, desc, count, {peer, addr, key, context},
                                     iov, desc, count, peer, addr, key, context);
  }
  static ssize_t readmsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) noexcept {
    return start_msg<false, &Ops::readmsg>(fid, "fi_readmsg", msg, flags);
  }
  static ssize_t write(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t peer,
                       uint64_t addr, uint64_t key, void* context) noexcept {
    const iovec iov{const_cast<void*>(buf), len};
    return start<true, &Ops::write>(fid, "fi_write", &iov, &desc, 1, {peer, addr, key, context},
                                    buf, len, desc, peer, addr, key, context);
  }
  static ssize_t writev(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
                        uint64_t addr, uint64_t key, void* context) noexcept {
    return start<true, &Ops::writev>(fid, "fi_writev", iov, desc, count, {peer, addr, key, context},
                                     iov, desc, count, peer, addr, key, context);
  }
  static ssize_t writedata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                           fi_addr_t peer, uint64_t addr, uint64_t key, void* context) noexcept {
    const iovec iov{const_cast<void*>(buf), len};
    return start<true, &Ops::writedata>(fid, "fi_writedata", &iov, &desc, 1,
                                        {peer, addr, key, context, data, FI_REMOTE_CQ_DATA}, buf,
                                        len, desc, data, peer, addr, key, context);
  }
  static ssize_t writemsg(fid_ep* fid, const fi_msg_rma* msg, uint64_t flags) noexcept {
    return start_msg<true, &Ops::writemsg>(fid, "fi_writemsg", msg, flags);
  }
  static ssize_t inject(fid_ep* fid, const void* buf, size_t len, fi_addr_t peer, uint64_t addr,
                        uint64_t key) noexcept {
    auto& ep = object_of<Ep>(fid);
    InjectedBytes in;
    if (const ssize_t rc = in.take("fi_inject_write", buf, len); rc != 0) return rc;
    return of_host<Ops>(ep).inject(fid, in.bytes(), len, peer, addr, key);
  }
  static ssize_t injectdata(fid_ep* fid, const void* buf, size_t len, uint64_t data, fi_addr_t peer,
                            uint64_t addr, uint64_t key) noexcept {
    auto& ep = object_of<Ep>(fid);
    InjectedBytes in;
    if (const ssize_t rc = in.take("fi_inject_writedata", buf, len); rc != 0) return rc;
    return of_host<Ops>(ep).injectdata(fid, in.bytes(), len, data, peer, addr, key);
  }
};

}  // namespace

fi_ops_msg device_msg_ops() noexcept {
  return Messages<fi_ops_msg, fi_msg, kSendFlags>::table();
}

fi_ops_tagged device_tagged_ops() noexcept {
  return Messages<fi_ops_tagged, fi_msg_tagged, kSendFlags | FI_MATCH_COMPLETE, uint64_t>::table();
}

fi_ops_rma device_rma_ops() noexcept {
  return {.size = sizeof(fi_ops_rma),
          .read = Remote::read,
          .readv = Remote::readv,
          .readmsg = Remote::readmsg,
          .write = Remote::write,
          .writev = Remote::writev,
          .writemsg = Remote::writemsg,
          .inject = Remote::inject,
          .writedata = Remote::writedata,
          .injectdata = Remote::injectdata};
}

}  // namespace aperture::provider
