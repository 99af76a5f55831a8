// Multicast groups of datagram endpoints: fi_join, fi_close and fi_mc_addr. man 3 fi_cm.
//
// A group is an IP multicast address and a port, as the sockaddr says. Joining is over when the
// call returns; FI_JOIN_COMPLETE is reported all the same, and a failure is the answer of the call.
#include "provider/multicast.hpp"

#include <cassert>

#include "nic/datagram_endpoint.hpp"
#include "provider/addressing.hpp"
#include "provider/errors.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

namespace {

struct Group : Joined {
  EpBody* body = nullptr;
};

int close_group(fid* fid) noexcept {
  return guarded_close("fi_close(mc)", fid, [&]() -> int {
    auto& group = object_of<Group>(fid);
    EpBody& body = *group.body;
    assert(body.datagrams != nullptr && body.eq != nullptr);
    body.datagrams->groups().leave(group.fid.fi_addr);
    body.eq->forget(&group.fid.fid);
    body.multicasts.drop();
    delete &group;
    return 0;
  });
}

int bind_group(fid*, struct fid*, uint64_t) noexcept {
  return refuse(-FI_EINVAL, "fi_mc: nothing is bound to a multicast group");
}

fi_ops g_multicast_fid_ops = fid_ops<"mc">(close_group, bind_group, refuse_control<"mc">);

// Whether that endpoint may join now, and as what.
int check_endpoint(const EpBody& body, uint64_t flags, nic::DatagramGroups::Membership& as) {
  if ((body.tx_caps & FI_MULTICAST) == 0)
    return refuse(-FI_EOPNOTSUPP,
                  "fi_join: the endpoint was opened without FI_MULTICAST; ask for it in "
                  "hints->caps, with ep_attr->type FI_EP_DGRAM");
  if (body.eq == nullptr)
    return refuse(-FI_ENOEQ,
                  "fi_join: no event queue is bound, and FI_JOIN_COMPLETE is reported there; bind "
                  "one with fi_ep_bind");
  if (body.datagrams == nullptr)
    return refuse(-FI_EOPBADSTATE, "fi_join: the endpoint is not enabled; call fi_enable first");
  const bool may_send = (body.tx_caps & FI_SEND) != 0, may_recv = (body.rx_caps & FI_RECV) != 0;
  if (((flags & FI_SEND) != 0 && !may_send) || ((flags & FI_RECV) != 0 && !may_recv))
    return refuse(-FI_EOPNOTSUPP,
                  "fi_join: to join with %s, the endpoint has to be opened with it; ask for it in "
                  "hints->caps",
                  (flags & FI_SEND) != 0 && !may_send ? "FI_SEND" : "FI_RECV");
  const bool either = (flags & (FI_SEND | FI_RECV)) == 0;
  as = {.sends = may_send && (either || (flags & FI_SEND) != 0),
        .receives = may_recv && (either || (flags & FI_RECV) != 0)};
  return 0;
}

int check_group(const EpBody& body, const void* addr, Address& group) {
  const size_t bytes = addr != nullptr ? address_bytes(body.domain->addr_format, addr) : 0;
  Result<Address> at = bytes != 0 ? Address::from_sockaddr(addr, bytes) : Errc::invalid;
  if (!at || !format_fits(body.domain->addr_format, *at))
    return refuse(-FI_EINVAL, "fi_join: addr is no sockaddr of the endpoint's address format");
  if (!wire::is_group(*at))
    return refuse(-FI_EINVAL, "fi_join: %s is no multicast address; 224.0.0.0/4 and ff00::/8 are",
                  at->text().c_str());
  group = *at;
  return 0;
}

int join_group(fid_ep* fid, const void* addr, uint64_t flags, fid_mc** mc, void* context) {
  EpBody& body = *object_of<Ep>(fid).body;
  if (mc == nullptr) return refuse(-FI_EINVAL, "fi_join: mc is NULL");
  if ((flags & ~(FI_SEND | FI_RECV)) != 0)
    return refuse(-FI_EBADFLAGS,
                  "fi_join: flags 0x%llx; FI_SEND and FI_RECV restrict a multicast group",
                  static_cast<unsigned long long>(flags));
  nic::DatagramGroups::Membership as;
  if (const int rc = check_endpoint(body, flags, as); rc != 0) return rc;
  Address at;
  if (const int rc = check_group(body, addr, at); rc != 0) return rc;
  auto group = std::make_unique<Group>();
  group->domain = body.domain;
  group->body = &body;
  group->fid.fid = {FI_CLASS_MC, context, &g_multicast_fid_ops};
  Result<uint64_t> joined = body.datagrams->groups().join(at, as);
  if (!joined)
    return refuse(fi_code(joined.error()), "fi_join: the group %s cannot be joined from %s: %s",
                  at.text().c_str(), body.local.text().c_str(), describe(joined.error()));
  group->fid.fi_addr = *joined;
  // all is done before the event: whoever reads it may close the group, and the endpoint
  fid_mc* const before = *mc;
  Group* const made = group.release();
  body.multicasts.add();
  *mc = &made->fid;
  try {
    body.eq->report(FI_JOIN_COMPLETE, &made->fid.fid, context, 0);
  } catch (...) {
    *mc = before;
    body.multicasts.drop();
    body.datagrams->groups().leave(*joined);
    delete made;
    throw;
  }
  return 0;
}

}  // namespace

int join_multicast(fid_ep* ep, const void* addr, uint64_t flags, fid_mc** mc,
                   void* context) noexcept {
  return guarded("fi_join", ep, [&] { return join_group(ep, addr, flags, mc, context); });
}

}  // namespace aperture::provider
