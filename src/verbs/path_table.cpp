// Paths of ours and what stands behind them: see path_table.hpp.
#include "verbs/path_table.hpp"

#include <sys/sysmacros.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/interfaces.hpp"
#include "base/no_throw.hpp"
#include "nic/host_identity.hpp"

namespace aperture::verbs {

namespace {

using std::string_view;

constexpr string_view kRdmaCm = "/dev/infiniband/rdma_cm";
constexpr string_view kUverbs = "/dev/infiniband/uverbs-aperture0";
constexpr string_view kAbiVersion = "/sys/class/misc/rdma_cm/abi_version";
constexpr string_view kDevice = "/sys/class/infiniband/aperture0";

struct Fixed {
  string_view path;  // below kDevice
  string_view text;
};
constexpr Fixed kFixed[] = {
    {"/node_type", "1: CA\n"},
    {"/node_desc", "aperture0\n"},
    {"/hca_type", "aperture\n"},
    {"/fw_ver", "0.1.0\n"},
    {"/ports/1/link_layer", "Ethernet\n"},
    {"/ports/1/state", "4: ACTIVE\n"},
    {"/ports/1/phys_state", "5: LinkUp\n"},
    {"/ports/1/rate", "100 Gb/sec (4X EDR)\n"},
    {"/ports/1/lid", "0x0\n"},
    {"/ports/1/lid_mask_count", "0\n"},
    {"/ports/1/sm_lid", "0x0\n"},
    {"/ports/1/sm_sl", "0\n"},
    {"/ports/1/cap_mask", "0x04010000\n"},
    {"/ports/1/pkeys/0", "0xffff\n"},
    {"/device/numa_node", "-1\n"},
};
constexpr string_view kFolders[] = {"",
                                    "/ports",
                                    "/ports/1",
                                    "/ports/1/gids",
                                    "/ports/1/gid_attrs",
                                    "/ports/1/gid_attrs/types",
                                    "/ports/1/gid_attrs/ndevs",
                                    "/ports/1/pkeys",
                                    "/device"};
constexpr string_view kGids = "/ports/1/gids/";
constexpr string_view kTypes = "/ports/1/gid_attrs/types/";
constexpr string_view kNdevs = "/ports/1/gid_attrs/ndevs/";

bool starts(string_view text, string_view head) noexcept {
  return text.substr(0, head.size()) == head;
}

// The address with that index in decimal digits behind `head`; null: it is another path, there is
// no such index, or no memory for the list of addresses.
const Address* indexed(string_view path, string_view head) noexcept {
  if (!starts(path, head)) return nullptr;
  const string_view digits = path.substr(head.size());
  if (digits.empty() || digits.size() > 3) return nullptr;
  size_t index = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return nullptr;
    index = index * 10 + static_cast<size_t>(c - '0');
  }
  const Address* found = nullptr;
  [[maybe_unused]] const Status s = no_throw([&] {
    const auto& table = nic::host_addresses();
    if (index < table.size()) found = &table[index];
  });
  return found;
}

// "0000:0000:0000:0000:0000:ffff:7f00:0001"
std::string hex_groups(const uint8_t* bytes, size_t n) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < n; ++i) {
    if (i > 0 && i % 2 == 0) out += ':';
    out += kDigits[bytes[i] >> 4];
    out += kDigits[bytes[i] & 15];
  }
  return out + '\n';
}

// APERTURE_RDMA_CM=kernel: connections are managed by the kernel, for its own devices.
bool is_left_to_kernel() noexcept {
  const char* v = std::getenv("APERTURE_RDMA_CM");
  return v != nullptr && std::strcmp(v, "kernel") == 0;
}

bool is_guid(string_view below) noexcept {
  return below == "/node_guid" || below == "/sys_image_guid";
}

PathKind kind_below_device(string_view below) noexcept {
  for (const string_view folder : kFolders) {
    if (below == folder) return PathKind::folder;
  }
  for (const Fixed& f : kFixed) {
    if (below == f.path) return PathKind::file;
  }
  if (is_guid(below)) return PathKind::file;
  for (const string_view head : {kGids, kTypes, kNdevs}) {
    if (indexed(below, head) != nullptr) return PathKind::file;
  }
  return PathKind::foreign;
}

}  // namespace

PathKind kind_of_path(const char* path) noexcept {
  if (!may_be_ours(path)) return PathKind::foreign;
  const string_view text(path);
  if (text == kUverbs) return PathKind::device;
  if (text == kRdmaCm || text == kAbiVersion) {
    if (is_left_to_kernel()) return PathKind::foreign;
    return text == kRdmaCm ? PathKind::rdma_cm : PathKind::file;
  }
  if (!starts(text, kDevice)) return PathKind::foreign;
  const int saved = errno;
  const PathKind kind = kind_below_device(text.substr(kDevice.size()));
  errno = saved;
  return kind;
}

std::string interface_of(const Address& address) {
  std::string name;
  visit_interfaces([&](const ifaddrs& interface, const Address& a) {
    if (a.ip != address.ip) return false;
    name = interface.ifa_name;
    return true;
  });
  return name;
}

std::string text_of_path(const char* path) {
  const string_view text(path);
  if (text == kAbiVersion) return "4\n";
  const string_view below = text.substr(kDevice.size());
  for (const Fixed& f : kFixed) {
    if (below == f.path) return std::string(f.text);
  }
  if (is_guid(below)) return hex_groups(nic::node_guid().data(), nic::node_guid().size());
  if (const Address* a = indexed(below, kGids)) return hex_groups(a->ip.data(), a->ip.size());
  if (const Address* a = indexed(below, kNdevs)) return interface_of(*a) + '\n';
  return "RoCE v2\n";
}

void fill_stat(PathKind kind, struct stat& out) noexcept {
  std::memset(&out, 0, sizeof out);
  out.st_nlink = 1;
  out.st_blksize = 4096;
  switch (kind) {
    case PathKind::rdma_cm:
    case PathKind::device:
      // numbers that the kernel gives to no device: misc, and the first of uverbs
      out.st_mode = S_IFCHR | 0666;
      out.st_rdev = kind == PathKind::rdma_cm ? makedev(10, 255 + 4096) : makedev(231, 192 + 4096);
      return;
    case PathKind::folder: out.st_mode = S_IFDIR | 0755; return;
    case PathKind::file:
      out.st_mode = S_IFREG | 0444;
      out.st_size = 4096;  // as files of /sys have, whatever they hold
      return;
    case PathKind::foreign: return;
  }
}

}  // namespace aperture::verbs
