// The calls of fi_msg and of fi_tagged, which differ in the tag alone. man 3 fi_msg, fi_tagged.
// Data path; no state.
#pragma once

#include <type_traits>

#include "provider/post_message.hpp"
#include "provider/stubs.hpp"
#include "provider/work.hpp"

namespace aperture::provider {

// A call with FI_AUTH_KEY: the same without, from the sources that the key means.
template <typename Msg>
ssize_t recv_by_key(fid_ep* fid, const char* call, Msg msg, uint64_t flags,
                    ssize_t (*recvmsg)(fid_ep*, const Msg*, uint64_t) noexcept) noexcept {
  const int rc =
      take_key_source(object_of<Ep>(fid), call, std::is_same_v<Msg, fi_msg_tagged>, msg.addr);
  return rc != 0 ? rc : recvmsg(fid, &msg, flags & ~kAuthKeyFlag);
}

// `Tag` is empty for fi_msg and one uint64_t for fi_tagged. recvmsg is left to either, for each has
// flags of its own there.
template <typename Ops, typename Msg, uint64_t kKnownSendFlags, typename... Tag>
struct MessageCalls {
  static constexpr bool kTagged = sizeof...(Tag) != 0;

  static constexpr const char* name(const char* plain, const char* tagged) noexcept {
    return kTagged ? tagged : plain;
  }
  static constexpr uint64_t value_of(Tag... tag) noexcept { return (uint64_t{0} | ... | tag); }

  static ssize_t recv(fid_ep* fid, void* buf, size_t len, void*, fi_addr_t source, Tag... tag,
                      Tag... ignore, void* context) noexcept {
    return recv_flat(object_of<Ep>(fid), name("fi_recv", "fi_trecv"),
                     {.addr = source,
                      .context = context,
                      .tag = value_of(tag...),
                      .ignore = value_of(ignore...),
                      .tagged = kTagged},
                     buf, len);
  }

  static ssize_t recvv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t source,
                       Tag... tag, Tag... ignore, void* context) noexcept {
    constexpr const char* call = name("fi_recvv", "fi_trecvv");
    auto& ep = object_of<Ep>(fid);
    if (!ep.may_recv) [[unlikely]]
      return refuse_side(call, "FI_RECV");
    return recv_message(ep, call,
                        {.iov = iov,
                         .count = count,
                         .addr = source,
                         .context = context,
                         .tag = value_of(tag...),
                         .ignore = value_of(ignore...),
                         .tagged = kTagged},
                        ep.rx_completion);
  }

  static ssize_t send(fid_ep* fid, const void* buf, size_t len, void*, fi_addr_t dest, Tag... tag,
                      void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    return send_flat(ep, name("fi_send", "fi_tsend"), flat(dest, context, tag...), buf, len, ep.tx);
  }

  static ssize_t sendv(fid_ep* fid, const iovec* iov, void**, size_t count, fi_addr_t dest,
                       Tag... tag, void* context) noexcept {
    constexpr const char* call = name("fi_sendv", "fi_tsendv");
    auto& ep = object_of<Ep>(fid);
    if (!ep.may_send) [[unlikely]]
      return refuse_side(call, "FI_SEND");
    Message m = flat(dest, context, tag...);
    m.iov = iov;
    m.count = count;
    return send_message(ep, call, m, ep.tx);
  }

  static ssize_t sendmsg(fid_ep* fid, const Msg* msg, uint64_t flags) noexcept {
    constexpr const char* call = name("fi_sendmsg", "fi_tsendmsg");
    auto& ep = object_of<Ep>(fid);
    if (!ep.may_send) [[unlikely]]
      return refuse_side(call, "FI_SEND");
    if (msg == nullptr) [[unlikely]]
      return -FI_EINVAL;
    if ((flags & ~kKnownSendFlags) != 0) [[unlikely]] {
      if ((flags & FI_TRIGGER) == 0) return refuse_flags(call, flags, kKnownSendFlags);
      return trigger(ep, call, msg->context, [&](const Later& later) noexcept {
        return send_later(ep, call, *msg, flags & ~FI_TRIGGER, later);
      });
    }
    return send_message(ep, call, message_of(*msg, flags), ep.wish_of(flags));
  }

  static ssize_t keep_send(Ep& ep, const char* call, const Msg& msg, uint64_t flags,
                           const Later& later) noexcept {
    if (!ep.may_send) return refuse_side(call, "FI_SEND");
    if ((flags & ~kKnownSendFlags) != 0) return refuse_flags(call, flags, kKnownSendFlags);
    return send_message(ep, call, message_of(msg, flags), ep.wish_of(flags), later);
  }

  static ssize_t inject(fid_ep* fid, const void* buf, size_t len, fi_addr_t dest,
                        Tag... tag) noexcept {
    auto& ep = object_of<Ep>(fid);
    // Without the lock nothing is called on its way, and nothing kept on the stack: a message that
    // stores little besides its cell leaves the processor more cells to have under way at once.
    if (may_be_line(ep, buf, len, kInjectWish) && !ep.engine->lock().threaded() &&
        send_line(ep, flat(dest, ep.fid.fid.context, tag...), buf, len, kInjectWish)) {
      return 0;
    }
    return inject_guarded(fid, buf, len, dest, tag...);
  }

  static ssize_t senddata(fid_ep* fid, const void* buf, size_t len, void*, uint64_t data,
                          fi_addr_t dest, Tag... tag, void* context) noexcept {
    auto& ep = object_of<Ep>(fid);
    return send_flat(ep, name("fi_senddata", "fi_tsenddata"),
                     with_data(flat(dest, context, tag...), data), buf, len, ep.tx);
  }

  static ssize_t injectdata(fid_ep* fid, const void* buf, size_t len, uint64_t data, fi_addr_t dest,
                            Tag... tag) noexcept {
    auto& ep = object_of<Ep>(fid);
    return send_flat(ep, name("fi_injectdata", "fi_tinjectdata"),
                     with_data(flat(dest, ep.fid.fid.context, tag...), data), buf, len,
                     kInjectWish);
  }

  // The table of an endpoint that is enabled.
  template <typename RecvMsg>
  static constexpr Ops table(RecvMsg recvmsg) noexcept {
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

 private:
  [[gnu::noinline]] static ssize_t inject_guarded(fid_ep* fid, const void* buf, size_t len,
                                                  fi_addr_t dest, Tag... tag) noexcept {
    auto& ep = object_of<Ep>(fid);
    return send_flat(ep, name("fi_inject", "fi_tinject"), flat(dest, ep.fid.fid.context, tag...),
                     buf, len, kInjectWish);
  }
  [[gnu::always_inline]] static Message message_of(const Msg& msg, uint64_t flags) noexcept {
    Message m{.iov = msg.msg_iov,
              .count = msg.iov_count,
              .addr = msg.addr,
              .context = msg.context,
              .imm = msg.data,
              .tagged = kTagged,
              .has_imm = (flags & FI_REMOTE_CQ_DATA) != 0};
    if constexpr (kTagged) m.tag = msg.tag;
    return m;
  }
  [[gnu::always_inline]] static Message flat(fi_addr_t dest, void* context, Tag... tag) noexcept {
    return {.addr = dest, .context = context, .tag = value_of(tag...), .tagged = kTagged};
  }
  [[gnu::always_inline]] static Message with_data(Message m, uint64_t data) noexcept {
    m.imm = data;
    m.has_imm = true;
    return m;
  }
};

}  // namespace aperture::provider
