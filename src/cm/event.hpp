// What an id is told to say to its peer, and what it tells its owner. rdma_get_cm_event(3).
//
// Values; an event is made by the control thread and handed over.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "wire/cm.hpp"

namespace aperture::cm {

class Id;

inline constexpr size_t kMaxPrivateBytes = wire::kRepPrivateBytes;

// Enhanced connection establishment: what two devices of a vendor agree upon.
struct Ece {
  uint32_t vendor = 0;  // 24 bits
  uint32_t attributes = 0;
};
constexpr wire::Ece on_wire(const Ece& ece) noexcept {
  return {Wild(ece.vendor), Wild(ece.attributes)};
}

// Of connections and of datagram ids in one: rdma_connect(3), rdma_accept(3).
struct Params {
  uint32_t qpn = 0;
  uint32_t qkey = 0;  // of datagram ids
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  bool flow_control = false;
  uint8_t retry_count = 0;
  uint8_t rnr_retry_count = 0;
  bool srq = false;
  Ece ece;
  uint8_t data_bytes = 0;
  std::array<uint8_t, kMaxPrivateBytes> data{};

  std::span<const uint8_t> private_data() const noexcept { return {data.data(), data_bytes}; }
};

enum class EventKind : uint8_t {
  addr_resolved,
  route_resolved,
  connect_request,
  connect_response,
  unreachable,
  rejected,
  established,
  disconnected,
  timewait_exit,
};

// Reasons of a REJ and statuses of a SIDR REP that we give. IBTA 12.6.7.2, 12.11.2.2.
inline constexpr uint32_t kRejInvalidServiceId = 8;
inline constexpr uint32_t kRejInvalidGid = 12;
inline constexpr uint32_t kRejConsumer = 28;
inline constexpr uint32_t kSidrOk = 0;
inline constexpr uint32_t kSidrUnsupported = 1;
inline constexpr uint32_t kSidrReject = 2;

struct Event {
  EventKind kind = EventKind::addr_resolved;
  int status = 0;  // 0, a reason of the peer, or a negative errno
  Params params;   // of a request, a response, a rejection
  // connect_request: the new id, and its place in the backlog, given back when this is destroyed
  std::unique_ptr<Id> child;
  std::shared_ptr<void> place;
};

}  // namespace aperture::cm
