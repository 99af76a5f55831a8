// What this provider offers: names, capabilities, limits. The single place that fi_getinfo, the
// hint checks and the objects agree on. man 3 fi_getinfo, fi_endpoint, fi_domain. Constants.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>

#include "base/address.hpp"
#include "provider/header_names.hpp"
#include "qp/limits.hpp"
#include "wire/message_datagram.hpp"

namespace aperture::provider {

inline constexpr const char* kProviderName = "aperture";
inline constexpr const char* kFabricName = "aperture";
inline constexpr const char* kDomainName = "aperture0";
inline constexpr uint32_t kProviderVersion = FI_VERSION(0, 1);
inline constexpr uint32_t kProtocol = kProviderSpecific | 0xa9e0u;
inline constexpr uint32_t kDatagramProtocol = kProviderSpecific | 0xa9e1u;  // FI_EP_DGRAM
inline constexpr uint32_t kProtocolVersion = 1;

// "Capabilities" of fi_getinfo(3): primary ones are given when asked for, modifiers narrow them,
// secondary ones may be given freely.
inline constexpr uint64_t kPrimaryCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV;
inline constexpr uint64_t kMessageModifiers = FI_SEND | FI_RECV;
inline constexpr uint64_t kRmaModifiers = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
inline constexpr uint64_t kFreeCaps = FI_LOCAL_COMM | FI_FENCE;  // always reported
inline constexpr uint64_t kAskedCaps =                           // reported when asked for
    FI_REMOTE_COMM | FI_SOURCE | FI_MULTI_RECV | FI_RMA_EVENT | FI_HMEM | FI_RMA_PMEM |
    FI_NAMED_RX_CTX | FI_AV_USER_ID | FI_SHARED_AV | FI_TRIGGER | FI_COLLECTIVE | kVariableMsg |
    kTaggedDirectedRecv | kTaggedMultiRecv | kExactDirectedRecv;
inline constexpr uint64_t kAllCaps =
    kPrimaryCaps | kMessageModifiers | kRmaModifiers | kFreeCaps | kAskedCaps;
// A connected endpoint has one peer, and no addresses to tell it by.
inline constexpr uint64_t kDatagramOnlyCaps = FI_DIRECTED_RECV | kTaggedDirectedRecv | FI_SOURCE |
                                              FI_NAMED_RX_CTX | FI_AV_USER_ID | FI_SHARED_AV |
                                              FI_COLLECTIVE;
// An unreliable one (FI_EP_DGRAM) carries messages, to one or to a group.
inline constexpr uint64_t kUnreliableCaps = FI_MSG | FI_MULTICAST | FI_DIRECTED_RECV |
                                            kMessageModifiers | kFreeCaps | FI_REMOTE_COMM |
                                            FI_SOURCE | FI_MULTI_RECV;
constexpr uint64_t caps_of(fi_ep_type type) noexcept {
  if (type == FI_EP_DGRAM) return kUnreliableCaps;
  return type == FI_EP_MSG ? kAllCaps & ~kDatagramOnlyCaps : kAllCaps;
}
inline constexpr uint64_t kTxCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ |
                                    FI_WRITE | FI_FENCE | FI_HMEM | FI_NAMED_RX_CTX | FI_MULTICAST |
                                    FI_TRIGGER | FI_COLLECTIVE | kVariableMsg;
inline constexpr uint64_t kRxCaps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV |
                                    FI_REMOTE_READ | FI_REMOTE_WRITE | FI_DIRECTED_RECV |
                                    FI_SOURCE | FI_MULTI_RECV | FI_RMA_EVENT | FI_HMEM |
                                    FI_RMA_PMEM | FI_TRIGGER | FI_COLLECTIVE | kVariableMsg |
                                    kTaggedDirectedRecv | kTaggedMultiRecv | kExactDirectedRecv;
// That of endpoints which may share one.
inline constexpr uint64_t kSharedTxCaps = kTxCaps & ~FI_MULTICAST;
inline constexpr uint64_t kDomainCaps =
    FI_LOCAL_COMM | FI_REMOTE_COMM | FI_AV_USER_ID | FI_SHARED_AV | FI_DIRECTED_RECV;

// "If neither direction is specified", both are meant.
constexpr uint64_t with_directions(uint64_t caps) noexcept {
  if ((caps & (FI_MSG | FI_TAGGED)) != 0 && (caps & kMessageModifiers) == 0)
    caps |= kMessageModifiers;
  if ((caps & (FI_RMA | FI_ATOMIC)) != 0 && (caps & kRmaModifiers) == 0) caps |= kRmaModifiers;
  return caps;
}

// Default operation flags that a context can be given.
inline constexpr uint64_t kCompletionLevels = FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                                              FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE |
                                              FI_COMMIT_COMPLETE;
inline constexpr uint64_t kTxOpFlags = FI_COMPLETION | FI_INJECT | FI_TRIGGER | kCompletionLevels;
// Nobody answers a datagram: "applies only to reliable endpoints", fi_cq(3).
inline constexpr uint64_t kUnreliableTxOpFlags =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MULTICAST;
constexpr uint64_t tx_op_flags_of(fi_ep_type type) noexcept {
  return type == FI_EP_DGRAM ? kUnreliableTxOpFlags : kTxOpFlags;
}
inline constexpr uint64_t kRxOpFlags = FI_COMPLETION | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE |
                                       FI_DELIVERY_COMPLETE | FI_MULTI_RECV | FI_TRIGGER;
constexpr uint64_t rx_op_flags_of(fi_ep_type type) noexcept {
  return type == FI_EP_DGRAM ? kRxOpFlags & ~FI_TRIGGER : kRxOpFlags;
}

// Message order. Sends to one peer always keep their order. The bits that involve RMA cost the
// one-sided path, so they are given when they are asked for.
inline constexpr uint64_t kRmaOrderBits = FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_RAS |
                                          FI_ORDER_WAR | FI_ORDER_WAW | FI_ORDER_WAS |
                                          FI_ORDER_SAR | FI_ORDER_SAW | FI_ORDER_RMA_RAR |
                                          FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW;
// Atomics go through the ring, all of them: they keep their order among themselves at no cost.
inline constexpr uint64_t kAtomicOrderBits =
    FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
inline constexpr uint64_t kAllOrderBits = kRmaOrderBits | kAtomicOrderBits | FI_ORDER_SAS;
// Datagrams may overtake each other.
constexpr uint64_t order_bits_of(fi_ep_type type) noexcept {
  return type == FI_EP_DGRAM ? 0 : kAllOrderBits;
}

constexpr size_t max_message_of(fi_ep_type type) noexcept {
  return type == FI_EP_DGRAM ? wire::kDatagramMtu : qp::kMaxMessageBytes;
}
// Of FI_MSG_PREFIX, which is granted to datagram endpoints whose application offers it.
inline constexpr size_t kPrefixBytes = 24;
static_assert(kPrefixBytes % 8 == 0 && kPrefixBytes >= wire::kMessageHeaderBytes);

inline constexpr size_t kDefaultQueueSize = 1024;
inline constexpr size_t kAtomicsWaiting = 256;  // planned for, per endpoint; more are taken
inline constexpr size_t kMaxQueueSize = size_t{1} << 20;
inline constexpr size_t kDefaultMinMultiRecv = 64;  // FI_OPT_MIN_MULTI_RECV until it is set
// Of buffered receives: FI_OPT_BUFFERED_LIMIT and _MIN until they are set, and the highest limit.
inline constexpr size_t kDefaultBufferedLimit = size_t{16} << 10;
inline constexpr size_t kMaxBufferedLimit = size_t{16} << 20;
inline constexpr size_t kDefaultBufferedMin = 64;
inline constexpr size_t kDefaultCqSize = 1024;
inline constexpr size_t kMaxCqSize = size_t{1} << 22;
inline constexpr size_t kBufferedBytes = size_t{64} << 20;  // unexpected payload held for receives
inline constexpr size_t kCqDataBytes = 8;
inline constexpr size_t kKeyBytes = 8;
inline constexpr size_t kRawKeyBytes = 16;  // with FI_MR_RAW: the key and its secret
inline constexpr size_t kRegionIovLimit = 16;
inline constexpr size_t kMaxErrorText = 1024;  // bytes of a sentence in err_data
inline constexpr size_t kMaxCqs = 65536;
inline constexpr size_t kMaxCounters = 65536;
inline constexpr size_t kMaxEndpoints = 16384;
inline constexpr size_t kMaxContexts = Address::kContexts;  // of each kind, of an endpoint
inline constexpr size_t kMaxAvKeys = 64;  // of an address vector, with FI_AV_AUTH_KEY
inline constexpr size_t kMaxRegions = size_t{1} << 20;
inline constexpr uint64_t kGenericTag = 0xaaaaaaaaaaaaaaaaull;  // 64 separate one-bit fields

// Since 1.5 there are mr_mode bits, authorization keys and err_data_size; since 1.10 FI_HMEM and
// FI_MR_HMEM; since 1.14 regions for collective calls say so; since 1.20 src_addr in error entries;
// since 1.22 descriptors that need not be given are valid or NULL; since 2.5 regions that are bound
// to an endpoint are closed before it.
inline constexpr uint32_t kApi15 = FI_VERSION(1, 5);
inline constexpr uint32_t kApi17 = FI_VERSION(1, 7);  // buffered receives, and variable messages
inline constexpr uint32_t kApiHmem = FI_VERSION(1, 10);
inline constexpr uint32_t kApi114 = FI_VERSION(1, 14);
inline constexpr uint32_t kApi120 = FI_VERSION(1, 20);
inline constexpr uint32_t kApi121 = FI_VERSION(1, 21);
inline constexpr uint32_t kApi122 = FI_VERSION(1, 22);
inline constexpr uint32_t kApi20 = FI_VERSION(2, 0);
inline constexpr uint32_t kApi25 = FI_VERSION(2, 5);

}  // namespace aperture::provider
