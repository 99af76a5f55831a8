// Capabilities and the fabric part of the hints: see hints.hpp.

#include <bit>
#include <cstdarg>
#include <cstdio>

#include "provider/fabric.hpp"
#include "provider/hints.hpp"
#include "provider/info_memory.hpp"
#include "provider/offer.hpp"

namespace aperture::provider {

namespace {

struct CapName {
  int bit;
  const char* name;
};
constexpr CapName kCapNames[] = {{1, "FI_MSG"},
                                 {2, "FI_RMA"},
                                 {3, "FI_TAGGED"},
                                 {4, "FI_ATOMIC"},
                                 {5, "FI_MULTICAST"},
                                 {6, "FI_COLLECTIVE"},
                                 {8, "FI_READ"},
                                 {9, "FI_WRITE"},
                                 {10, "FI_RECV"},
                                 {11, "FI_SEND"},
                                 {12, "FI_REMOTE_READ"},
                                 {13, "FI_REMOTE_WRITE"},
                                 {16, "FI_MULTI_RECV"},
                                 {20, "FI_TRIGGER"},
                                 {21, "FI_FENCE"},
                                 {41, "FI_AV_USER_ID"},
                                 {43, "FI_PEER"},
                                 {44, "FI_XPU"},
                                 {45, "FI_TAGGED_DIRECTED_RECV"},
                                 {46, "FI_TAGGED_MULTI_RECV"},
                                 {47, "FI_HMEM"},
                                 {49, "FI_RMA_PMEM"},
                                 {50, "FI_SOURCE_ERR"},
                                 {51, "FI_LOCAL_COMM"},
                                 {52, "FI_REMOTE_COMM"},
                                 {53, "FI_SHARED_AV"},
                                 {56, "FI_RMA_EVENT"},
                                 {57, "FI_SOURCE"},
                                 {58, "FI_NAMED_RX_CTX"},
                                 {59, "FI_DIRECTED_RECV"}};

// FI_BUFFERED_RECV is answered to who asks for it, and knows it. Who sets every bit there is has no
// wish: it will do what we need, and we need nothing.
bool buffers_receives(const Matching& m, uint64_t caps) noexcept {
  if (m.hints == nullptr || m.version < kApi17 || m.version >= kApi20) return false;
  if ((caps & (FI_MSG | FI_TAGGED)) == 0 || (caps & FI_RECV) == 0) return false;
  const fi_ep_attr* ep = m.hints->ep_attr;  // of an endpoint's own receives
  if (m.type == FI_EP_DGRAM || (ep != nullptr && ep->rx_ctx_cnt == FI_SHARED_CONTEXT)) return false;
  const auto wishes = [](uint64_t mode) {
    return mode != ~uint64_t{0} && (mode & kBufferedRecv) != 0;
  };
  const fi_rx_attr* rx = m.hints->rx_attr;
  return wishes(m.hints->mode) && (rx == nullptr || rx->mode == 0 || wishes(rx->mode));
}

// A context's caps: those it was narrowed to, or all of the endpoint's that concern it.
bool match_context_caps(const Matching& m, const char* which, uint64_t asked, uint64_t mine,
                        uint64_t endpoint_caps, uint64_t& answer) {
  if (asked == 0) {
    answer = endpoint_caps & mine;
    return true;
  }
  const uint64_t beyond = asked & ~(endpoint_caps & mine);
  if (beyond != 0) {
    return m.refuse(
        "%s->caps asks for %s, which is not among the endpoint's capabilities of that "
        "side; ask for it in hints->caps too, or leave %s->caps 0",
        which, cap_name(beyond, m.version), which);
  }
  answer = with_directions(asked) & endpoint_caps & mine;
  return true;
}

}  // namespace

bool Matching::refuse(const char* format, ...) const noexcept {
  if (static_cast<int>(log_level()) < static_cast<int>(level)) return false;
  char text[768];
  std::va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_line(level, "fi_getinfo: %s", text);
  return false;
}

const char* cap_name(uint64_t caps, uint32_t version) noexcept {
  const int bit = std::countr_zero(caps);
  if (bit == 48) return version >= kApi20 ? "FI_EXACT_DIRECTED_RECV" : "FI_VARIABLE_MSG";
  for (const CapName& c : kCapNames) {
    if (c.bit == bit) return c.name;
  }
  static thread_local char unknown[16];
  std::snprintf(unknown, sizeof unknown, "bit %d", bit);
  return unknown;
}

namespace {

// What an endpoint of that kind can have, for applications of that API.
uint64_t offered_to(const Matching& m) noexcept {
  uint64_t offered = caps_of(m.type);
  if (m.version < kApi20) {
    offered &= ~(kTaggedDirectedRecv | kTaggedMultiRecv);
    return has_variable_messages(m.version) ? offered : offered & ~kVariableMsg;
  }
  return m.type == FI_EP_RDM ? offered : offered & ~kExactDirectedRecv;
}

bool refuse_missing(const Matching& m, uint64_t missing) {
  if ((missing & (kTaggedDirectedRecv | kTaggedMultiRecv)) != 0 && m.version < kApi20) {
    return m.refuse(
        "caps ask for %s (bit %d), which API %u.%u does not know; it came with 2.0: ask for that "
        "or newer, or clear it",
        cap_name(missing & (kTaggedDirectedRecv | kTaggedMultiRecv), m.version),
        std::countr_zero(missing & (kTaggedDirectedRecv | kTaggedMultiRecv)), FI_MAJOR(m.version),
        FI_MINOR(m.version));
  }
  if (m.type == FI_EP_DGRAM) {
    return m.refuse(
        "caps ask for %s, which a datagram endpoint (FI_EP_DGRAM) does not have; it has FI_MSG, "
        "FI_MULTICAST, FI_MULTI_RECV, FI_DIRECTED_RECV, FI_SOURCE, FI_FENCE, "
        "FI_LOCAL_COMM and FI_REMOTE_COMM: clear it, or ask for FI_EP_RDM",
        cap_name(missing, m.version));
  }
  const uint64_t of_several = kDatagramOnlyCaps | (m.version >= kApi20 ? kExactDirectedRecv : 0);
  if (m.type == FI_EP_MSG && (missing & of_several) != 0) {
    return m.refuse(
        "caps ask for %s, which a connected endpoint (FI_EP_MSG) does not have: it has "
        "one peer; clear it, or ask for FI_EP_RDM",
        cap_name(missing & of_several, m.version));
  }
  if ((missing & FI_MULTICAST) != 0) {
    return m.refuse(
        "caps ask for FI_MULTICAST, which datagram endpoints have alone; clear it, or set "
        "ep_attr->type to FI_EP_DGRAM");
  }
  return m.refuse(
      "caps ask for %s, which Aperture does not offer yet; offered are FI_MSG, "
      "FI_TAGGED, FI_RMA, FI_ATOMIC (with their directions), FI_MULTI_RECV, FI_DIRECTED_RECV, "
      "FI_SOURCE, FI_RMA_EVENT, FI_RMA_PMEM, FI_HMEM, FI_NAMED_RX_CTX, FI_AV_USER_ID, "
      "FI_SHARED_AV, FI_FENCE, FI_TRIGGER, FI_COLLECTIVE, FI_LOCAL_COMM and FI_REMOTE_COMM, and "
      "from API 2.0 on FI_TAGGED_MULTI_RECV, FI_TAGGED_DIRECTED_RECV and FI_EXACT_DIRECTED_RECV",
      cap_name(missing, m.version));
}

// What is there, but not for everybody and not alone.
bool match_pairs(const Matching& m, uint64_t asked) {
  if ((asked & FI_HMEM) != 0 && m.version < kApiHmem) {
    return m.refuse(
        "caps ask for FI_HMEM (bit 47), which API %u.%u does not know; it came with 1.10: ask for "
        "that or newer, or clear it",
        FI_MAJOR(m.version), FI_MINOR(m.version));
  }
  if ((asked & FI_RMA_PMEM) != 0 && (asked & FI_RMA) == 0) {
    return m.refuse(
        "caps ask for FI_RMA_PMEM without FI_RMA, which it is a property of; ask for both, or for "
        "neither");
  }
  if ((asked & FI_MULTICAST) != 0 && (asked & FI_MSG) == 0) {
    return m.refuse(
        "caps ask for FI_MULTICAST without FI_MSG, with which it is paired; ask for both");
  }
  if ((asked & kVariableMsg) != 0 && has_variable_messages(m.version) &&
      (asked & (FI_MSG | FI_TAGGED)) == 0) {
    return m.refuse(
        "caps ask for FI_VARIABLE_MSG without FI_MSG or FI_TAGGED, which it is a property of; ask "
        "for one of them too");
  }
  return true;
}

}  // namespace

bool match_caps(const Matching& m, fi_info& answer) {
  const fi_info* hints = m.hints;
  const uint64_t asked = hints != nullptr ? hints->caps : 0;
  const uint64_t offered = offered_to(m);
  const uint64_t missing = asked & ~offered;
  if (missing != 0) return refuse_missing(m, missing);
  if (!match_pairs(m, asked)) return false;
  constexpr uint64_t primary = kPrimaryCaps | FI_MULTICAST;
  constexpr uint64_t wanted_bits = primary | kMessageModifiers | kRmaModifiers;
  uint64_t caps = (asked == 0 ? primary : asked & wanted_bits) & offered;
  // directed or directions alone say nothing about what to transfer
  if ((caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC)) == 0)
    caps |= kPrimaryCaps & ~FI_DIRECTED_RECV & offered;
  answer.caps = with_directions(caps) | kFreeCaps | (asked & kAskedCaps);
  if (asked == 0) answer.caps |= FI_MULTI_RECV;  // it costs nothing
  if ((asked & FI_RMA_EVENT) != 0 && (answer.caps & (FI_REMOTE_READ | FI_REMOTE_WRITE)) == 0) {
    return m.refuse(
        "caps ask for FI_RMA_EVENT on an endpoint that is no target of remote access; ask for "
        "FI_REMOTE_READ or FI_REMOTE_WRITE too, or leave it out");
  }
  answer.mode = buffers_receives(m, answer.caps) ? kBufferedRecv : 0;
  answer.rx_attr->mode = answer.mode;
  if ((asked & FI_REMOTE_COMM) != 0) {
    APERTURE_DEBUG(
        "fi_getinfo: FI_REMOTE_COMM is granted, but this version reaches peers on this "
        "host only");
  }
  const uint64_t tx = hints != nullptr && hints->tx_attr != nullptr ? hints->tx_attr->caps : 0;
  const uint64_t rx = hints != nullptr && hints->rx_attr != nullptr ? hints->rx_attr->caps : 0;
  const uint64_t tx_caps = m.version >= kApi20 ? kTxCaps & ~kExactDirectedRecv : kTxCaps;
  return match_context_caps(m, "tx_attr", tx, tx_caps, answer.caps, answer.tx_attr->caps) &&
         match_context_caps(m, "rx_attr", rx, kRxCaps, answer.caps, answer.rx_attr->caps);
}

bool match_fabric(const Matching& m, fi_info& answer) {
  answer.fabric_attr->name = new_text(kFabricName);
  answer.fabric_attr->prov_version = m.name.version;
  answer.fabric_attr->api_version = m.version;
  answer.fabric_attr->fabric = first_open_fabric();
  // libfabric writes prov_name, behind what a layered name begins with
  if (!m.name.core.empty()) answer.fabric_attr->prov_name = new_text(m.name.core.c_str());
  if (m.hints == nullptr || m.hints->fabric_attr == nullptr) return true;
  const fi_fabric_attr& asked = *m.hints->fabric_attr;
  if (asked.prov_name != nullptr && !m.name.is_meant_by(asked.prov_name)) {
    return m.refuse(
        "fabric_attr->prov_name \"%s\" means somebody else; set \"%s\", or leave it NULL",
        asked.prov_name, m.name.whole.c_str());
  }
  if (asked.name != nullptr && std::strcmp(asked.name, kFabricName) != 0) {
    return m.refuse("fabric \"%s\" is asked for; the only one here is \"%s\"", asked.name,
                    kFabricName);
  }
  if (asked.prov_version > m.name.version) {
    return m.refuse("provider version %u.%u is asked for; this is %u.%u",
                    FI_MAJOR(asked.prov_version), FI_MINOR(asked.prov_version),
                    FI_MAJOR(m.name.version), FI_MINOR(m.name.version));
  }
  if (asked.fabric != nullptr) {
    if (!is_open_fabric(asked.fabric)) {
      return m.refuse(
          "fabric_attr->fabric is not an open fabric of this provider; leave it NULL or "
          "pass one that fi_fabric returned");
    }
    answer.fabric_attr->fabric = asked.fabric;
  }
  return true;
}

}  // namespace aperture::provider
