// The calls of a handle whose operations are triggered by default: an alias that was made with
// FI_TRIGGER, or an endpoint with that among its op_flags. man 3 fi_trigger, fi_endpoint
// ("fi_ep_alias").
//
// Such handles have their own tables, so that all others pay nothing. A call without flags becomes
// the one with flags; calls with flags say themselves whether they are triggered, and an inject has
// no context that could tell what it waits for. No state.
#include "provider/ep_triggered.hpp"

#include <type_traits>

#include "provider/ep_described.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/fork.hpp"
#include "provider/with_flags.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

namespace {

constexpr uint64_t kSends = kSendFlags | FI_TRIGGER;
constexpr uint64_t kTaggedSends = kSends | FI_MATCH_COMPLETE;
constexpr uint64_t kReceives = kRecvFlags | FI_TRIGGER;

bool sends(const Ep& ep) noexcept {
  return (ep.tx_flags & FI_TRIGGER) != 0;
}
bool receives(const Ep& ep) noexcept {
  return (ep.rx_flags & FI_TRIGGER) != 0;
}
// The calls that those of this file pass on to.
template <typename Ops>
const Ops& under(const Ep& ep) noexcept {
  if constexpr (std::is_same_v<Ops, fi_ops_msg>) return msg_ops_at_once(ep);
  if constexpr (std::is_same_v<Ops, fi_ops_tagged>) return tagged_ops_at_once(ep);
  if constexpr (std::is_same_v<Ops, fi_ops_rma>) return rma_ops_at_once(ep);
  if constexpr (std::is_same_v<Ops, fi_ops_atomic>) return atomic_ops_at_once(ep);
}
// A call with flags, which say themselves what is meant.
template <typename Ops, auto Slot, typename... Args>
ssize_t pass_on(fid_ep* fid, Args... args) noexcept {
  return (under<Ops>(object_of<Ep>(fid)).*Slot)(fid, args...);
}
template <typename Ops, auto Slot, typename... Args>
ssize_t inject(fid_ep* fid, Args... args) noexcept {
  if (sends(object_of<Ep>(fid))) return refuse_trigger_of_inject();
  return pass_on<Ops, Slot>(fid, args...);
}

// ---- messages: `Tag` as in ep_message_calls.hpp -------------------------------------------------

template <typename Ops, typename Msg, uint64_t kSendKnown, typename... Tag>
struct Messages {
  using Built = BuiltMessage<Msg, Tag...>;

  static ssize_t recvv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t source,
                       Tag... tag, Tag... ignore, void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    const Ops& ops = under<Ops>(ep);
    if (!receives(ep)) return ops.recvv(fid, iov, desc, count, source, tag..., ignore..., context);
    const Msg m = Built::of(iov, desc, count, source, tag..., ignore..., context);
    const uint64_t many = receives_many(ep, sizeof...(Tag) != 0) ? FI_MULTI_RECV : 0;
    return ops.recvmsg(fid, &m, ep.rx_flags & (kReceives | many));
  }
  static ssize_t recv(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t source, Tag... tag,
                      Tag... ignore, void* context) noexcept {
    const iovec iov{buf, len};
    return recvv(fid, &iov, &desc, 1, source, tag..., ignore..., context);
  }

  static ssize_t sendv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t dest,
                       Tag... tag, void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    const Ops& ops = under<Ops>(ep);
    if (!sends(ep)) return ops.sendv(fid, iov, desc, count, dest, tag..., context);
    const Msg m = Built::of(iov, desc, count, dest, tag..., Tag{}..., context);
    return ops.sendmsg(fid, &m, ep.tx_flags & kSendKnown);
  }
  static ssize_t send(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t dest,
                      Tag... tag, void* context) noexcept {
    const iovec iov{const_cast<void*>(buf), len};
    return sendv(fid, &iov, &desc, 1, dest, tag..., context);
  }
  static ssize_t senddata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                          fi_addr_t dest, Tag... tag, void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    const Ops& ops = under<Ops>(ep);
    if (!sends(ep)) return ops.senddata(fid, buf, len, desc, data, dest, tag..., context);
    const iovec iov{const_cast<void*>(buf), len};
    Msg m = Built::of(&iov, &desc, 1, dest, tag..., Tag{}..., context);
    m.data = data;
    return ops.sendmsg(fid, &m, (ep.tx_flags & kSendKnown) | FI_REMOTE_CQ_DATA);
  }

  static constexpr Ops table() noexcept {
    return {.size = sizeof(Ops),
            .recv = recv,
            .recvv = recvv,
            .recvmsg = pass_on<Ops, &Ops::recvmsg>,
            .send = send,
            .sendv = sendv,
            .sendmsg = pass_on<Ops, &Ops::sendmsg>,
            .inject = inject<Ops, &Ops::inject>,
            .senddata = senddata,
            .injectdata = inject<Ops, &Ops::injectdata>};
  }
};

// ---- remote memory ------------------------------------------------------------------------------

struct Remote {
  template <auto Slot>
  static ssize_t start(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
                       uint64_t addr, uint64_t key, void* context, uint64_t data,
                       uint64_t flags) noexcept {
    const BuiltAccess b(iov, desc, count, peer, addr, key, context, data);
    return (under<fi_ops_rma>(object_of<Ep>(fid)).*Slot)(fid, &b.msg, flags);
  }

  static ssize_t readv(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
                       uint64_t addr, uint64_t key, void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    if (!sends(ep))
      return under<fi_ops_rma>(ep).readv(fid, iov, desc, count, peer, addr, key, context);
    return start<&fi_ops_rma::readmsg>(fid, iov, desc, count, peer, addr, key, context, 0,
                                       ep.tx_flags & kReadKnown);
  }
  static ssize_t read(fid_ep* fid, void* buf, size_t len, void* desc, fi_addr_t peer, uint64_t addr,
                      uint64_t key, void* context) noexcept {
    const iovec iov{buf, len};
    return readv(fid, &iov, &desc, 1, peer, addr, key, context);
  }
  static ssize_t writev(fid_ep* fid, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
                        uint64_t addr, uint64_t key, void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    if (!sends(ep))
      return under<fi_ops_rma>(ep).writev(fid, iov, desc, count, peer, addr, key, context);
    return start<&fi_ops_rma::writemsg>(fid, iov, desc, count, peer, addr, key, context, 0,
                                        ep.tx_flags & kWriteKnown);
  }
  static ssize_t write(fid_ep* fid, const void* buf, size_t len, void* desc, fi_addr_t peer,
                       uint64_t addr, uint64_t key, void* context) noexcept {
    const iovec iov{const_cast<void*>(buf), len};
    return writev(fid, &iov, &desc, 1, peer, addr, key, context);
  }
  static ssize_t writedata(fid_ep* fid, const void* buf, size_t len, void* desc, uint64_t data,
                           fi_addr_t peer, uint64_t addr, uint64_t key, void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    if (!sends(ep))
      return under<fi_ops_rma>(ep).writedata(fid, buf, len, desc, data, peer, addr, key, context);
    const iovec iov{const_cast<void*>(buf), len};
    return start<&fi_ops_rma::writemsg>(fid, &iov, &desc, 1, peer, addr, key, context, data,
                                        (ep.tx_flags & kWriteKnown) | FI_REMOTE_CQ_DATA);
  }
};

// ---- atomics ------------------------------------------------------------------------------------

struct Atomics {
  static ssize_t writev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count, fi_addr_t peer,
                        uint64_t addr, uint64_t key, fi_datatype type, fi_op op,
                        void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    const auto& ops = under<fi_ops_atomic>(ep);
    if (!sends(ep)) return ops.writev(fid, iov, desc, count, peer, addr, key, type, op, context);
    const BuiltAtomic b(iov, desc, count, peer, addr, key, type, op, context,
                        BuiltAtomic::elements_of(iov, count));
    return ops.writemsg(fid, &b.msg, ep.tx_flags & (kReadKnown | FI_INJECT));
  }
  static ssize_t write(fid_ep* fid, const void* buf, size_t count, void* desc, fi_addr_t peer,
                       uint64_t addr, uint64_t key, fi_datatype type, fi_op op,
                       void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buf), count};
    return writev(fid, &one, &desc, 1, peer, addr, key, type, op, context);
  }
  static ssize_t readwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count,
                            fi_ioc* result, void** result_desc, size_t result_count, fi_addr_t peer,
                            uint64_t addr, uint64_t key, fi_datatype type, fi_op op,
                            void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    const auto& ops = under<fi_ops_atomic>(ep);
    if (!sends(ep))
      return ops.readwritev(fid, iov, desc, count, result, result_desc, result_count, peer, addr,
                            key, type, op, context);
    const BuiltAtomic b(iov, desc, count, peer, addr, key, type, op, context,
                        BuiltAtomic::elements_of(result, result_count));
    return ops.readwritemsg(fid, &b.msg, result, result_desc, result_count,
                            ep.tx_flags & (kReadKnown | FI_INJECT));
  }
  static ssize_t readwrite(fid_ep* fid, const void* buf, size_t count, void* desc, void* result,
                           void* result_desc, fi_addr_t peer, uint64_t addr, uint64_t key,
                           fi_datatype type, fi_op op, void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buf), count};
    fi_ioc to{result, count};
    return readwritev(fid, &one, &desc, 1, &to, &result_desc, 1, peer, addr, key, type, op,
                      context);
  }
  static ssize_t compwritev(fid_ep* fid, const fi_ioc* iov, void** desc, size_t count,
                            const fi_ioc* compare, void** compare_desc, size_t compare_count,
                            fi_ioc* result, void** result_desc, size_t result_count, fi_addr_t peer,
                            uint64_t addr, uint64_t key, fi_datatype type, fi_op op,
                            void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    const auto& ops = under<fi_ops_atomic>(ep);
    if (!sends(ep))
      return ops.compwritev(fid, iov, desc, count, compare, compare_desc, compare_count, result,
                            result_desc, result_count, peer, addr, key, type, op, context);
    const BuiltAtomic b(iov, desc, count, peer, addr, key, type, op, context,
                        BuiltAtomic::elements_of(iov, count));
    return ops.compwritemsg(fid, &b.msg, compare, compare_desc, compare_count, result, result_desc,
                            result_count, ep.tx_flags & (kReadKnown | FI_INJECT));
  }
  static ssize_t compwrite(fid_ep* fid, const void* buf, size_t count, void* desc,
                           const void* compare, void* compare_desc, void* result, void* result_desc,
                           fi_addr_t peer, uint64_t addr, uint64_t key, fi_datatype type, fi_op op,
                           void* context) noexcept {
    const fi_ioc one{const_cast<void*>(buf), count};
    const fi_ioc against{const_cast<void*>(compare), count};
    fi_ioc to{result, count};
    return compwritev(fid, &one, &desc, 1, &against, &compare_desc, 1, &to, &result_desc, 1, peer,
                      addr, key, type, op, context);
  }
};

}  // namespace

ssize_t refuse_trigger_of_inject() noexcept {
  return refuse(
      -FI_EOPNOTSUPP,
      "an inject call through a handle with FI_TRIGGER: it has no context that could tell "
      "what it waits for; use the call with a context, with FI_INJECT");
}

bool triggers_by_default(const Ep& ep) noexcept {
  return sends(ep) || receives(ep);
}

void fill_triggered(CallTables& tables) noexcept {
  tables.msg_triggered = Messages<fi_ops_msg, fi_msg, kSends>::table();
  tables.tagged_triggered = Messages<fi_ops_tagged, fi_msg_tagged, kTaggedSends, uint64_t>::table();
  using Ops = fi_ops_rma;
  tables.rma_triggered = {
      .size = sizeof(Ops),
      .read = Remote::read,
      .readv = Remote::readv,
      .readmsg = pass_on<Ops, &Ops::readmsg>,
      .write = Remote::write,
      .writev = Remote::writev,
      .writemsg = pass_on<Ops, &Ops::writemsg>,
      .inject = inject<Ops, &Ops::inject>,
      .writedata = Remote::writedata,
      .injectdata = inject<Ops, &Ops::injectdata>,
  };
  fi_ops_atomic& atomic = tables.atomic_triggered;
  atomic = tables.atomic;  // those that ask
  atomic.writemsg = pass_on<fi_ops_atomic, &fi_ops_atomic::writemsg>;
  atomic.readwritemsg = pass_on<fi_ops_atomic, &fi_ops_atomic::readwritemsg>;
  atomic.compwritemsg = pass_on<fi_ops_atomic, &fi_ops_atomic::compwritemsg>;
  atomic.write = Atomics::write;
  atomic.writev = Atomics::writev;
  atomic.inject = inject<fi_ops_atomic, &fi_ops_atomic::inject>;
  atomic.readwrite = Atomics::readwrite;
  atomic.readwritev = Atomics::readwritev;
  atomic.compwrite = Atomics::compwrite;
  atomic.compwritev = Atomics::compwritev;
}

}  // namespace aperture::provider
