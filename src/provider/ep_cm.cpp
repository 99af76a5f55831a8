// Names of endpoints: fi_ops_cm. man 3 fi_cm. Connections are not for FI_EP_RDM
// and FI_EP_DGRAM.
#include <rdma/fi_cm.h>

#include "provider/addressing.hpp"
#include "provider/collective.hpp"
#include "provider/ep.hpp"
#include "provider/multicast.hpp"
#include "provider/stubs.hpp"

namespace aperture::provider {

int set_ep_name(fid_t fid, void* addr, size_t len) noexcept {
  auto& body = *object_of<Ep>(fid).body;
  if (body.request != nullptr)
    return refuse(-FI_EOPBADSTATE,
                  "fi_setname: an endpoint that accepts a request has the address that it came to");
  if (body.context_of != nullptr)
    return refuse(-FI_EOPBADSTATE,
                  "fi_setname: a context has the address of its scalable endpoint; set that");
  if (body.core || (body.scalable && body.scalable->port))
    return refuse(
        -FI_EOPBADSTATE,
        "fi_setname: the endpoint is enabled and has its address; set it before fi_enable");
  return take_own_address(addr, len, body.domain->addr_format, body.local);
}

int get_ep_name(fid_t fid, void* addr, size_t* len) noexcept {
  const auto& body = *object_of<Ep>(fid).body;
  if (const int rc = check_address_room("fi_getname", addr, len); rc != 0) return rc;
  if (!body.core && body.local.port == 0)
    return refuse(-FI_EOPBADSTATE,
                  "fi_getname: the endpoint has no port before fi_enable; enable it first");
  return write_address(body.local, addr, len);
}

namespace {

// Which kind of group it is, the flags say.
int join(fid_ep* ep, const void* addr, uint64_t flags, fid_mc** mc, void* context) noexcept {
  if ((flags & FI_COLLECTIVE) != 0)
    return join_collective(ep, static_cast<const fi_collective_addr*>(addr), flags, mc, context);
  return join_multicast(ep, addr, flags, mc, context);
}

}  // namespace

fi_ops_cm g_ep_cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = set_ep_name,
    .getname = get_ep_name,
    .getpeer =
        NotOffered<"fi_getpeer: a connectionless endpoint has no single peer", -FI_EOPNOTSUPP>{},
    .connect = NotOffered<"fi_connect: the endpoint needs no connection; just send">{},
    .listen = NotOffered<"fi_listen: only a passive endpoint listens; open one with "
                         "fi_passive_ep">{},
    .accept = NotOffered<"fi_accept: the endpoint needs no connection; just send">{},
    .reject = NotOffered<"fi_reject: pass the passive endpoint of the FI_CONNREQ">{},
    .shutdown = NotOffered<"fi_shutdown: the endpoint has no connection; close it">{},
    .join = join,
};

}  // namespace aperture::provider
