// Making address handles: see ah.hpp. The global route header of a datagram over IPv4 has 20 unused
// bytes and the IPv4 header behind them (IBTA annex A17, "RoCEv2").
#include "verbs/ah.hpp"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/log.hpp"
#include "nic/host_identity.hpp"
#include "verbs/gids.hpp"
#include "verbs/real.hpp"
#include "wire/datagram.hpp"

namespace aperture::verbs {

namespace {

constexpr size_t kIpv4At = 20;        // of the IPv4 header in the 40 bytes
constexpr size_t kIpv4SourceAt = 32;  // of its addresses
constexpr size_t kIpv4TargetAt = 36;

ibv_gid mapped(const uint8_t* ipv4) noexcept {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  std::memcpy(&gid.raw[12], ipv4, 4);
  return gid;
}

// Where a datagram came from and went to, and of which class it was.
struct Ends {
  ibv_gid source;
  ibv_gid target;
  uint8_t traffic_class;
};

Ends ends_of(const ibv_grh& grh) noexcept {
  uint8_t bytes[sizeof grh];
  std::memcpy(bytes, &grh, sizeof grh);
  if (bytes[0] >> 4 != 6 && bytes[kIpv4At] >> 4 == 4) {
    return {mapped(&bytes[kIpv4SourceAt]), mapped(&bytes[kIpv4TargetAt]), bytes[kIpv4At + 1]};
  }
  return {grh.sgid, grh.dgid, static_cast<uint8_t>(bytes[0] << 4 | bytes[1] >> 4)};
}

// -1 if it is none of ours.
int index_of(const ibv_gid& gid) noexcept {
  for (uint32_t i = 0; i < gid_count(); ++i) {
    const ibv_gid known = gid_at(i);
    if (std::memcmp(known.raw, gid.raw, sizeof gid.raw) == 0) return static_cast<int>(i);
  }
  return -1;
}

int init_from_wc(uint8_t port_num, const ibv_wc& wc, const ibv_grh* grh, ibv_ah_attr& attr) {
  attr = {};
  attr.dlid = wc.slid;
  attr.sl = wc.sl;
  attr.src_path_bits = wc.dlid_path_bits;
  attr.port_num = port_num;
  if ((wc.wc_flags & IBV_WC_GRH) == 0) return 0;
  const Ends ends = ends_of(*grh);
  const int index = index_of(ends.target);
  if (index < 0)
    return refuse(EINVAL,
                  "ibv_init_ah_from_wc: the datagram was not sent to an address of this host");
  assert(static_cast<uint32_t>(index) < gid_count());
  attr.is_global = 1;
  attr.grh.dgid = ends.source;
  attr.grh.sgid_index = static_cast<uint8_t>(index);
  attr.grh.hop_limit = 0xff;
  attr.grh.traffic_class = ends.traffic_class;
  return 0;
}

// Its messages may arrive, and no answer ever would.
void warn_of_silence(const ib::Route& route) noexcept {
  const auto& ours = nic::host_addresses();
  const bool is_here = nic::is_loopback(route.remote) ||
                       std::any_of(ours.begin(), ours.end(),
                                   [&](const Address& a) { return a.ip == route.remote.ip; });
  if (is_here || wire::is_group(route.remote) || nic::serves_other_hosts(route.local)) return;
  APERTURE_WARN(
      "ibv_create_ah: %s is on another host, and GID %s serves this host alone: nothing that comes "
      "from there is taken; set FI_APERTURE_IFACE to the interface that leads there, and use its "
      "GID, which is then the first one",
      route.remote.print().c_str(), route.local.print().c_str());
}

}  // namespace

int resolve(const char* call, const ibv_ah_attr& attr, ib::Route& route) noexcept {
  if (attr.port_num != kPort)
    return refuse(EINVAL, "%s: port_num %u of the address; the device has port 1", call,
                  attr.port_num);
  if (attr.is_global == 0) {  // without a global route the other end is on this host
    route.local = route.remote = Address::v4(INADDR_LOOPBACK, 0);
    return 0;
  }
  if (attr.grh.sgid_index >= gid_count())
    return refuse(EINVAL, "%s: sgid_index %u; the port has %u GIDs", call, attr.grh.sgid_index,
                  gid_count());
  route.local = address_of(gid_at(attr.grh.sgid_index));
  route.remote = address_of(attr.grh.dgid);
  route.traffic_class = attr.grh.traffic_class;
  if (route.remote.is_any_ip())
    return refuse(EINVAL, "%s: a destination GID of zeros is no address", call);
  return 0;
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_create_ah, "IBVERBS_1.1", pd, attr);
  return guarded_new_base<Ah>("ibv_create_ah", life_of(pd), [&](Ah*& out) {
    Pd& ours = pd_of(pd);
    auto ah = std::make_unique<Ah>();
    if (attr->is_global == 0)
      return refuse(EINVAL,
                    "ibv_create_ah: the port is an Ethernet port, whose addresses are GIDs: set "
                    "is_global and grh.dgid");
    if (const int error = resolve("ibv_create_ah", *attr, ah->route); error != 0) return error;
    warn_of_silence(ah->route);
    ah->base.context = pd->context;
    ah->base.pd = pd;
    ah->base.handle = ours.context->next_handle();
    ah->use_pd = Use(ours.uses);
    assert(!ah->route.remote.is_any_ip() && ours.uses.count() != 0);
    out = ah.release();
    return 0;
  });
}

APERTURE_VERB int ibv_destroy_ah(ibv_ah* ah) {
  APERTURE_FORWARD(is_ours(ah->context), EOPNOTSUPP, ibv_destroy_ah, "IBVERBS_1.1", ah);
  return guarded_release("ibv_destroy_ah", life_of(ah), [&] {
    delete &object_of<Ah>(ah);
    return 0;
  });
}

APERTURE_VERB int ibv_init_ah_from_wc(ibv_context* context, uint8_t port_num, ibv_wc* wc,
                                      ibv_grh* grh, ibv_ah_attr* attr) {
  APERTURE_FORWARD(is_ours(context), -1, ibv_init_ah_from_wc, "IBVERBS_1.1", context, port_num, wc,
                   grh, attr);
  const int error = guarded("ibv_init_ah_from_wc", life_of(context),
                            [&] { return init_from_wc(port_num, *wc, grh, *attr); });
  if (error == 0) return 0;
  errno = error;
  return -1;
}

APERTURE_VERB ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh,
                                            uint8_t port_num) {
  APERTURE_FORWARD(is_ours(pd->context), nullptr, ibv_create_ah_from_wc, "IBVERBS_1.1", pd, wc, grh,
                   port_num);
  ibv_ah_attr attr;
  if (::ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr) != 0) return nullptr;
  return ::ibv_create_ah(pd, &attr);
}

APERTURE_VERB int ibv_resolve_eth_l2_from_gid(ibv_context* context, ibv_ah_attr* attr,
                                              uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t* vid) {
  APERTURE_FORWARD(is_ours(context), EOPNOTSUPP, ibv_resolve_eth_l2_from_gid, "IBVERBS_1.1",
                   context, attr, eth_mac, vid);
  return refuse(EOPNOTSUPP,
                "ibv_resolve_eth_l2_from_gid: a software NIC has no Ethernet addresses");
}
