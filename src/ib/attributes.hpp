// Attributes of a queue pair, and which of them each transition of its state takes. IBTA vol. 1,
// 10.3.1 and 11.2.5.2 (Modify Queue Pair); ibv_modify_qp(3).
//
// Plain values and constant tables; any thread. The numbers are those of <infiniband/verbs.h>.
#pragma once

#include <cstdint>

#include "base/address.hpp"
#include "ib/words.hpp"

namespace aperture::ib {

// the attr_mask of ibv_modify_qp(3)
enum AttrMask : uint32_t {
  kAttrState = 1u << 0,
  kAttrCurState = 1u << 1,
  kAttrEnSqdAsync = 1u << 2,
  kAttrAccessFlags = 1u << 3,
  kAttrPkeyIndex = 1u << 4,
  kAttrPort = 1u << 5,
  kAttrQkey = 1u << 6,
  kAttrAv = 1u << 7,
  kAttrPathMtu = 1u << 8,
  kAttrTimeout = 1u << 9,
  kAttrRetryCnt = 1u << 10,
  kAttrRnrRetry = 1u << 11,
  kAttrRqPsn = 1u << 12,
  kAttrMaxRdAtomic = 1u << 13,
  kAttrAltPath = 1u << 14,
  kAttrMinRnrTimer = 1u << 15,
  kAttrSqPsn = 1u << 16,
  kAttrMaxDestRdAtomic = 1u << 17,
  kAttrPathMigState = 1u << 18,
  kAttrCap = 1u << 19,
  kAttrDestQpn = 1u << 20,
  kAttrRateLimit = 1u << 25,
};

// Where a datagram, or the other end of a connection, is: an address handle, resolved.
struct Route {
  Address local;              // IP of the GID that is used; port 0
  Address remote;             // IP; the port comes with the queue pair number
  uint8_t traffic_class = 0;  // of the global route header: datagrams tell it, nothing acts on it
};

struct QpAttributes {
  QpState state = QpState::reset;
  QpState cur_state = QpState::reset;
  bool en_sqd_async = false;
  uint32_t access = 0;  // kAllowRemote...
  uint32_t qkey = 0;
  Route route;
  uint32_t dest_qpn = 0;
  uint8_t timeout = 0;    // 4.096 us * 2^timeout; 0: for ever
  uint8_t retry_cnt = 0;  // 0..7
  uint8_t rnr_retry = 0;  // 0..7; 7: for ever
  uint8_t min_rnr_timer = 0;
  uint8_t max_rd_atomic = 0;
  uint8_t max_dest_rd_atomic = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
};

// What is wrong with modifying a queue pair of that type from `from` to `to` with these attributes.
enum class ModifyFault : uint8_t {
  none,
  no_such_transition,
  attribute_missing,      // a required one: the bits in `bits`
  attribute_not_allowed,  // one that this transition does not take: the bits in `bits`
};
struct ModifyVerdict {
  ModifyFault fault = ModifyFault::none;
  uint32_t bits = 0;
};
ModifyVerdict validate_modify(QpType type, QpState from, QpState to, uint32_t mask) noexcept;

// "AV" and so on, of the lowest bit that is set; for sentences. Static storage.
const char* attribute_name(uint32_t bits) noexcept;
const char* state_name(QpState state) noexcept;

// Nanoseconds of an RNR NAK timer code (IBTA table 45). Any number may be asked about.
uint64_t rnr_timer_ns(uint8_t code) noexcept;
// Nanoseconds until a peer that does not answer is given up: timeout and retry count together; 0:
// never.
uint64_t give_up_ns(uint8_t timeout, uint8_t retry_cnt) noexcept;

constexpr uint16_t port_of(uint32_t qpn) noexcept {
  return static_cast<uint16_t>(qpn >> 8);
}
constexpr uint8_t index_of(uint32_t qpn) noexcept {
  return static_cast<uint8_t>(qpn);
}

}  // namespace aperture::ib
