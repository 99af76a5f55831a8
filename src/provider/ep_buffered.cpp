// Buffered receives and variable-length messages: FI_BUFFERED_RECV, FI_VARIABLE_MSG. man 3 fi_msg,
// "Buffered Receives", "Variable Length Messages"; fi_tagged, "Buffered Tagged Receives". Data
// path.
//
// Of the API versions that have them: a message completes with a struct fi_recv_context as its
// context and stays where it lies until that is claimed or discarded (msg/buffered.hpp). An
// endpoint of this kind has its own tables of calls, so that all others pay nothing. Every message
// is shown, whatever FI_SELECTIVE_COMPLETION says: nobody could claim it otherwise. The counter of
// receives counts claims and discards.
#include "provider/ep_buffered.hpp"

#include <cstddef>

#include "msg/probe.hpp"
#include "provider/ep_described.hpp"
#include "provider/hints.hpp"
#include "provider/post_message.hpp"

namespace aperture::provider {

namespace {

static_assert(sizeof(msg::RecvContext) == sizeof(fi_recv_context) &&
              offsetof(msg::RecvContext, receiver) == offsetof(fi_recv_context, ep) &&
              offsetof(msg::RecvContext, context) == offsetof(fi_recv_context, context));

constexpr uint64_t kEndFlags = FI_CLAIM | FI_DISCARD;

// A claim or a discard of what has been shown.
ssize_t end_buffered(Ep& ep, const char* call, Message m, uint64_t flags) noexcept {
  const bool discards = (flags & FI_DISCARD) != 0;
  msg::Probe what;
  what.action = discards ? msg::Probe::Action::claim_discard : msg::Probe::Action::claim;
  if (discards) {  // its buffers are not looked at
    m.iov = nullptr;
    m.count = 0;
  }
  const bool completion = !ep.rx_selective || (flags & FI_COMPLETION) != 0;
  if (const ssize_t rc = make_receive(ep, call, m, completion, what.match); rc != 0) return rc;
  bool is_known = true;
  const ssize_t rc = post(ep, call, m.addr, [&](nic::Endpoint& core) noexcept {
    const Status s = core.probe(what);
    is_known = s.ok() || s.error() != Errc::invalid;
    return is_known ? s : Status();
  });
  if (is_known) return rc;
  return refuse(
      -FI_EINVAL,
      "%s: context %p is no struct fi_recv_context of a message that waits here; pass the "
      "op_context of its completion, once",
      call, m.context);
}

// ---- untagged -----------------------------------------------------------------------------------

ssize_t refuse_receive(const char* call) noexcept {
  return refuse(-FI_EOPNOTSUPP,
                "%s: the endpoint was opened with FI_BUFFERED_RECV or FI_VARIABLE_MSG, so messages "
                "come without receives; claim or discard them with FI_CLAIM or FI_DISCARD",
                call);
}

ssize_t recv(fid_ep* fid, void*, size_t, void*, fi_addr_t, void*) noexcept {
  if (!object_of<Ep>(fid).may_recv) return refuse_side("fi_recv", "FI_RECV");
  return refuse_receive("fi_recv");
}

ssize_t recvv(fid_ep* fid, const iovec*, void**, size_t, fi_addr_t, void*) noexcept {
  if (!object_of<Ep>(fid).may_recv) return refuse_side("fi_recvv", "FI_RECV");
  return refuse_receive("fi_recvv");
}

ssize_t recvmsg_buffered(fid_ep* fid, const fi_msg* msg, uint64_t flags) noexcept {
  auto& ep = object_of<Ep>(fid);
  if (!ep.may_recv) return refuse_side("fi_recvmsg", "FI_RECV");
  if (msg == nullptr) return -FI_EINVAL;
  if ((flags & ~(kRecvFlags | kEndFlags)) != 0)
    return refuse_flags("fi_recvmsg", flags, kRecvFlags | kEndFlags);
  if ((flags & kEndFlags) == 0) return refuse_receive("fi_recvmsg");
  return end_buffered(
      ep, "fi_recvmsg",
      {.iov = msg->msg_iov, .count = msg->iov_count, .addr = msg->addr, .context = msg->context},
      flags);
}

// ---- tagged -------------------------------------------------------------------------------------

// A tag to be matched; of the receive nothing else counts.
ssize_t post_tag(Ep& ep, const char* call, const Message& m) noexcept {
  if (!ep.may_recv) return refuse_side(call, "FI_RECV");
  msg::Probe what;
  what.action = msg::Probe::Action::show;
  if (const ssize_t rc = make_receive(ep, call, m, true, what.match); rc != 0) return rc;
  return post(ep, call, m.addr, [&what](nic::Endpoint& core) noexcept { return core.probe(what); });
}

ssize_t trecv(fid_ep* fid, void*, size_t, void*, fi_addr_t source, uint64_t tag, uint64_t ignore,
              void* context) noexcept {
  return post_tag(
      object_of<Ep>(fid), "fi_trecv",
      {.addr = source, .context = context, .tag = tag, .ignore = ignore, .tagged = true});
}

ssize_t trecvv(fid_ep* fid, const iovec*, void**, size_t, fi_addr_t source, uint64_t tag,
               uint64_t ignore, void* context) noexcept {
  return post_tag(
      object_of<Ep>(fid), "fi_trecvv",
      {.addr = source, .context = context, .tag = tag, .ignore = ignore, .tagged = true});
}

ssize_t trecvmsg_buffered(fid_ep* fid, const fi_msg_tagged* msg, uint64_t flags) noexcept {
  // a peek looks at messages that no tag has met; who claims one then names it by its fi_context
  if (msg == nullptr || (flags & FI_PEEK) != 0) return plain_tagged_ops().recvmsg(fid, msg, flags);
  auto& ep = object_of<Ep>(fid);
  if ((flags & ~(kRecvFlags | kEndFlags)) != 0)
    return refuse_flags("fi_trecvmsg", flags, kRecvFlags | kEndFlags);
  Message m{.addr = msg->addr,
            .context = msg->context,
            .tag = msg->tag,
            .ignore = msg->ignore,
            .tagged = true};
  if ((flags & kEndFlags) == 0) return post_tag(ep, "fi_trecvmsg", m);
  if (!ep.may_recv) return refuse_side("fi_trecvmsg", "FI_RECV");
  m.iov = msg->msg_iov;
  m.count = msg->iov_count;
  return end_buffered(ep, "fi_trecvmsg", m, flags);
}

// ---- options ------------------------------------------------------------------------------------

int take_option(EpBody& body, const char* option, const void* value, size_t len,
                size_t& wanted) noexcept {
  if (!body.buffered)
    return refuse(-FI_ENOPROTOOPT,
                  "fi_setopt: %s is of endpoints that were opened with FI_BUFFERED_RECV or "
                  "FI_VARIABLE_MSG, and this is none",
                  option);
  if (body.core)
    return refuse(-FI_EOPBADSTATE, "fi_setopt: %s is set before fi_enable; the endpoint is enabled",
                  option);
  if (len != sizeof wanted)
    return refuse(-FI_EINVAL, "fi_setopt: %s is a size_t (%zu bytes); optlen is %zu", option,
                  sizeof wanted, len);
  std::memcpy(&wanted, value, sizeof wanted);
  return 0;
}

}  // namespace

int set_buffered_limit(EpBody& body, const void* value, size_t len) noexcept {
  size_t wanted = 0;
  if (const int rc = take_option(body, "FI_OPT_BUFFERED_LIMIT", value, len, wanted); rc != 0)
    return rc;
  if (wanted == SIZE_MAX) wanted = kMaxBufferedLimit;
  if (wanted > kMaxBufferedLimit)
    return refuse(
        -FI_EMSGSIZE,
        "fi_setopt: FI_OPT_BUFFERED_LIMIT %zu; at most %zu is offered, which SIZE_MAX sets", wanted,
        kMaxBufferedLimit);
  if (wanted < body.buffered_rule.least)
    return refuse(
        -FI_EINVAL,
        "fi_setopt: FI_OPT_BUFFERED_LIMIT %zu is below FI_OPT_BUFFERED_MIN, which is %zu; "
        "set that first",
        wanted, static_cast<size_t>(body.buffered_rule.least));
  body.buffered_rule.limit = wanted;
  return 0;
}

int set_buffered_min(EpBody& body, const void* value, size_t len) noexcept {
  size_t wanted = 0;
  if (const int rc = take_option(body, "FI_OPT_BUFFERED_MIN", value, len, wanted); rc != 0)
    return rc;
  if (wanted > body.buffered_rule.limit)
    return refuse(
        -FI_EINVAL,
        "fi_setopt: FI_OPT_BUFFERED_MIN %zu is above FI_OPT_BUFFERED_LIMIT, which is %zu; "
        "set that first",
        wanted, static_cast<size_t>(body.buffered_rule.limit));
  body.buffered_rule.least = wanted;
  return 0;
}

int set_buffered(Ep& ep, const fi_info& info) noexcept {
  EpBody& body = *ep.body;
  const uint32_t api = body.domain->api_version;
  const bool variable = (info.caps & kVariableMsg) != 0 && has_variable_messages(api);
  const bool mode = (info.mode & kBufferedRecv) != 0 && api >= kApi17 && api < kApi20;
  if (variable) ep.max_msg_size = qp::kMaxVariableBytes;
  body.buffered = (variable || mode) && (body.rx_caps & FI_RECV) != 0;
  if (!body.buffered) return 0;
  if (body.wants_shared_receive)
    return refuse(-FI_EINVAL,
                  "fi_endpoint: receives of a shared context have buffers; leave rx_ctx_cnt 0, or "
                  "FI_BUFFERED_RECV and FI_VARIABLE_MSG out");
  body.buffered_rule = {.limit = kDefaultBufferedLimit,
                        .least = kDefaultBufferedMin,
                        .plain_flags = FI_RECV | FI_MSG,
                        .tagged_flags = FI_RECV | FI_TAGGED,
                        .more_flag = FI_MORE,
                        .claim_flag = FI_CLAIM,
                        .receiver = &ep.fid};
  return 0;
}

const fi_ops_msg& buffered_msg_ops() noexcept {
  static const fi_ops_msg ops = [] {
    fi_ops_msg made = plain_msg_ops();
    made.recv = recv;
    made.recvv = recvv;
    made.recvmsg = recvmsg_buffered;
    return made;
  }();
  return ops;
}

const fi_ops_tagged& buffered_tagged_ops() noexcept {
  static const fi_ops_tagged ops = [] {
    fi_ops_tagged made = plain_tagged_ops();
    made.recv = trecv;
    made.recvv = trecvv;
    made.recvmsg = trecvmsg_buffered;
    return made;
  }();
  return ops;
}

}  // namespace aperture::provider
