// Posting messages, tagged or not: what fi_msg and fi_tagged share. Data path.
#pragma once

#include "provider/header_names.hpp"
#include "provider/post.hpp"
#include "qp/line.hpp"

namespace aperture::provider {

// One message or receive as the application described it.
struct Message {
  const iovec* iov = nullptr;
  size_t count = 0;
  fi_addr_t addr = FI_ADDR_UNSPEC;
  void* context = nullptr;
  uint64_t tag = 0;
  uint64_t ignore = 0;
  uint64_t imm = 0;
  bool tagged = false;
  bool has_imm = false;
};

inline constexpr uint64_t kSendFlags = FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_MORE | FI_INJECT |
                                       FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                                       FI_DELIVERY_COMPLETE | FI_FENCE | kPriority;
inline constexpr uint64_t kRecvFlags = FI_COMPLETION | FI_MORE | FI_INJECT_COMPLETE |
                                       FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | kPriority;

// The hot path of the calls with one flat buffer: a small message to a known peer goes straight
// into its ring.
[[gnu::always_inline]] inline bool may_be_line(const Ep& ep, const void* buf, size_t len,
                                               const TxWish& wish) noexcept {
  return len < ep.line_end && buf != nullptr && !wish.delivery;
}
// With the engine's lock, or where there is none. False: nothing was done, take send_message().
[[gnu::always_inline]] inline bool send_line(Ep& ep, const Message& m, const void* buf, size_t len,
                                             const TxWish& wish) noexcept {
  qp::Qp* qp = ep.core->qp_of(m.addr);
  return qp != nullptr &&
         qp->line().send({.bytes = buf,
                          .len = len,
                          .tag = m.tag,
                          .imm = m.imm,
                          .context = m.context,
                          .flags = FI_SEND | (m.tagged ? FI_TAGGED : FI_MSG),
                          .wire_flags = static_cast<uint8_t>((m.tagged ? wire::kTagged : 0) |
                                                             (m.has_imm ? wire::kImm : 0)),
                          .completion = wish.completion});
}

template <typename How = Now>
[[gnu::always_inline]] inline ssize_t send_message(Ep& ep, const char* call, const Message& m,
                                                   const TxWish& wish,
                                                   const How& how = {}) noexcept {
  qp::SendWr wr;
  if (!measure(m.iov, m.count, ep.tx_iov_limit, wr.len)) [[unlikely]]
    return refuse_pieces(call, m.count, ep.tx_iov_limit);
  const uint64_t limit = wish.inject ? ep.inject_size : ep.max_msg_size;
  if (wr.len > limit) [[unlikely]]
    return refuse_length(call, wr.len, limit);
  wr.iov = m.iov;
  wr.iov_count = m.count;
  wr.dest = m.addr;
  wr.tag = m.tag;
  wr.imm = m.imm;
  wr.context = m.context;
  wr.flags = FI_SEND | (m.tagged ? FI_TAGGED : FI_MSG);
  wr.tagged = m.tagged;
  wr.has_imm = m.has_imm;
  wr.inject = wish.inject;
  wr.completion = wish.completion;
  wr.delivery = wish.delivery;
  wr.fence = wish.fence;
  return how.send(ep, call, wr);
}

[[gnu::noinline]] inline ssize_t send_flat_message(Ep& ep, const char* call, Message m,
                                                   const void* buf, size_t len,
                                                   const TxWish& wish) noexcept {
  if (!ep.may_send) [[unlikely]]
    return refuse_side(call, "FI_SEND");
  const iovec iov{const_cast<void*>(buf), len};
  m.iov = &iov;
  m.count = 1;
  return send_message(ep, call, m, wish);
}

// The calls with one flat buffer; `m` has everything else.
[[gnu::always_inline]] inline ssize_t send_flat(Ep& ep, const char* call, const Message& m,
                                                const void* buf, size_t len,
                                                const TxWish& wish) noexcept {
  if (may_be_line(ep, buf, len, wish)) [[likely]] {
    nic::EngineGuard guard(*ep.engine);
    if (send_line(ep, m, buf, len, wish)) [[likely]]
      return 0;
  }
  return send_flat_message(ep, call, m, buf, len, wish);
}

// Fills a receive; 0 or the refusal. One without a buffer takes no bytes, whatever its length says.
[[gnu::always_inline]] inline ssize_t make_receive(const Ep& ep, const char* call, Message m,
                                                   bool completion, qp::RecvWr& wr) noexcept {
  static constexpr iovec kNoBytes{};
  if (m.count == 1 && m.iov != nullptr && m.iov->iov_base == nullptr) [[unlikely]]
    m.iov = &kNoBytes;
  if (!measure(m.iov, m.count, ep.rx_iov_limit, wr.len)) [[unlikely]]
    return refuse_pieces(call, m.count, ep.rx_iov_limit);
  wr.iov = m.iov;
  wr.iov_count = m.count;
  wr.source = m.addr;  // FI_ADDR_UNSPEC is qp::kAnySource
  wr.tag = m.tag;
  wr.ignore = m.ignore;
  wr.context = m.context;
  wr.flags = FI_RECV | (m.tagged ? FI_TAGGED : FI_MSG);
  wr.tagged = m.tagged;
  wr.completion = completion;
  return 0;
}
static_assert(FI_ADDR_UNSPEC == qp::kAnySource && FI_ADDR_NOTAVAIL == qp::kNoSource);

template <typename How = Now>
[[gnu::always_inline]] inline ssize_t recv_message(Ep& ep, const char* call, const Message& m,
                                                   bool completion, const How& how = {}) noexcept {
  qp::RecvWr wr;
  if (const ssize_t rc = make_receive(ep, call, m, completion, wr); rc != 0) [[unlikely]]
    return rc;
  return how.recv(ep, call, wr);
}

[[gnu::noinline]] inline ssize_t recv_flat_message(Ep& ep, const char* call, Message m, void* buf,
                                                   size_t len) noexcept {
  if (!ep.may_recv) [[unlikely]]
    return refuse_side(call, "FI_RECV");
  const iovec iov{buf, len};
  m.iov = &iov;
  m.count = 1;
  return recv_message(ep, call, m, ep.rx_completion);
}

// The calls with one flat buffer; `m` has everything else.
[[gnu::always_inline]] inline ssize_t recv_flat(Ep& ep, const char* call, const Message& m,
                                                void* buf, size_t len) noexcept {
  if (ep.may_recv && buf != nullptr) [[likely]] {
    nic::EngineGuard guard(*ep.engine);
    msg::Matcher* matcher = ep.core->matcher();
    if (matcher != nullptr &&
        matcher->recv_flat({.buf = buf,
                            .len = len,
                            .source = m.addr,
                            .tag = m.tag,
                            .ignore = m.ignore,
                            .context = m.context,
                            .flags = FI_RECV | (m.tagged ? FI_TAGGED : FI_MSG),
                            .tagged = m.tagged,
                            .completion = ep.rx_completion})) [[likely]]
      return 0;
  }
  return recv_flat_message(ep, call, m, buf, len);
}

// fi_inject and its relatives: copied at the call, no completion; an error carries the endpoint's
// context (fi_endpoint(3), NOTES).
inline constexpr TxWish kInjectWish{.completion = false, .inject = true};

}  // namespace aperture::provider
