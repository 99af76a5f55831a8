// Multicast groups: ibv_attach_mcast(3).
#include "verbs/qp.hpp"
#include "verbs/real.hpp"

using namespace aperture::verbs;

APERTURE_VERB int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  APERTURE_REAL(ibv_attach_mcast, "IBVERBS_1.1");
  if (!is_ours(qp->context)) return real.call_or(EOPNOTSUPP, qp, gid, lid);
  return APERTURE_REFUSE(EOPNOTSUPP, "ibv_attach_mcast: multicast is not to be had");
}

APERTURE_VERB int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  APERTURE_REAL(ibv_detach_mcast, "IBVERBS_1.1");
  if (!is_ours(qp->context)) return real.call_or(EOPNOTSUPP, qp, gid, lid);
  return APERTURE_REFUSE(EOPNOTSUPP, "ibv_detach_mcast: multicast is not to be had");
}
