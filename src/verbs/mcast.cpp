// Multicast groups: ibv_attach_mcast(3).
//
// The LID is not looked at: the link layer is Ethernet. A group is joined at every interface, since
// nobody says which; attaching twice is attaching once.
#include <algorithm>

#include "verbs/errors.hpp"
#include "verbs/gids.hpp"
#include "verbs/qp.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

int attach(DeviceQp& qp, const ibv_gid& gid) {
  if (qp.type != ib::QpType::ud)
    return refuse(EINVAL, "ibv_attach_mcast: multicast is for queue pairs of type UD");
  const Address group = address_of(gid);
  const std::lock_guard guard(qp.shared->modify_mutex);
  qp.groups.reserve(qp.groups.size() + 1);  // before anything is changed
  const Status s = qp.shared->nic_qp->attach_group(group, Address{});
  if (!s)
    return refuse(errno_of(s), "ibv_attach_mcast: %s: %s", group.print().c_str(),
                  s.error() == Errc::invalid ? "it is no multicast GID" : describe(s.error()));
  const bool known = std::find(qp.groups.begin(), qp.groups.end(), group) != qp.groups.end();
  if (!known) qp.groups.push_back(group);
  return 0;
}

int detach(DeviceQp& qp, const ibv_gid& gid) {
  const Address group = address_of(gid);
  const std::lock_guard guard(qp.shared->modify_mutex);
  const auto at = std::find(qp.groups.begin(), qp.groups.end(), group);
  if (at == qp.groups.end())
    return refuse(EINVAL, "ibv_detach_mcast: the queue pair is not attached to %s",
                  group.print().c_str());
  const Status s = qp.shared->nic_qp->detach_group(group);
  if (!s)
    return refuse(errno_of(s), "ibv_detach_mcast: %s: %s", group.print().c_str(),
                  describe(s.error()));
  qp.groups.erase(at);
  return 0;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_attach_mcast, "IBVERBS_1.1", qp, gid, lid);
  return guarded("ibv_attach_mcast", life_of(qp), [&] { return attach(qp_of(qp), *gid); });
}

APERTURE_VERB int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, uint16_t lid) {
  APERTURE_FORWARD(is_ours(qp->context), EOPNOTSUPP, ibv_detach_mcast, "IBVERBS_1.1", qp, gid, lid);
  return guarded("ibv_detach_mcast", life_of(qp), [&] { return detach(qp_of(qp), *gid); });
}
