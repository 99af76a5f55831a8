// The GID and P_Key tables: ibv_query_gid(3), ibv_query_gid_ex(3), ibv_query_gid_table(3),
// ibv_query_pkey(3), ibv_get_pkey_index(3).
#include "verbs/gids.hpp"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "nic/host_identity.hpp"
#include "verbs/device.hpp"
#include "verbs/entry.hpp"
#include "verbs/path_table.hpp"
#include "verbs/real.hpp"

namespace aperture::verbs {

uint32_t gid_count() noexcept {
  return static_cast<uint32_t>(nic::host_addresses().size());
}

ibv_gid gid_at(uint32_t index) noexcept {
  assert(index < gid_count());
  ibv_gid gid;
  std::memcpy(gid.raw, nic::host_addresses()[index].ip.data(), sizeof gid.raw);
  return gid;
}

Address address_of(const ibv_gid& gid) noexcept {
  Address address;
  std::memcpy(address.ip.data(), gid.raw, sizeof gid.raw);
  return address;
}

namespace {

bool is_gid(uint32_t port, int64_t index) noexcept {
  return port == kPort && index >= 0 && index < int64_t{gid_count()};
}

ibv_gid_entry entry_at(uint32_t index) noexcept {
  ibv_gid_entry entry{};
  entry.gid = gid_at(index);
  entry.gid_index = index;
  entry.port_num = kPort;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  // 0: no interface has it now
  entry.ndev_ifindex = ::if_nametoindex(interface_of(nic::host_addresses()[index]).c_str());
  return entry;
}

// As much of the entry as the caller's struct has, of whatever version that is.
void put_entry(void* to, size_t entry_size, const ibv_gid_entry& entry) noexcept {
  std::memset(to, 0, entry_size);
  std::memcpy(to, &entry, std::min(entry_size, sizeof entry));
}

int refuse_index(const char* call, uint32_t port, int64_t index) noexcept {
  APERTURE_WARN("%s: there is no index %lld of port %u; the device has port 1 with %u GIDs", call,
                static_cast<long long>(index), port, gid_count());
  errno = EINVAL;
  return -1;
}

}  // namespace

}  // namespace aperture::verbs

using namespace aperture::verbs;

APERTURE_VERB int ibv_query_gid(ibv_context* context, uint8_t port_num, int index, ibv_gid* gid) {
  APERTURE_FORWARD(is_ours(context), -1, ibv_query_gid, "IBVERBS_1.1", context, port_num, index,
                   gid);
  if (!is_gid(port_num, index)) return refuse_index("ibv_query_gid", port_num, index);
  *gid = gid_at(static_cast<uint32_t>(index));
  return 0;
}

APERTURE_VERB int _ibv_query_gid_ex(ibv_context* context, uint32_t port_num, uint32_t gid_index,
                                    ibv_gid_entry* entry, uint32_t flags, size_t entry_size) {
  APERTURE_REAL(_ibv_query_gid_ex, "IBVERBS_1.11");
  if (!is_ours(context)) {
    return real.call_or(EOPNOTSUPP, context, port_num, gid_index, entry, flags, entry_size);
  }
  if (flags != 0) return EOPNOTSUPP;
  if (port_num != kPort) return EINVAL;
  if (!is_gid(port_num, gid_index)) return ENODATA;
  assert(gid_index < gid_count());
  put_entry(entry, entry_size, entry_at(gid_index));
  return 0;
}

APERTURE_VERB ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries,
                                           size_t max_entries, uint32_t flags, size_t entry_size) {
  APERTURE_REAL(_ibv_query_gid_table, "IBVERBS_1.11");
  if (!is_ours(context)) {
    return real.call_or(ssize_t{-EOPNOTSUPP}, context, entries, max_entries, flags, entry_size);
  }
  if (flags != 0) return -EOPNOTSUPP;
  if (max_entries < gid_count()) return -EINVAL;
  auto* to = reinterpret_cast<char*>(entries);
  for (uint32_t i = 0; i < gid_count(); ++i, to += entry_size) {
    put_entry(to, entry_size, entry_at(i));
  }
  return gid_count();
}

APERTURE_VERB int ibv_query_pkey(ibv_context* context, uint8_t port_num, int index, __be16* pkey) {
  APERTURE_FORWARD(is_ours(context), -1, ibv_query_pkey, "IBVERBS_1.1", context, port_num, index,
                   pkey);
  if (port_num != kPort || index != 0) {
    APERTURE_WARN("ibv_query_pkey: port %u has no P_Key %d; port 1 has one, index 0", port_num,
                  index);
    errno = EINVAL;
    return -1;
  }
  *pkey = htons(kPkey);
  return 0;
}

APERTURE_VERB int ibv_get_pkey_index(ibv_context* context, uint8_t port_num, __be16 pkey) {
  APERTURE_FORWARD(is_ours(context), -1, ibv_get_pkey_index, "IBVERBS_1.5", context, port_num,
                   pkey);
  if (port_num == kPort && pkey == htons(kPkey)) return 0;
  errno = EINVAL;
  return -1;
}

// --- private to rdma-core: how its tools ask for a GID's type ---
// enum ibv_gid_type_sysfs: 0 is RoCE v1 or InfiniBand, 1 is RoCE v2. One function under the private
// node of each release.
extern "C" {
int ibv_query_gid_type(ibv_context* context, uint8_t port_num, unsigned int index, int* type);

int gid_type(ibv_context* context, uint8_t port_num, unsigned int index, int* type) {
  APERTURE_FORWARD(is_ours(context), -1, ibv_query_gid_type, "IBVERBS_PRIVATE_34", context,
                   port_num, index, type);
  if (!is_gid(port_num, index)) return refuse_index("ibv_query_gid_type", port_num, index);
  *type = 1;
  return 0;
}

#define APERTURE_IN_NODE(node, at)                                            \
  [[gnu::alias("gid_type"), gnu::visibility("default")]] int gid_type_##node( \
      ibv_context* context, uint8_t port_num, unsigned int index, int* type); \
  __asm__(".symver gid_type_" #node ", ibv_query_gid_type" at "IBVERBS_PRIVATE_" #node ", remove")
APERTURE_IN_NODE(34, "@@");
APERTURE_IN_NODE(57, "@");
APERTURE_IN_NODE(59, "@");
APERTURE_IN_NODE(64, "@");
APERTURE_IN_NODE(65, "@");
#undef APERTURE_IN_NODE
}
