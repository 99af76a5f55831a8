// The table of transitions: see attributes.hpp.
#include "ib/attributes.hpp"

#include <array>
#include <cstddef>

namespace aperture::ib {

namespace {

constexpr size_t kQpTypes = 5;
constexpr size_t kStates = 7;

constexpr size_t row_of(QpType type) noexcept {
  switch (type) {
    case QpType::rc: return 0;
    case QpType::uc: return 1;
    case QpType::ud: return 2;
    case QpType::xrc_send: return 3;
    case QpType::xrc_recv: return 4;
  }
  return 0;
}

struct Step {
  bool exists = false;
  uint32_t required = 0;
  uint32_t optional = 0;
};
using Steps = std::array<std::array<Step, kStates>, kStates>;

constexpr uint32_t kToInit = kAttrPkeyIndex | kAttrPort;
constexpr uint32_t kPath = kAttrAv | kAttrPathMtu | kAttrDestQpn | kAttrRqPsn;
constexpr uint32_t kResponder = kAttrMaxDestRdAtomic | kAttrMinRnrTimer;
constexpr uint32_t kRequester = kAttrTimeout | kAttrRetryCnt | kAttrRnrRetry | kAttrMaxRdAtomic;
constexpr uint32_t kMigration = kAttrAltPath | kAttrPathMigState;

constexpr size_t at(QpState s) noexcept {
  return static_cast<size_t>(s);
}

// What a connected type takes beyond the least: RC is both requester and responder, UC neither.
struct Kind {
  bool requester;
  bool responder;
};

constexpr Steps connected(Kind kind) noexcept {
  const uint32_t responder = kind.responder ? kResponder : 0;
  const uint32_t rnr_timer = kind.responder ? uint32_t{kAttrMinRnrTimer} : 0;
  const uint32_t running = kAttrCurState | kAttrAccessFlags | kMigration | rnr_timer;
  Steps s{};
  s[at(QpState::reset)][at(QpState::init)] = {true, kToInit | kAttrAccessFlags, 0};
  s[at(QpState::init)][at(QpState::init)] = {true, 0, kToInit | kAttrAccessFlags};
  s[at(QpState::init)][at(QpState::rtr)] = {true, kPath | responder,
                                            kAttrAltPath | kAttrAccessFlags | kAttrPkeyIndex};
  s[at(QpState::rtr)][at(QpState::rts)] = {true, kAttrSqPsn | (kind.requester ? kRequester : 0),
                                           running | kAttrRateLimit};
  s[at(QpState::rts)][at(QpState::rts)] = {true, 0, running | kAttrRateLimit};
  s[at(QpState::rts)][at(QpState::sqd)] = {true, 0, kAttrEnSqdAsync};
  s[at(QpState::sqd)][at(QpState::rts)] = {true, 0, running};
  s[at(QpState::sqd)][at(QpState::sqd)] = {
      true, 0,
      kAttrAv | kAttrAccessFlags | kAttrPkeyIndex | kMigration | responder |
          (kind.requester ? kRequester : 0) |
          (kind.requester || kind.responder ? uint32_t{kAttrPort} : 0u)};
  return s;
}

constexpr Steps datagram() noexcept {
  Steps s{};
  s[at(QpState::reset)][at(QpState::init)] = {true, kToInit | kAttrQkey, 0};
  s[at(QpState::init)][at(QpState::init)] = {true, 0, kToInit | kAttrQkey};
  s[at(QpState::init)][at(QpState::rtr)] = {true, 0, kAttrPkeyIndex | kAttrQkey};
  s[at(QpState::rtr)][at(QpState::rts)] = {true, kAttrSqPsn,
                                           kAttrCurState | kAttrQkey | kAttrRateLimit};
  s[at(QpState::rts)][at(QpState::rts)] = {true, 0, kAttrCurState | kAttrQkey | kAttrRateLimit};
  s[at(QpState::rts)][at(QpState::sqd)] = {true, 0, kAttrEnSqdAsync};
  s[at(QpState::sqd)][at(QpState::rts)] = {true, 0, kAttrCurState | kAttrQkey};
  s[at(QpState::sqd)][at(QpState::sqd)] = {true, 0, kAttrPkeyIndex | kAttrQkey};
  s[at(QpState::sqe)][at(QpState::rts)] = {true, 0, kAttrCurState | kAttrQkey};
  return s;
}

constexpr std::array<Steps, kQpTypes> kTable = [] {
  std::array<Steps, kQpTypes> all{};
  all[row_of(QpType::rc)] = connected({true, true});
  all[row_of(QpType::uc)] = connected({false, false});
  // An unreliable connection's send queue may be mended after an error.
  all[row_of(QpType::uc)][at(QpState::sqe)][at(QpState::rts)] = {true, 0,
                                                                 kAttrCurState | kAttrAccessFlags};
  all[row_of(QpType::ud)] = datagram();
  all[row_of(QpType::xrc_send)] = connected({true, false});
  all[row_of(QpType::xrc_recv)] = connected({false, true});
  all[row_of(QpType::xrc_recv)][at(QpState::rtr)][at(QpState::rts)].required |= kAttrTimeout;
  all[row_of(QpType::xrc_recv)][at(QpState::sqd)][at(QpState::sqd)].optional |= kAttrTimeout;
  for (Steps& steps : all) {
    for (auto& from : steps) {  // from anywhere
      from[at(QpState::reset)] = {true, 0, 0};
      from[at(QpState::err)] = {true, 0, 0};
    }
  }
  return all;
}();

constexpr const char* kNames[] = {
    "STATE",
    "CUR_STATE",
    "EN_SQD_ASYNC_NOTIFY",
    "ACCESS_FLAGS",
    "PKEY_INDEX",
    "PORT",
    "QKEY",
    "AV",
    "PATH_MTU",
    "TIMEOUT",
    "RETRY_CNT",
    "RNR_RETRY",
    "RQ_PSN",
    "MAX_QP_RD_ATOMIC",
    "ALT_PATH",
    "MIN_RNR_TIMER",
    "SQ_PSN",
    "MAX_DEST_RD_ATOMIC",
    "PATH_MIG_STATE",
    "CAP",
    "DEST_QPN",
};

}  // namespace

ModifyVerdict validate_modify(QpType type, QpState from, QpState to, uint32_t mask) noexcept {
  if (at(from) >= kStates || at(to) >= kStates) return {ModifyFault::no_such_transition, 0};
  const Step& step = kTable[row_of(type)][at(from)][at(to)];
  if (!step.exists) return {ModifyFault::no_such_transition, 0};
  if (const uint32_t missing = step.required & ~mask; missing != 0) {
    return {ModifyFault::attribute_missing, missing};
  }
  const uint32_t extra = mask & ~(step.required | step.optional | kAttrState);
  if (extra != 0) return {ModifyFault::attribute_not_allowed, extra};
  return {};
}

const char* attribute_name(uint32_t bits) noexcept {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if ((bits & 1u << i) != 0) return kNames[i];
  }
  return (bits & kAttrRateLimit) != 0 ? "RATE_LIMIT" : "(no attribute has that bit)";
}

const char* state_name(QpState state) noexcept {
  static constexpr const char* kStateNames[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return at(state) < kStates ? kStateNames[at(state)] : "an unknown state";
}

uint64_t rnr_timer_ns(uint8_t code) noexcept {
  // hundredths of a millisecond
  static constexpr uint32_t kHundredths[32] = {
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  return uint64_t{kHundredths[code & 31]} * 10'000;
}

uint64_t give_up_ns(uint8_t timeout, uint8_t retry_cnt) noexcept {
  if (timeout == 0) return 0;
  return (uint64_t{4096} << (timeout & 31)) * (uint64_t{retry_cnt & 7u} + 1);
}

}  // namespace aperture::ib
