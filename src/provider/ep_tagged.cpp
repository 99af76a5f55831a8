// Tagged messages: fi_ops_tagged, with FI_PEEK, FI_CLAIM, FI_DISCARD. man 3 fi_tagged. Data path.
#include "msg/probe.hpp"
#include "provider/ep_buffered.hpp"
#include "provider/ep_described.hpp"
#include "provider/ep_device.hpp"
#include "provider/ep_message_calls.hpp"
#include "provider/ep_multi_recv.hpp"
#include "provider/ep_sources.hpp"
#include "provider/ep_triggered.hpp"
#include "provider/fork.hpp"

namespace aperture::provider {

namespace {

constexpr uint64_t kProbeFlags = FI_PEEK | FI_CLAIM | FI_DISCARD;
constexpr uint64_t kTaggedRecvFlags = kRecvFlags | kProbeFlags;

using Calls = MessageCalls<fi_ops_tagged, fi_msg_tagged, kSendFlags | FI_MATCH_COMPLETE, uint64_t>;

bool action_of(uint64_t flags, msg::Probe::Action& action) noexcept {
  using Action = msg::Probe::Action;
  switch (flags & kProbeFlags) {
    case FI_PEEK: action = Action::peek; return true;
    case FI_PEEK | FI_CLAIM: action = Action::peek_claim; return true;
    case FI_PEEK | FI_DISCARD: action = Action::peek_discard; return true;
    case FI_CLAIM: action = Action::claim; return true;
    case FI_CLAIM | FI_DISCARD: action = Action::claim_discard; return true;
    default: return false;
  }
}

ssize_t probe(Ep& ep, Message m, uint64_t flags) noexcept {
  msg::Probe what;
  if (!action_of(flags, what.action))
    return refuse(-FI_EINVAL,
                  "fi_trecvmsg: FI_PEEK, FI_CLAIM and FI_DISCARD go together as peek, peek+claim, "
                  "peek+discard, claim, claim+discard; flags 0x%llx are none of these",
                  static_cast<unsigned long long>(flags));
  if ((flags & FI_CLAIM) != 0 && m.context == nullptr)
    return refuse(-FI_EINVAL,
                  "fi_trecvmsg: FI_CLAIM needs the struct fi_context of the peek as context");
  if ((flags & (FI_PEEK | FI_DISCARD)) != 0) {  // nothing is placed
    m.iov = nullptr;
    m.count = 0;
  }
  const bool completion = !ep.rx_selective || (flags & FI_COMPLETION) != 0;
  if (const ssize_t rc = make_receive(ep, "fi_trecvmsg", m, completion, what.match); rc != 0)
    return rc;
  return post(ep, "fi_trecvmsg", m.addr, [&](nic::Endpoint& core) noexcept {
    if ((flags & FI_PEEK) != 0) {  // what has arrived already is to be seen
      ep.engine->poll_arrived();
      Sleeper::keep_asleep(*ep.body->domain);
    }
    return core.probe(what);
  });
}

[[gnu::always_inline]] inline Message message_of(const fi_msg_tagged& msg) noexcept {
  return {.iov = msg.msg_iov,
          .count = msg.iov_count,
          .addr = msg.addr,
          .context = msg.context,
          .tag = msg.tag,
          .ignore = msg.ignore,
          .tagged = true};
}

ssize_t trecvmsg(fid_ep* fid, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.may_recv) [[unlikely]]
    return refuse_side("fi_trecvmsg", "FI_RECV");
  if (msg == nullptr) [[unlikely]]
    return -FI_EINVAL;
  if ((flags & ~kTaggedRecvFlags) != 0) [[unlikely]] {
    if ((flags & ~(kRecvFlags | FI_MULTI_RECV)) == 0)
      return recv_many(ep, "fi_trecvmsg", message_of(*msg),
                       !ep.rx_selective || (flags & FI_COMPLETION) != 0);
    if ((flags & kAuthKeyFlag) != 0) return recv_by_key(fid, "fi_trecvmsg", *msg, flags, trecvmsg);
    if ((flags & FI_TRIGGER) == 0) return refuse_flags("fi_trecvmsg", flags, kTaggedRecvFlags);
    return trigger(ep, "fi_trecvmsg", msg->context, [&](const Later& later) noexcept {
      return recv_later(ep, "fi_trecvmsg", *msg, flags & ~FI_TRIGGER, later);
    });
  }
  const Message m = message_of(*msg);
  if ((flags & kProbeFlags) != 0) return probe(ep, m, flags);
  return recv_message(ep, "fi_trecvmsg", m, !ep.rx_selective || (flags & FI_COMPLETION) != 0);
}

fi_ops_tagged g_tagged_not_enabled = refusing<fi_ops_tagged>(
    NotOffered<"fi_tagged: the endpoint is not enabled; call fi_enable first", -FI_EOPBADSTATE>{});
fi_ops_tagged g_tagged_not_asked = refusing<fi_ops_tagged>(
    NotOffered<"fi_tagged: the endpoint was opened without FI_TAGGED; ask for it in hints->caps",
               -FI_EOPNOTSUPP>{});
const fi_ops_tagged g_tagged_plain = Calls::table(trecvmsg);

}  // namespace

ssize_t send_later(Ep& ep, const char* call, const fi_msg_tagged& msg, uint64_t flags,
                   const Later& later) noexcept {
  return Calls::keep_send(ep, call, msg, flags, later);
}

// What a probe answers is true now, and need not be later.
ssize_t recv_later(Ep& ep, const char* call, const fi_msg_tagged& msg, uint64_t flags,
                   const Later& later) noexcept {
  if (!ep.may_recv) return refuse_side(call, "FI_RECV");
  constexpr uint64_t known = kRecvFlags | FI_MULTI_RECV;
  if ((flags & ~known) != 0) return refuse_flags(call, flags, known);
  const bool completion = !ep.rx_selective || (flags & FI_COMPLETION) != 0;
  if ((flags & FI_MULTI_RECV) == 0)
    return recv_message(ep, call, message_of(msg), completion, later);
  qp::RecvWr wr;
  const ssize_t rc = make_multi_receive(ep, call, message_of(msg), completion, wr);
  return rc != 0 ? rc : later.recv_multi(ep, call, wr);
}

void fill_tagged(CallTables& tables) noexcept {
  tables.tagged = g_tagged_plain;
  tables.tagged_described = described_tagged_ops();
  tables.tagged_buffered = buffered_tagged_ops();
  tables.tagged_many = tagged_multi_recv_ops();
  tables.tagged_sources = sources_tagged_ops();
  tables.tagged_device = device_tagged_ops();
}

const fi_ops_tagged& plain_tagged_ops() noexcept {
  return g_tagged_plain;
}

fi_ops_tagged& tagged_ops_at_once(const Ep& ep) noexcept {
  return reaches_devices(ep) ? ep.body->domain->calls->tagged_device : tagged_ops_of_host(ep);
}

fi_ops_tagged& tagged_ops_of_host(const Ep& ep) noexcept {
  CallTables& calls = *ep.body->domain->calls;
  if (ep.descriptors != DescriptorRule::ignored) return calls.tagged_described;
  if (ep.buffered) return calls.tagged_buffered;
  return receives_many(ep, true) ? calls.tagged_many : calls.tagged;
}

fi_ops_tagged& tagged_ops_beneath_sources(const Ep& ep) noexcept {
  return triggers_by_default(ep) ? ep.body->domain->calls->tagged_triggered
                                 : tagged_ops_at_once(ep);
}

fi_ops_tagged* tagged_ops(const Ep& ep) noexcept {
  const EpBody& body = *ep.body;
  if (((body.tx_caps | body.rx_caps) & FI_TAGGED) == 0) return &g_tagged_not_asked;
  if (!body.core) return &g_tagged_not_enabled;
  if (reads_sources(body, true)) return &body.domain->calls->tagged_sources;
  return &tagged_ops_beneath_sources(ep);
}

}  // namespace aperture::provider
