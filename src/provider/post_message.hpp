// Posting messages, tagged or not: what fi_msg and fi_tagged share. Data path.
#pragma once

#include "provider/post.hpp"

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
                                       FI_DELIVERY_COMPLETE | FI_FENCE | FI_PRIORITY;
inline constexpr uint64_t kRecvFlags = FI_COMPLETION | FI_MORE | FI_INJECT_COMPLETE |
                                       FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_PRIORITY;

[[gnu::always_inline]] inline ssize_t send_message(Ep& ep, const char* call, const Message& m,
                                                   const TxWish& wish) noexcept {
  qp::SendWr wr;
  if (!measure(m.iov, m.count, ep.tx_iov_limit, wr.len)) [[unlikely]]
    return refuse_pieces(call, m.count, ep.tx_iov_limit);
  const uint64_t limit = wish.inject ? ep.inject_size : qp::kMaxMessageBytes;
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
  return post(ep, call, m.addr, [&wr](nic::Endpoint& core) noexcept { return core.send(wr); });
}

// Fills a receive; 0 or the refusal.
[[gnu::always_inline]] inline ssize_t make_receive(const Ep& ep, const char* call, const Message& m,
                                                   bool completion, qp::RecvWr& wr) noexcept {
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

[[gnu::always_inline]] inline ssize_t recv_message(Ep& ep, const char* call, const Message& m,
                                                   bool completion) noexcept {
  qp::RecvWr wr;
  if (const ssize_t rc = make_receive(ep, call, m, completion, wr); rc != 0) [[unlikely]]
    return rc;
  return post(ep, call, m.addr, [&wr](nic::Endpoint& core) noexcept { return core.recv(wr); });
}

// fi_inject and its relatives: copied at the call, no completion; an error carries the endpoint's
// context (fi_endpoint(3), NOTES).
inline constexpr TxWish kInjectWish{.completion = false, .inject = true};

}  // namespace aperture::provider
