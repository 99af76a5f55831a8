// What the device and its port can do: ibv_query_device(3), ibv_query_device_ex(3),
// ibv_query_port(3), ibv_query_rt_values_ex(3).
#include "verbs/query.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/clock.hpp"
#include "ib/words.hpp"
#include "verbs/context.hpp"
#include "verbs/dm.hpp"
#include "verbs/gids.hpp"
#include "verbs/mr.hpp"
#include "verbs/newer.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

namespace {

constexpr int kMaxQps = 16384;
constexpr int kMaxCqs = 65536;
constexpr int kMaxAhs = 1 << 24;
constexpr uint32_t kVendorId = 0x0a9e;  // no IEEE company has it: it tells a software NIC apart
constexpr uint8_t kWidth4x = 2;
constexpr uint8_t kSpeedEdr = 32;
constexpr uint8_t kPhysLinkUp = 5;

uint32_t capabilities(const Context& context) noexcept {
  const uint32_t window2 = context.windows == WindowType2::a ? IBV_DEVICE_MEM_WINDOW_TYPE_2A
                                                             : IBV_DEVICE_MEM_WINDOW_TYPE_2B;
  return IBV_DEVICE_UD_AV_PORT_ENFORCE | IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID |
         IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW |
         IBV_DEVICE_XRC | IBV_DEVICE_MEM_MGT_EXTENSIONS | window2;
}

void fill(const Context& context, ibv_device_attr& attr) noexcept {
  attr = {};
  std::snprintf(attr.fw_ver, sizeof attr.fw_ver, "%s", APERTURE_VERSION);
  attr.node_guid = ibv_get_device_guid(our_device());
  attr.sys_image_guid = attr.node_guid;
  attr.max_mr_size = ~uint64_t{0};
  attr.page_size_cap = ~(static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) - 1);
  attr.vendor_id = kVendorId;
  attr.max_qp = kMaxQps;
  attr.max_qp_wr = ib::kMaxQueueWrs;
  attr.device_cap_flags = capabilities(context);
  attr.max_sge = ib::kMaxSge;
  attr.max_sge_rd = ib::kMaxSge;
  attr.max_cq = kMaxCqs;
  attr.max_cqe = static_cast<int>(kMaxCqe);
  attr.max_mr = protect::KeyTable::kDefaultRegions;
  attr.max_pd = 1 << 24;
  attr.max_qp_rd_atom = ib::kMaxReadsInFlight;
  attr.max_res_rd_atom = static_cast<int>(ib::kMaxReadsInFlight) * kMaxQps;
  attr.max_qp_init_rd_atom = ib::kMaxReadsInFlight;
  attr.atomic_cap = IBV_ATOMIC_GLOB;
  attr.max_mw = protect::KeyTable::kDefaultRegions;
  attr.max_mcast_grp = 8192;
  attr.max_mcast_qp_attach = kMaxQps;
  attr.max_total_mcast_qp_attach = 1 << 20;
  attr.max_ah = kMaxAhs;
  attr.max_srq = kMaxCqs;
  attr.max_srq_wr = ib::kMaxQueueWrs;
  attr.max_srq_sge = ib::kMaxSge;
  attr.max_pkeys = 1;
  attr.local_ca_ack_delay = 15;
  attr.phys_port_cnt = 1;
}

void fill(const Context& context, ibv_device_attr_ex& attr) noexcept {
  attr = {};
  fill(context, attr.orig_attr);
  attr.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  const uint32_t two_sided = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV;
  const uint32_t all = two_sided | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
                       IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV | kOdpFlush |
                       kOdpAtomicWrite;
  attr.odp_caps.per_transport_caps.rc_odp_caps = all;
  attr.odp_caps.per_transport_caps.uc_odp_caps = two_sided | IBV_ODP_SUPPORT_WRITE;
  attr.odp_caps.per_transport_caps.ud_odp_caps = two_sided;
  attr.xrc_odp_caps = all;
  attr.completion_timestamp_mask = ~uint64_t{0};
  attr.hca_core_clock = ticks_from_ns(1'000'000);  // ticks in a millisecond: kHz
  attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags | kDeviceFlushGlobal |
                             kDeviceFlushPersistent | kDeviceAtomicWrite;
  attr.max_dm_size = kMaxDmBytes;
  attr.phys_port_cnt_ex = 1;
}

void fill(ibv_port_attr& attr) noexcept {
  attr = {};
  attr.state = IBV_PORT_ACTIVE;
  attr.max_mtu = IBV_MTU_4096;
  attr.active_mtu = IBV_MTU_4096;
  attr.gid_tbl_len = static_cast<int>(gid_count());
  attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  attr.max_msg_sz = static_cast<uint32_t>(ib::kMaxMessageBytes);
  attr.pkey_tbl_len = 1;
  attr.max_vl_num = 1;
  attr.active_width = kWidth4x;
  attr.active_speed = kSpeedEdr;
  attr.phys_state = kPhysLinkUp;
  attr.link_layer = IBV_LINK_LAYER_ETHERNET;
}

int refuse_port(uint32_t port) noexcept {
  return refuse(EINVAL, "ibv_query_port: there is no port %u; the device has port 1", port);
}

}  // namespace

int query_port(ibv_context*, uint8_t port_num, ibv_port_attr* attr, size_t length) noexcept {
  if (port_num != kPort) return refuse_port(port_num);
  ibv_port_attr known;
  fill(known);
  std::memset(attr, 0, length);
  std::memcpy(attr, &known, std::min(length, sizeof known));
  return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t length) noexcept {
  if (input != nullptr && input->comp_mask != 0) return EINVAL;
  if (length < sizeof attr->orig_attr) return EINVAL;
  ibv_device_attr_ex known;
  fill(context_of(context), known);
  std::memset(attr, 0, length);
  std::memcpy(attr, &known, std::min(length, sizeof known));
  return 0;
}

int compat_query_port(ibv_context* context, uint8_t port_num,
                      _compat_ibv_port_attr* attr) noexcept {
  // the struct as it was before port_cap_flags2
  return query_port(context, port_num, reinterpret_cast<ibv_port_attr*>(attr),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

int compat_query_device(ibv_context* context, ibv_device_attr* attr) noexcept {
  fill(context_of(context), *attr);
  return 0;
}

int query_rt_values(ibv_context*, ibv_values_ex* values) noexcept {
  const uint32_t asked = values->comp_mask;
  values->comp_mask = 0;
  if ((asked & IBV_VALUES_MASK_RAW_CLOCK) != 0) {
    values->raw_clock.tv_sec = 0;
    values->raw_clock.tv_nsec = static_cast<long>(ticks());
    values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  }
  return 0;
}

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  APERTURE_FORWARD(is_ours(context), EOPNOTSUPP, ibv_query_device, "IBVERBS_1.1", context, attr);
  return compat_query_device(context, attr);
}

APERTURE_VERB int ibv_query_port(ibv_context* context, uint8_t port_num,
                                 _compat_ibv_port_attr* attr) {
  APERTURE_FORWARD(is_ours(context), EOPNOTSUPP, ibv_query_port, "IBVERBS_1.1", context, port_num,
                   attr);
  return compat_query_port(context, port_num, attr);
}

// In units of 100 Mbit/s; since rdma-core 62.
APERTURE_VERB int ibv_query_port_speed(ibv_context* context, uint32_t port_num, uint64_t* speed) {
  APERTURE_FORWARD(is_ours(context), EOPNOTSUPP, ibv_query_port_speed, "IBVERBS_1.16", context,
                   port_num, speed);
  return refuse(EOPNOTSUPP,
                "ibv_query_port_speed: a software NIC has no speed of its own; ibv_query_port "
                "tells what it passes for");
}
