// Modifying and querying queue pairs: ibv_modify_qp(3), ibv_query_qp(3). IBTA vol. 1, 11.2.5.2 (the
// table of transitions is ib/attributes.cpp's; the values are validated here).
#include <cassert>

#include "verbs/ah.hpp"
#include "verbs/errors.hpp"
#include "verbs/gids.hpp"
#include "verbs/qp.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

constexpr bool same(uint32_t ours, uint32_t theirs) noexcept {
  return ours == theirs;
}
static_assert(same(ib::kAttrState, IBV_QP_STATE));
static_assert(same(ib::kAttrCurState, IBV_QP_CUR_STATE));
static_assert(same(ib::kAttrEnSqdAsync, IBV_QP_EN_SQD_ASYNC_NOTIFY));
static_assert(same(ib::kAttrAccessFlags, IBV_QP_ACCESS_FLAGS));
static_assert(same(ib::kAttrPkeyIndex, IBV_QP_PKEY_INDEX));
static_assert(same(ib::kAttrPort, IBV_QP_PORT));
static_assert(same(ib::kAttrQkey, IBV_QP_QKEY));
static_assert(same(ib::kAttrAv, IBV_QP_AV));
static_assert(same(ib::kAttrPathMtu, IBV_QP_PATH_MTU));
static_assert(same(ib::kAttrTimeout, IBV_QP_TIMEOUT));
static_assert(same(ib::kAttrRetryCnt, IBV_QP_RETRY_CNT));
static_assert(same(ib::kAttrRnrRetry, IBV_QP_RNR_RETRY));
static_assert(same(ib::kAttrRqPsn, IBV_QP_RQ_PSN));
static_assert(same(ib::kAttrSqPsn, IBV_QP_SQ_PSN));
static_assert(same(ib::kAttrMaxRdAtomic, IBV_QP_MAX_QP_RD_ATOMIC));
static_assert(same(ib::kAttrAltPath, IBV_QP_ALT_PATH));
static_assert(same(ib::kAttrMinRnrTimer, IBV_QP_MIN_RNR_TIMER));
static_assert(same(ib::kAttrMaxDestRdAtomic, IBV_QP_MAX_DEST_RD_ATOMIC));
static_assert(same(ib::kAttrPathMigState, IBV_QP_PATH_MIG_STATE));
static_assert(same(ib::kAttrCap, IBV_QP_CAP));
static_assert(same(ib::kAttrDestQpn, IBV_QP_DEST_QPN));
static_assert(same(ib::kAttrRateLimit, IBV_QP_RATE_LIMIT));
static_assert(static_cast<int>(ib::QpState::sqd) == IBV_QPS_SQD);
static_assert(static_cast<int>(ib::QpState::sqe) == IBV_QPS_SQE);
static_assert(static_cast<int>(ib::QpState::err) == IBV_QPS_ERR);
static_assert(same(ib::kAllowRemoteWrite, IBV_ACCESS_REMOTE_WRITE));
static_assert(same(ib::kAllowRemoteRead, IBV_ACCESS_REMOTE_READ));
static_assert(same(ib::kAllowRemoteAtomic, IBV_ACCESS_REMOTE_ATOMIC));
static_assert(same(ib::kAllowFlushGlobal, kAccessFlushGlobal));
static_assert(same(ib::kAllowFlushPersistent, kAccessFlushPersistent));

namespace {

constexpr const char* kModifyCall = "ibv_modify_qp";
constexpr uint32_t k24Bits = 0xffffff;
constexpr uint32_t kKnownMask = ((IBV_QP_DEST_QPN << 1) - 1) | IBV_QP_RATE_LIMIT;

// What peers may do. Of the others none means anything here. Programs pass the flags of their
// regions, and devices take those.
constexpr uint32_t kMeaningful = ib::kAllowRemoteWrite | ib::kAllowRemoteRead |
                                 ib::kAllowRemoteAtomic | ib::kAllowFlushGlobal |
                                 ib::kAllowFlushPersistent;
constexpr uint32_t kKnownAccess = kMeaningful | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND |
                                  IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
                                  IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;

// The attributes that a type has: those of the other half of an XRC connection are dropped, as the
// kernel does (modify_qp_mask() of its uverbs_cmd.c), so that programs may name all of RC's.
constexpr uint32_t own_attributes(ib::QpType type, uint32_t mask) noexcept {
  switch (type) {
    case ib::QpType::xrc_send: return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    case ib::QpType::xrc_recv:
      return mask & ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
    default: return mask;
  }
}

// One attribute whose value is a number up to a limit.
struct Limit {
  uint32_t bit;
  const char* name;
  uint32_t value;
  uint32_t least;
  uint32_t most;
};

int validate_limits(const ibv_qp_attr& attr, uint32_t mask) noexcept {
  const Limit limits[] = {
      {IBV_QP_PORT, "port_num", attr.port_num, kPort, kPort},
      {IBV_QP_PKEY_INDEX, "pkey_index", attr.pkey_index, 0, 0},
      {IBV_QP_PATH_MTU, "path_mtu", attr.path_mtu, IBV_MTU_256, IBV_MTU_4096},
      {IBV_QP_TIMEOUT, "timeout", attr.timeout, 0, 31},
      {IBV_QP_RETRY_CNT, "retry_cnt", attr.retry_cnt, 0, 7},
      {IBV_QP_RNR_RETRY, "rnr_retry", attr.rnr_retry, 0, 7},
      {IBV_QP_MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 0, 31},
      {IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic, 0, ib::kMaxReadsInFlight},
      {IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic, 0,
       ib::kMaxReadsInFlight},
      {IBV_QP_PATH_MIG_STATE, "path_mig_state", attr.path_mig_state, IBV_MIG_MIGRATED,
       IBV_MIG_ARMED},
      {IBV_QP_ALT_PATH, "alt_port_num", attr.alt_port_num, kPort, kPort},
      {IBV_QP_ALT_PATH, "alt_pkey_index", attr.alt_pkey_index, 0, 0},
      {IBV_QP_ALT_PATH, "alt_timeout", attr.alt_timeout, 0, 31},
  };
  for (const Limit& limit : limits) {
    if ((mask & limit.bit) == 0 || (limit.value >= limit.least && limit.value <= limit.most)) {
      continue;
    }
    return refuse(EINVAL, "%s: %s is %u; it may be %u to %u", kModifyCall, limit.name, limit.value,
                  limit.least, limit.most);
  }
  return 0;
}

int validate_values(const ibv_qp_attr& attr, uint32_t mask, ib::Route& route) noexcept {
  if (const int error = validate_limits(attr, mask); error != 0) return error;
  if ((mask & IBV_QP_ACCESS_FLAGS) != 0 && (attr.qp_access_flags & ~kKnownAccess) != 0)
    return refuse(EINVAL, "%s: qp_access_flags 0x%x have bits of no meaning here", kModifyCall,
                  attr.qp_access_flags);
  if ((mask & IBV_QP_AV) != 0) {
    if (const int error = resolve(kModifyCall, attr.ah_attr, route); error != 0) return error;
  }
  ib::Route ignored;
  return (mask & IBV_QP_ALT_PATH) != 0 ? resolve(kModifyCall, attr.alt_ah_attr, ignored) : 0;
}

int validate_transition(const DeviceQp& qp, ib::QpState now, const ibv_qp_attr& attr,
                        uint32_t mask) noexcept {
  if ((mask & ~kKnownMask) != 0)
    return refuse(EINVAL, "%s: attr_mask 0x%x has unknown bits", kModifyCall, mask);
  if ((mask & IBV_QP_CUR_STATE) != 0 &&
      static_cast<uint32_t>(attr.cur_qp_state) != static_cast<uint32_t>(now)) {
    return refuse(EINVAL, "%s: cur_qp_state is %d, and the queue pair is in %s", kModifyCall,
                  static_cast<int>(attr.cur_qp_state), ib::state_name(now));
  }
  if ((mask & IBV_QP_STATE) != 0 && static_cast<uint32_t>(attr.qp_state) > IBV_QPS_ERR)
    return refuse(EINVAL, "%s: qp_state %d is no state", kModifyCall,
                  static_cast<int>(attr.qp_state));
  const auto next = (mask & IBV_QP_STATE) != 0 ? static_cast<ib::QpState>(attr.qp_state) : now;
  const ib::ModifyVerdict verdict = ib::validate_modify(qp.type, now, next, mask);
  switch (verdict.fault) {
    case ib::ModifyFault::none: return 0;
    case ib::ModifyFault::no_such_transition:
      return refuse(EINVAL, "%s: there is no way from %s to %s", kModifyCall, ib::state_name(now),
                    ib::state_name(next));
    case ib::ModifyFault::attribute_missing:
      return refuse(EINVAL, "%s: from %s to %s needs IBV_QP_%s in attr_mask", kModifyCall,
                    ib::state_name(now), ib::state_name(next), ib::attribute_name(verdict.bits));
    case ib::ModifyFault::attribute_not_allowed:
      return refuse(EINVAL, "%s: from %s to %s does not take IBV_QP_%s", kModifyCall,
                    ib::state_name(now), ib::state_name(next), ib::attribute_name(verdict.bits));
  }
  return EINVAL;
}

ib::QpAttributes core_attributes(const ibv_qp_attr& attr, const ib::Route& route) noexcept {
  ib::QpAttributes core;
  core.state = static_cast<ib::QpState>(attr.qp_state);
  core.cur_state = static_cast<ib::QpState>(attr.cur_qp_state);
  core.en_sqd_async = attr.en_sqd_async_notify != 0;
  core.access = attr.qp_access_flags & kMeaningful;
  core.qkey = attr.qkey;
  core.route = route;
  core.dest_qpn = attr.dest_qp_num & k24Bits;
  core.timeout = attr.timeout;
  core.retry_cnt = attr.retry_cnt;
  core.rnr_retry = attr.rnr_retry;
  core.min_rnr_timer = attr.min_rnr_timer;
  core.max_rd_atomic = attr.max_rd_atomic;
  core.max_dest_rd_atomic = attr.max_dest_rd_atomic;
  core.rq_psn = attr.rq_psn & k24Bits;
  core.sq_psn = attr.sq_psn & k24Bits;
  return core;
}

// What ibv_query_qp tells later: the attributes of the mask.
void remember(ibv_qp_attr& to, const ibv_qp_attr& attr, uint32_t mask) noexcept {
  const auto take = [&](uint32_t bit, auto member) {
    if ((mask & bit) != 0) to.*member = attr.*member;
  };
  take(IBV_QP_EN_SQD_ASYNC_NOTIFY, &ibv_qp_attr::en_sqd_async_notify);
  take(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
  take(IBV_QP_PKEY_INDEX, &ibv_qp_attr::pkey_index);
  take(IBV_QP_PORT, &ibv_qp_attr::port_num);
  take(IBV_QP_QKEY, &ibv_qp_attr::qkey);
  take(IBV_QP_AV, &ibv_qp_attr::ah_attr);
  take(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
  take(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
  take(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
  take(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
  take(IBV_QP_RQ_PSN, &ibv_qp_attr::rq_psn);
  take(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
  take(IBV_QP_ALT_PATH, &ibv_qp_attr::alt_ah_attr);
  take(IBV_QP_ALT_PATH, &ibv_qp_attr::alt_pkey_index);
  take(IBV_QP_ALT_PATH, &ibv_qp_attr::alt_port_num);
  take(IBV_QP_ALT_PATH, &ibv_qp_attr::alt_timeout);
  take(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
  take(IBV_QP_SQ_PSN, &ibv_qp_attr::sq_psn);
  take(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
  take(IBV_QP_PATH_MIG_STATE, &ibv_qp_attr::path_mig_state);
  take(IBV_QP_DEST_QPN, &ibv_qp_attr::dest_qp_num);
  take(IBV_QP_RATE_LIMIT, &ibv_qp_attr::rate_limit);
  to.rq_psn &= k24Bits;
  to.sq_psn &= k24Bits;
  to.dest_qp_num &= k24Bits;
}

ib::QpState state_of(DeviceQp& qp) noexcept {
  nic::EngineGuard guard(qp.engine());
  return qp.core().state();
}

int query(DeviceQp& qp, ibv_qp_attr& attr, ibv_qp_init_attr& init) {
  std::lock_guard guard(qp.shared->modify_mutex);
  attr = qp.shared->attributes;
  {
    nic::EngineGuard engine_guard(qp.engine());
    attr.qp_state = static_cast<ibv_qp_state>(qp.core().state());
    attr.sq_draining = qp.core().is_draining() ? 1 : 0;
  }
  attr.cur_qp_state = attr.qp_state;
  attr.cap = qp.init.cap;
  qp.base()->state = attr.qp_state;
  init = qp.init;
  return 0;
}

}  // namespace

int modify(DeviceQp& qp, const ibv_qp_attr& attr, uint32_t named) {
  const uint32_t mask = own_attributes(qp.type, named);
  std::lock_guard guard(qp.shared->modify_mutex);
  ib::Route route;
  if (const int error = validate_transition(qp, state_of(qp), attr, mask); error != 0) return error;
  if (const int error = validate_values(attr, mask, route); error != 0) return error;
  assert((mask & ~kKnownMask) == 0);
  const Status s = qp.shared->nic_qp->modify(core_attributes(attr, route), mask);
  if (!s.ok())
    return refuse(errno_of(s), "%s: the software NIC: %s", kModifyCall, describe(s.error()));
  const bool new_state = (mask & IBV_QP_STATE) != 0;
  if (new_state && attr.qp_state == IBV_QPS_RESET) {
    qp.shared->attributes = {};
  } else {
    remember(qp.shared->attributes, attr, mask);
  }
  assert(qp.shared->attributes.rq_psn <= k24Bits && qp.shared->attributes.sq_psn <= k24Bits);
  if (new_state) qp.base()->state = attr.qp_state;
  return 0;
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int attr_mask) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_modify_qp, "IBVERBS_1.1", qp, attr,
                   attr_mask);
  return guarded("ibv_modify_qp", life_of(qp),
                 [&] { return modify(qp_of(qp), *attr, static_cast<uint32_t>(attr_mask)); });
}

APERTURE_VERB int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int attr_mask,
                               ibv_qp_init_attr* init_attr) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_query_qp, "IBVERBS_1.1", qp, attr,
                   attr_mask, init_attr);
  return guarded("ibv_query_qp", life_of(qp), [&] { return query(qp_of(qp), *attr, *init_attr); });
}
