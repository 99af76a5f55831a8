// What QUERY_ROUTE, QUERY and INIT_QP_ATTR answer: addresses, GIDs, the path, and the attributes
// that bring a queue pair up. A RoCE v2 device with one port; rdma/rdma_user_cm.h,
// rdma/ib_user_verbs.h; ibv_modify_qp(3) for the attributes of each transition.
#include <endian.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "nic/host_identity.hpp"
#include "verbs/device.hpp"
#include "verbs/newer.hpp"
#include "verbs/rdma_cm_ids.hpp"

namespace aperture::verbs::rdma_cm {

namespace {

constexpr uint8_t kHopLimit = 64;
constexpr uint8_t kPathMtu = IBV_MTU_4096;
constexpr uint8_t kRate = IBV_RATE_100_GBPS;
constexpr uint8_t kPacketLifeTime = 16;  // 4.096 us * 2^16
constexpr uint8_t kAckTimeout = kPacketLifeTime + 1;
constexpr uint8_t kExactly = 2;  // selector of a path record
constexpr uint16_t kPkey = 0xffff;

uint64_t guid_word() noexcept {
  uint64_t word;
  std::memcpy(&word, nic::node_guid().data(), sizeof word);
  return word;
}

template <typename Out>
uint16_t fill_sockaddr(const std::optional<Address>& a, Out& out) noexcept {
  static_assert(sizeof(Out) >= sizeof(sockaddr_in6));
  if (!a) return 0;
  sockaddr_storage sa;
  const socklen_t len = a->to_sockaddr(sa);
  std::memcpy(&out, &sa, len);
  return static_cast<uint16_t>(len);
}

void fill_gid(const std::optional<Address>& a, uint8_t (&out)[16]) noexcept {
  if (a) std::copy(a->ip.begin(), a->ip.end(), out);
}

// struct sockaddr_ib of rdma/ib.h, which not every librdmacm-dev installs.
struct SockaddrIb {
  uint16_t family;
  uint16_t pkey;
  uint32_t flow_info;
  uint8_t gid[16];
  uint64_t service_id;
  uint64_t service_id_mask;
  uint64_t scope_id;
};
static_assert(sizeof(SockaddrIb) == 48);

void fill_sockaddr_ib(const AppId& app, const std::optional<Address>& a,
                      __kernel_sockaddr_storage& out) noexcept {
  SockaddrIb ib{};
  ib.family = kAfIb;
  ib.pkey = app.id->binding().has_device() ? htobe16(kPkey) : 0;
  fill_gid(a, ib.gid);
  const uint64_t service = uint64_t{app.port_space} << 16 | (a ? a->port : 0u);
  ib.service_id = htobe64(service);
  std::memcpy(&out, &ib, sizeof ib);
}

// A PathRecord as management datagrams carry it. IBTA volume 1, 15.2.5.16.
struct PackedPath {
  uint64_t service_id;
  uint8_t dgid[16];
  uint8_t sgid[16];
  uint16_t dlid;
  uint16_t slid;
  uint32_t flow_label_hop_limit;
  uint8_t traffic_class;
  uint8_t reversible_count;
  uint16_t pkey;
  uint16_t qos_class_sl;
  uint8_t mtu;
  uint8_t rate;
  uint8_t packet_life_time;
  uint8_t preference;
  uint8_t reserved[6];
};
static_assert(sizeof(PackedPath) == 64);

bool is_connected_kind(const AppId& app) noexcept {
  return !app.id->is_datagram();
}

// The state of a connection whose queue pair's attributes are known by now.
bool is_connecting(cm::State s) noexcept {
  switch (s) {
    case cm::State::req_sent:
    case cm::State::req_received:
    case cm::State::abandoned:
    case cm::State::rep_sent:
    case cm::State::rep_received:
    case cm::State::established: return true;
    default: return false;
  }
}

void init_attr(const AppId& app, ib_uverbs_qp_attr& out) noexcept {
  out.qp_attr_mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  out.port_num = kPortNumber;
  if (!is_connected_kind(app)) {
    out.qp_attr_mask |= IBV_QP_QKEY;
    out.qkey = kUdpQkey;
    return;
  }
  out.qp_attr_mask |= IBV_QP_ACCESS_FLAGS;
  if (!is_connecting(app.id->state())) return;
  out.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (app.id->agreed().responder_resources != 0) {
    // and flushes, as the kernel allows them where the device has them
    out.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | kAccessFlushes;
  }
}

void rtr_attr(const AppId& app, ib_uverbs_qp_attr& out) noexcept {
  const cm::Agreed& agreed = app.id->agreed();
  out.qp_attr_mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  const cm::Binding& at = app.id->binding();
  fill_ah(*at.local(), *at.remote(), out.ah_attr);
  out.path_mtu = kPathMtu;
  out.dest_qp_num = agreed.remote_qpn;
  out.rq_psn = agreed.rq_psn;
  out.max_dest_rd_atomic = agreed.responder_resources;
}

void rts_attr(const AppId& app, ib_uverbs_qp_attr& out) noexcept {
  const cm::Agreed& agreed = app.id->agreed();
  out.qp_attr_mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT;
  out.sq_psn = agreed.sq_psn;
  out.retry_cnt = agreed.retry_count;
  out.rnr_retry = agreed.rnr_retry_count;
  out.max_rd_atomic = agreed.initiator_depth;
  out.timeout = app.ack_timeout_set ? app.ack_timeout : kAckTimeout;
}

}  // namespace

uint8_t sgid_index_of(const Address& local) noexcept {
  const auto& table = nic::host_addresses();
  const auto at =
      std::find_if(table.begin(), table.end(), [&](const Address& a) { return a.ip == local.ip; });
  return at == table.end() ? 0 : static_cast<uint8_t>(at - table.begin());
}

void fill_ah(const Address& local, const Address& remote, ib_uverbs_ah_attr& out) noexcept {
  std::copy(remote.ip.begin(), remote.ip.end(), out.grh.dgid);
  out.grh.sgid_index = sgid_index_of(local);
  out.grh.hop_limit = kHopLimit;
  out.is_global = 1;
  out.port_num = kPortNumber;
}

int init_qp_attr(const AppId& app, uint32_t qp_state, ib_uverbs_qp_attr& out) noexcept {
  if (!app.id->binding().has_device()) return EINVAL;
  const cm::State state = app.id->state();
  const bool known = is_connecting(state) && state != cm::State::req_sent;
  out.qp_state = qp_state;
  switch (qp_state) {
    case IBV_QPS_INIT: init_attr(app, out); return 0;
    case IBV_QPS_RTR:
      if (is_connected_kind(app)) {
        if (!known) return EINVAL;
        rtr_attr(app, out);
        return 0;
      }
      break;
    case IBV_QPS_RTS:
      if (is_connected_kind(app)) {
        if (!known) return EINVAL;
        rts_attr(app, out);
        return 0;
      }
      break;
    default:
      if (is_connected_kind(app)) return EINVAL;
      break;
  }
  init_attr(app, out);  // of a datagram queue pair, whichever state it is asked for
  return 0;
}

void query_route(const AppId& app, rdma_ucm_query_route_resp& out) noexcept {
  const cm::Binding& at = app.id->binding();
  fill_sockaddr(at.local(), out.src_addr);
  fill_sockaddr(at.remote(), out.dst_addr);
  out.ibdev_index = static_cast<uint32_t>(index_of_device(device_in_list()));
  if (!at.has_device()) return;
  out.node_guid = guid_word();
  out.port_num = kPortNumber;
  ib_user_path_rec& path = out.ib_route[0];
  fill_gid(at.local(), path.sgid);
  fill_gid(at.remote(), path.dgid);
  path.pkey = htobe16(kPkey);
  if (!at.has_route()) return;
  out.num_paths = 1;
  path.reversible = 1;
  path.mtu = kPathMtu;
  path.hop_limit = kHopLimit;
  path.traffic_class = app.tos;
  path.numb_path = 1;
  path.mtu_selector = kExactly;
  path.rate_selector = kExactly;
  path.rate = kRate;
  path.packet_life_time_selector = kExactly;
  path.packet_life_time = kPacketLifeTime;
}

void query_addr(const AppId& app, rdma_ucm_query_addr_resp& out) noexcept {
  const cm::Binding& at = app.id->binding();
  out.src_size = fill_sockaddr(at.local(), out.src_addr);
  out.dst_size = fill_sockaddr(at.remote(), out.dst_addr);
  out.ibdev_index = static_cast<uint32_t>(index_of_device(device_in_list()));
  if (!at.has_device()) return;
  out.node_guid = guid_word();
  out.port_num = kPortNumber;
  out.pkey = htobe16(kPkey);
}

void query_gid(const AppId& app, rdma_ucm_query_addr_resp& out) noexcept {
  query_addr(app, out);
  fill_sockaddr_ib(app, app.id->binding().local(), out.src_addr);
  fill_sockaddr_ib(app, app.id->binding().remote(), out.dst_addr);
  out.src_size = out.dst_size = sizeof(SockaddrIb);
}

bool query_path(const AppId& app, ib_path_rec_data& out) noexcept {
  const cm::Binding& at = app.id->binding();
  if (!at.has_device() || !at.has_route()) return false;
  PackedPath path{};
  fill_gid(at.remote(), path.dgid);
  fill_gid(at.local(), path.sgid);
  path.flow_label_hop_limit = htobe32(kHopLimit);
  path.traffic_class = app.tos;
  path.reversible_count = 0x80 | 1;
  path.pkey = htobe16(kPkey);
  path.mtu = kExactly << 6 | kPathMtu;
  path.rate = static_cast<uint8_t>(kExactly << 6 | kRate);
  path.packet_life_time = kExactly << 6 | kPacketLifeTime;
  out.flags = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
  static_assert(sizeof out.path_rec == sizeof path);
  std::memcpy(out.path_rec, &path, sizeof path);
  return true;
}

}  // namespace aperture::verbs::rdma_cm
