// The endpoint and context parts of the hints: see hints.hpp. man 3 fi_endpoint, "ENDPOINT
// ATTRIBUTES", "TRANSMIT CONTEXT ATTRIBUTES", "RECEIVE CONTEXT ATTRIBUTES".
#include <algorithm>
#include <cinttypes>

#include "provider/auth_key.hpp"
#include "provider/hints.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

const char* type_name(int type) noexcept {
  switch (type) {
    case FI_EP_RDM: return "FI_EP_RDM";
    case FI_EP_MSG: return "FI_EP_MSG";
    case FI_EP_DGRAM: return "FI_EP_DGRAM";
    case kTypeSockStream: return "FI_EP_SOCK_STREAM";
    case kTypeSockDgram: return "FI_EP_SOCK_DGRAM";
    default: return "an unknown type";
  }
}

namespace {

constexpr uint32_t protocol_of(fi_ep_type type) noexcept {
  return type == FI_EP_DGRAM ? kDatagramProtocol : kProtocol;
}

bool match_contexts(const Matching& m, const char* which, size_t asked) {
  if (asked > 1 && asked != FI_SHARED_CONTEXT && (m.hints->caps & FI_COLLECTIVE) != 0)
    return m.refuse(
        "ep_attr->%s %zu is asked for with FI_COLLECTIVE; a context sends or receives, and a "
        "member "
        "of a group does both: leave it 0, or FI_COLLECTIVE out",
        which, asked);
  const size_t most = m.type == FI_EP_RDM ? kMaxContexts : 1;
  const bool may_share = m.type != FI_EP_DGRAM;
  if ((asked == FI_SHARED_CONTEXT && may_share) || asked <= most) return true;
  if (asked == FI_SHARED_CONTEXT)
    return m.refuse(
        "ep_attr->%s is FI_SHARED_CONTEXT, which is offered for FI_EP_RDM and FI_EP_MSG; leave it "
        "0",
        which);
  return m.refuse("ep_attr->%s %zu is asked for; at most %zu of such an endpoint are offered",
                  which, asked, most);
}

bool match_ep_identity(const Matching& m, const fi_ep_attr& asked) {
  if (asked.type != FI_EP_UNSPEC && asked.type != m.type) {
    return m.refuse(
        "endpoint type %s is asked for; this version offers FI_EP_RDM, FI_EP_MSG and FI_EP_DGRAM, "
        "set ep_attr->type to one of them",
        type_name(asked.type));
  }
  const uint32_t protocol = protocol_of(m.type);
  if (asked.protocol != FI_PROTO_UNSPEC && asked.protocol != protocol) {
    return m.refuse(
        "ep_attr->protocol 0x%x is asked for; Aperture speaks its own (0x%x), leave it 0",
        asked.protocol, protocol);
  }
  if (asked.protocol_version > kProtocolVersion) {
    return m.refuse("ep_attr->protocol_version %u is asked for; offered is %u",
                    asked.protocol_version, kProtocolVersion);
  }
  return match_contexts(m, "tx_ctx_cnt", asked.tx_ctx_cnt) &&
         match_contexts(m, "rx_ctx_cnt", asked.rx_ctx_cnt);
}

// Order for RMA and atomics of any size, among those that the bits order; a size asked for is asked
// for in the bits that order all of them.
void set_order_sizes(fi_ep_attr& mine, const fi_ep_attr* asked, uint64_t& order) {
  if (asked != nullptr) {
    if (asked->max_order_raw_size != 0) order |= FI_ORDER_RAW;
    if (asked->max_order_war_size != 0) order |= FI_ORDER_WAR;
    if (asked->max_order_waw_size != 0) order |= FI_ORDER_WAW;
  }
  const auto size_of = [order](uint64_t bits) { return (order & bits) != 0 ? SIZE_MAX : 0; };
  mine.max_order_raw_size = size_of(FI_ORDER_RAW | FI_ORDER_RMA_RAW | FI_ORDER_ATOMIC_RAW);
  mine.max_order_war_size = size_of(FI_ORDER_WAR | FI_ORDER_RMA_WAR | FI_ORDER_ATOMIC_WAR);
  mine.max_order_waw_size = size_of(FI_ORDER_WAW | FI_ORDER_RMA_WAW | FI_ORDER_ATOMIC_WAW);
}

bool match_op_flags(const Matching& m, const char* which, uint64_t asked, uint64_t offered) {
  const uint64_t beyond = asked & ~offered;
  if (beyond == 0) return true;
  if (m.type == FI_EP_DGRAM && (beyond & kCompletionLevels) != 0) {
    return m.refuse(
        "%s->op_flags 0x%" PRIx64
        " ask for a completion level of reliable endpoints; of a datagram (FI_EP_DGRAM) "
        "FI_TRANSMIT_COMPLETE is the highest",
        which, asked);
  }
  if ((beyond & FI_TRIGGER) != 0 && m.type != FI_EP_DGRAM) {
    return m.refuse(
        "%s->op_flags ask for FI_TRIGGER, which is not among the capabilities; ask for it in "
        "hints->caps too",
        which);
  }
  if ((beyond & FI_COMMIT_COMPLETE) != 0) {
    return m.refuse(
        "%s->op_flags ask for FI_COMMIT_COMPLETE, which is for writes to persistent memory; ask "
        "for "
        "FI_RMA_PMEM in caps too, or for FI_DELIVERY_COMPLETE",
        which);
  }
  return m.refuse("%s->op_flags 0x%" PRIx64 " are asked for, of which 0x%" PRIx64
                  " are not offered; clear them",
                  which, asked, beyond);
}

bool match_order(const Matching& m, const char* which, uint64_t msg_order, uint64_t comp_order) {
  const uint64_t beyond = msg_order & ~order_bits_of(m.type);
  if (beyond != 0 && m.type == FI_EP_DGRAM) {
    return m.refuse("%s->msg_order bits 0x%" PRIx64
                    " are asked for; datagrams (FI_EP_DGRAM) have no order, clear them or ask for "
                    "FI_EP_RDM",
                    which, beyond);
  }
  if (beyond != 0) {
    return m.refuse("%s->msg_order bits 0x%" PRIx64
                    " are asked for; offered are FI_ORDER_STRICT and "
                    "the FI_ORDER_RMA_* and FI_ORDER_ATOMIC_* bits",
                    which, beyond);
  }
  if (comp_order != kNoOrder) {
    return m.refuse("%s->comp_order 0x%" PRIx64
                    " is asked for; completions here come in the order in "
                    "which operations end (FI_ORDER_NONE)",
                    which, comp_order);
  }
  return true;
}

bool at_most(const Matching& m, const char* field, size_t asked, size_t offered) {
  if (asked <= offered) return true;
  return m.refuse("%s %zu is asked for; at most %zu is offered", field, asked, offered);
}

bool match_auth_key(const Matching& m, const fi_ep_attr& asked, fi_ep_attr& mine) {
  if (m.version < kApi15) return true;
  if (m.type == FI_EP_DGRAM && asked.auth_key_size != 0) {
    return m.refuse(
        "ep_attr->auth_key_size %zu is asked for; datagrams (FI_EP_DGRAM) prove no authorization "
        "key, leave it 0 or ask for FI_EP_RDM",
        asked.auth_key_size);
  }
  const fi_domain_attr* const domain = m.hints != nullptr ? m.hints->domain_attr : nullptr;
  if (m.version >= kApi120 && domain != nullptr && domain->auth_key_size == kAvAuthKey &&
      (asked.auth_key_size != 0 || asked.auth_key != nullptr)) {
    return m.refuse(
        "ep_attr has an authorization key, and the domain FI_AV_AUTH_KEY: endpoints have the keys "
        "of their address vectors there; leave ep_attr->auth_key NULL and its size 0");
  }
  if (!at_most(m, "ep_attr->auth_key_size", asked.auth_key_size, kMaxAuthKeyBytes)) return false;
  mine.auth_key_size = asked.auth_key_size;
  mine.auth_key = new_auth_key(asked.auth_key, asked.auth_key_size);
  return true;
}

void echo(size_t asked, size_t& mine) noexcept {
  if (asked != 0) mine = asked;
}

}  // namespace

// An application that offers prefix space uses it, unless it wants one buffer for many messages:
// those have no prefix each. The context's modes, where they are given, are those that count.
void match_prefix(const Matching& m, fi_info& answer) noexcept {
  if (m.hints == nullptr || m.type != FI_EP_DGRAM) return;
  const fi_tx_attr* tx = m.hints->tx_attr;
  const fi_rx_attr* rx = m.hints->rx_attr;
  uint64_t mode = m.hints->mode;
  if (tx != nullptr && tx->mode != 0) mode &= tx->mode;
  if (rx != nullptr && rx->mode != 0) mode &= rx->mode;
  if ((mode & FI_MSG_PREFIX) == 0 || (m.hints->caps & FI_MULTI_RECV) != 0) return;
  answer.mode |= FI_MSG_PREFIX;
  answer.tx_attr->mode |= FI_MSG_PREFIX;
  answer.rx_attr->mode |= FI_MSG_PREFIX;
  answer.caps &= ~FI_MULTI_RECV;
  answer.rx_attr->caps &= ~FI_MULTI_RECV;
}

bool match_ep(const Matching& m, fi_info& answer) {
  fi_ep_attr& mine = *answer.ep_attr;
  mine.type = m.type;
  mine.protocol = protocol_of(m.type);
  mine.protocol_version = kProtocolVersion;
  mine.max_msg_size = max_message_of(m.type);
  mine.msg_prefix_size = (answer.mode & FI_MSG_PREFIX) != 0 ? kPrefixBytes : 0;
  mine.mem_tag_format = m.type == FI_EP_DGRAM ? 0 : kGenericTag;
  mine.tx_ctx_cnt = 1;
  mine.rx_ctx_cnt = 1;
  const fi_ep_attr* asked = m.hints != nullptr ? m.hints->ep_attr : nullptr;
  if (m.type != FI_EP_DGRAM) set_order_sizes(mine, asked, answer.tx_attr->msg_order);
  answer.rx_attr->msg_order |= answer.tx_attr->msg_order;
  if (asked == nullptr) return true;
  // what is longer passes all the same, so this is where an application begins to call it long
  const bool variable = (answer.caps & kVariableMsg) != 0 && has_variable_messages(m.version);
  if (variable && asked->max_msg_size != 0)
    mine.max_msg_size = std::min<size_t>(mine.max_msg_size, asked->max_msg_size);
  if (asked->mem_tag_format != 0 && m.type != FI_EP_DGRAM)
    mine.mem_tag_format = asked->mem_tag_format;
  echo(asked->tx_ctx_cnt, mine.tx_ctx_cnt);
  echo(asked->rx_ctx_cnt, mine.rx_ctx_cnt);
  return match_ep_identity(m, *asked) &&
         at_most(m, "ep_attr->max_msg_size", asked->max_msg_size,
                 variable ? qp::kMaxMessageBytes : mine.max_msg_size) &&
         at_most(m, "ep_attr->msg_prefix_size (FI_MSG_PREFIX, of FI_EP_DGRAM)",
                 asked->msg_prefix_size, mine.msg_prefix_size) &&
         match_auth_key(m, *asked, mine);
}

bool match_tx(const Matching& m, fi_info& answer) {
  fi_tx_attr& mine = *answer.tx_attr;
  mine.msg_order = (FI_ORDER_SAS | ((answer.caps & FI_ATOMIC) != 0 ? kAtomicOrderBits : 0)) &
                   order_bits_of(m.type);
  mine.comp_order = kNoOrder;
  mine.inject_size = qp::kInjectBytes;
  mine.size = kDefaultQueueSize;
  mine.iov_limit = qp::kIovLimit;
  mine.rma_iov_limit = (answer.caps & (FI_RMA | FI_ATOMIC)) != 0 ? qp::kRmaIovLimit : 0;
  const fi_tx_attr* asked = m.hints != nullptr ? m.hints->tx_attr : nullptr;
  if (asked == nullptr) return true;
  const uint64_t left_out = ((answer.caps & FI_RMA_PMEM) != 0 ? 0 : FI_COMMIT_COMPLETE) |
                            ((answer.caps & FI_MULTICAST) != 0 ? 0 : FI_MULTICAST) |
                            ((answer.caps & FI_TRIGGER) != 0 ? 0 : FI_TRIGGER);
  if (!match_op_flags(m, "tx_attr", asked->op_flags, tx_op_flags_of(m.type) & ~left_out) ||
      !match_order(m, "tx_attr", asked->msg_order, asked->comp_order) ||
      !at_most(m, "tx_attr->inject_size", asked->inject_size, qp::kInjectBytes) ||
      !at_most(m, "tx_attr->size", asked->size, kMaxQueueSize) ||
      !at_most(m, "tx_attr->iov_limit", asked->iov_limit, qp::kIovLimit) ||
      !at_most(m, "tx_attr->rma_iov_limit", asked->rma_iov_limit, qp::kRmaIovLimit)) {
    return false;
  }
  mine.op_flags = asked->op_flags;
  mine.msg_order |= asked->msg_order;
  echo(asked->inject_size, mine.inject_size);
  echo(asked->size, mine.size);
  echo(asked->iov_limit, mine.iov_limit);
  echo(asked->rma_iov_limit, mine.rma_iov_limit);
  if (m.version >= FI_VERSION(1, 9)) mine.tclass = asked->tclass;
  return true;
}

bool match_rx(const Matching& m, fi_info& answer) {
  fi_rx_attr& mine = *answer.rx_attr;
  mine.msg_order = FI_ORDER_SAS & order_bits_of(m.type);
  mine.comp_order = kNoOrder;
  mine.total_buffered_recv = m.type == FI_EP_DGRAM ? 0 : kBufferedBytes;
  mine.size = kDefaultQueueSize;
  mine.iov_limit = qp::kIovLimit;
  const fi_rx_attr* asked = m.hints != nullptr ? m.hints->rx_attr : nullptr;
  if (asked == nullptr) return true;
  const uint64_t left_out = (answer.caps & FI_TRIGGER) != 0 ? 0 : FI_TRIGGER;
  if (!match_op_flags(m, "rx_attr", asked->op_flags, rx_op_flags_of(m.type) & ~left_out) ||
      !match_order(m, "rx_attr", asked->msg_order, asked->comp_order) ||
      !at_most(m, "rx_attr->total_buffered_recv", asked->total_buffered_recv,
               mine.total_buffered_recv) ||
      !at_most(m, "rx_attr->size", asked->size, kMaxQueueSize) ||
      !at_most(m, "rx_attr->iov_limit", asked->iov_limit, qp::kIovLimit)) {
    return false;
  }
  if ((asked->op_flags & FI_MULTI_RECV) != 0 &&
      (answer.caps & (FI_MULTI_RECV | kTaggedMultiRecv)) == 0) {
    return m.refuse(
        "rx_attr->op_flags ask for FI_MULTI_RECV, which is not among the capabilities; ask for it "
        "in hints->caps too");
  }
  if ((asked->op_flags & FI_MULTI_RECV) != 0 && (answer.mode & kBufferedRecv) != 0) {
    return m.refuse(
        "rx_attr->op_flags ask for FI_MULTI_RECV, and the mode for FI_BUFFERED_RECV, which takes "
        "no "
        "buffers; leave one of them out");
  }
  mine.op_flags = asked->op_flags;
  mine.msg_order |= asked->msg_order;
  echo(asked->size, mine.size);
  echo(asked->iov_limit, mine.iov_limit);
  return true;
}

}  // namespace aperture::provider
