// Paths of ours and what stands behind them: see path_table.hpp. Documentation/ABI/stable/
// sysfs-class-infiniband of the kernel says what the files of a device hold.
#include "verbs/path_table.hpp"

#include <sys/sysmacros.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>
#include <string_view>

#include "base/interfaces.hpp"
#include "base/log.hpp"
#include "base/settings.hpp"
#include "nic/host_identity.hpp"

namespace aperture::verbs {

namespace {

using std::string;
using std::string_view;

constexpr string_view kNodes = "/dev/infiniband";
constexpr string_view kRdmaCm = "/dev/infiniband/rdma_cm";
constexpr string_view kUverbs = "/dev/infiniband/uverbs-aperture0";
constexpr string_view kRdmaCmClass = "/sys/class/misc/rdma_cm";
constexpr string_view kDevices = "/sys/devices";
constexpr string_view kClass = "/sys/class/infiniband";
constexpr string_view kVerbsClass = "/sys/class/infiniband_verbs";
constexpr string_view kVirtual = "/sys/devices/virtual/infiniband";
constexpr string_view kVerbsVirtual = "/sys/devices/virtual/infiniband_verbs";
constexpr string_view kVirtualNode = "/sys/devices/virtual/numa_node";
constexpr string_view kVerbsVersion = "/sys/class/infiniband_verbs/abi_version";
constexpr string_view kMadVersion = "/sys/class/infiniband_mad/abi_version";
constexpr string_view kOurs = "/aperture0";
constexpr string_view kOurVerbs = "/uverbs-aperture0";

// Whose other entries are the kernel's.
constexpr string_view kFolders[] = {kNodes, kClass, kVerbsClass, kVirtual, kVerbsVirtual};

struct Fixed {
  string_view path;  // below the device
  string_view text;
};
constexpr Fixed kFixed[] = {
    {"/node_type", "1: CA\n"},
    {"/node_desc", "aperture0\n"},
    {"/hca_type", "aperture\n"},
    {"/hw_rev", "0\n"},
    {"/board_id", "aperture\n"},
    {"/fw_ver", "0.1.0\n"},
    {"/uevent", "NAME=aperture0\n"},
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
    // as ibv_query_device() tells them
    {"/device/vendor", "0x0a9e\n"},
    {"/device/device", "0x0000\n"},
    {"/device/numa_node", "-1\n"},
};

// The folders of the kernel's that ours lie in.
constexpr string_view kDev = "/dev";
constexpr string_view kClasses = "/sys/class";
constexpr string_view kMisc = "/sys/class/misc";
constexpr string_view kVirtualDevices = "/sys/devices/virtual";
static_assert(kVirtualDevices.size() == kLongestFolderBeside);  // none is longer

thread_local int kernel_paths_alone = 0;

bool starts(string_view text, string_view head) noexcept {
  return text.substr(0, head.size()) == head;
}

// That path, or one below it.
bool is_at(string_view text, string_view head) noexcept {
  return starts(text, head) && (text.size() == head.size() || text[head.size()] == '/');
}

// The folder of a class itself, or our entry there.
bool is_of_class(string_view text, string_view folder, string_view entry) noexcept {
  if (!is_at(text, folder)) return false;
  const string_view below = text.substr(folder.size());
  return below.empty() || below == "/" || is_at(below, entry);
}

// A folder of the kernel's, if it is there at all, that is no link.
bool is_plain_folder(string_view path) noexcept {
  return std::find(std::begin(kFolders), std::end(kFolders), path) != std::end(kFolders);
}

// "0000:0000:0000:0000:0000:ffff:7f00:0001"
string hex_groups(const uint8_t* bytes, size_t n) {
  constexpr char kDigits[] = "0123456789abcdef";
  string out;
  for (size_t i = 0; i < n; ++i) {
    if (i > 0 && i % 2 == 0) out += ':';
    out += kDigits[bytes[i] >> 4];
    out += kDigits[bytes[i] & 15];
  }
  return out + '\n';
}

// APERTURE_RDMA_CM=kernel: connections are managed by the kernel, for its own devices.
bool is_left_to_kernel() noexcept {
  return setting_is("APERTURE_RDMA_CM", "kernel");
}

string joined(string_view a, string_view b) {
  return string(a).append(b);
}

void add_ports(const string& device, TreeContents& out) {
  const auto& table = nic::host_addresses();
  for (size_t i = 0; i < table.size(); ++i) {
    const string index = std::to_string(i);
    const string interface = interface_of(table[i]);
    out.files.emplace_back((device + "/ports/1/gids/").append(index),
                           hex_groups(table[i].ip.data(), table[i].ip.size()));
    out.files.emplace_back((device + "/ports/1/gid_attrs/types/").append(index), "RoCE v2\n");
    out.files.emplace_back((device + "/ports/1/gid_attrs/ndevs/").append(index), interface + '\n');
    if (interface.empty()) continue;
    out.links.emplace_back((device + "/device/net/").append(interface),
                           "/sys/class/net/" + interface);
  }
}

}  // namespace

bool may_lead_to_ours(const char* relative) noexcept {
  if (relative[0] == '.' && relative[1] == '.') return true;
  for (const char* name : {"infiniband", "aperture0", "rdma_cm", "numa_node"}) {
    if (std::strstr(relative, name) != nullptr) return true;
  }
  // from a folder of ours any path may lead to what the device has not, and `aperture explain`
  // names that; otherwise the kernel's answer is as good
  return relative[0] != 0 && log_level() >= LogLevel::warn;
}

bool clean_path(const char* path, char* out, size_t size) noexcept {
  size_t n = 0;
  for (const char* at = path; *at != 0;) {
    const string_view rest(at);
    const auto next_is = [&](string_view component) {
      return starts(rest, component) &&
             (rest.size() == component.size() || rest[component.size()] == '/');
    };
    char next = *at;
    if (starts(rest, "//")) {
      ++at;
      continue;
    }
    if (next_is("/..") && is_plain_folder({out, n})) {
      at += 3;
      while (out[--n] != '/') {
      }
      continue;
    }
    if (next_is("/.")) {
      at += 2;
      if (*at != 0) continue;
      next = '/';  // it said that a folder is meant
    } else {
      ++at;
    }
    if (n + 1 == size) return false;
    out[n++] = next;
  }
  assert(n < size);
  out[n] = 0;
  return true;
}

PathKind kind_of_path(const char* clean) noexcept {
  const string_view text(clean);
  if (text == kUverbs) return PathKind::device;
  if (text == kRdmaCm) return is_left_to_kernel() ? PathKind::foreign : PathKind::rdma_cm;
  if (is_at(text, kRdmaCmClass)) {
    return is_left_to_kernel() ? PathKind::foreign : PathKind::in_tree;
  }
  const bool is_dev = text == "/dev/infiniband" || text == "/dev/infiniband/";
  const bool ours =
      is_dev || is_of_class(text, kClass, kOurs) || is_of_class(text, kVerbsClass, kOurVerbs) ||
      text == kVerbsVersion || is_of_class(text, kVirtual, kOurs) ||
      is_of_class(text, kVerbsVirtual, kOurVerbs) || text == kVirtualNode || text == kMadVersion;
  return ours ? PathKind::in_tree : PathKind::foreign;
}

NamesBeside names_beside(string_view text) noexcept {
  if (text == kClasses || text == kVirtualDevices) return {"infiniband", "infiniband_verbs"};
  if (text == kDev) return {"infiniband", nullptr};
  if (text == kMisc) return {is_left_to_kernel() ? nullptr : "rdma_cm", nullptr};
  return {};
}

bool is_above_ours(const char* clean) noexcept {
  string_view text(clean);
  if (text.size() > 1 && text.back() == '/') text.remove_suffix(1);
  return text == "/sys" || text == kDevices || names_beside(text)[0] != nullptr;
}

string interface_of(const Address& address) {
  string name;
  visit_interfaces([&](const ifaddrs& interface, const Address& a) {
    if (a.ip != address.ip) return false;
    name = interface.ifa_name;
    return true;
  });
  return name;
}

TreeContents tree_contents() {
  TreeContents out;
  const string device = joined(kVirtual, kOurs);
  for (const Fixed& f : kFixed) out.files.emplace_back(joined(device, f.path), f.text);
  const string guid = hex_groups(nic::node_guid().data(), nic::node_guid().size());
  out.files.emplace_back(device + "/node_guid", guid);
  out.files.emplace_back(device + "/sys_image_guid", guid);
  add_ports(device, out);

  const string verbs = joined(kVerbsVirtual, kOurVerbs);
  out.files.emplace_back(verbs + "/ibdev", "aperture0\n");
  out.files.emplace_back(verbs + "/abi_version", "1\n");
  out.files.emplace_back(kVerbsVersion, "6\n");
  out.files.emplace_back(kMadVersion, "5\n");
  out.files.emplace_back(kVirtualNode, "-1\n");
  out.files.emplace_back(joined(kRdmaCmClass, "/abi_version"), "4\n");
  out.files.emplace_back(kRdmaCm, "");  // for who lists the folder
  out.files.emplace_back(kUverbs, "");

  out.links.emplace_back(joined(kClass, kOurs), "../../devices/virtual/infiniband/aperture0");
  out.links.emplace_back(joined(kVerbsClass, kOurVerbs),
                         "../../devices/virtual/infiniband_verbs/uverbs-aperture0");
  out.links.emplace_back(device + "/subsystem", "../../../../class/infiniband");
  out.links.emplace_back(device + "/device/infiniband/aperture0", "../..");
  out.links.emplace_back(device + "/device/infiniband_verbs/uverbs-aperture0",
                         "../../../../infiniband_verbs/uverbs-aperture0");
  out.links.emplace_back(verbs + "/subsystem", "../../../../class/infiniband_verbs");
  out.links.emplace_back(verbs + "/device", "../../infiniband/aperture0/device");
  out.shared_folders.assign(std::begin(kFolders), std::end(kFolders));
  out.shared_folders.emplace_back(kDevices);
  return out;
}

void fill_stat(PathKind kind, struct stat& out) noexcept {
  assert(kind == PathKind::rdma_cm || kind == PathKind::device);
  std::memset(&out, 0, sizeof out);
  out.st_nlink = 1;
  out.st_blksize = 4096;
  out.st_mode = S_IFCHR | 0666;
  // numbers that the kernel gives to no device: misc, and the first of uverbs
  out.st_rdev = kind == PathKind::rdma_cm ? makedev(10, 255 + 4096) : makedev(231, 192 + 4096);
}

KernelPathsAlone::KernelPathsAlone() noexcept {
  ++kernel_paths_alone;
}

KernelPathsAlone::~KernelPathsAlone() {
  assert(kernel_paths_alone > 0);
  --kernel_paths_alone;
}

bool are_kernel_paths_alone() noexcept {
  return kernel_paths_alone != 0;
}

}  // namespace aperture::verbs
