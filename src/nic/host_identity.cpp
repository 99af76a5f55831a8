// Reading the host's GUID and addresses: see host_identity.hpp.
#include "nic/host_identity.hpp"

#include <net/if.h>

#include <algorithm>
#include <cstring>

#include "base/interfaces.hpp"
#include "base/log.hpp"
#include "base/per_process.hpp"
#include "base/settings.hpp"
#include "nic/identity.hpp"

namespace aperture::nic {

namespace {

constexpr const char* kIfaceVariable = "FI_APERTURE_IFACE";

// An address with what it is sorted by, lowest first.
struct Candidate {
  int rank;
  Address address;
  bool offered;  // to other hosts
};

struct Table {
  std::vector<Address> addresses;
  std::vector<Address> offered;  // of them, those at which other hosts are served
};

uint64_t mixed(uint64_t h, uint64_t v) noexcept {
  h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
  h ^= h >> 30;
  h *= 0xbf58476d1ce4e5b9u;
  h ^= h >> 27;
  h *= 0x94d049bb133111ebu;
  return h ^ h >> 31;
}

NodeGuid make_guid() noexcept {
  uint64_t h = mixed(0, read_net_ns());
  if (Result<wire::Id128> boot = read_boot_id()) {
    for (const uint8_t byte : *boot) h = mixed(h, byte);
  }
  NodeGuid guid;
  std::memcpy(guid.data(), &h, guid.size());
  guid[0] = static_cast<uint8_t>((guid[0] | 0x02) & ~0x01);
  return guid;
}

int rank_of(const Address& a, bool loopback, bool wished) noexcept {
  const int rank = (a.is_v4() ? 0 : 2) + (loopback ? 1 : 0);
  return wished ? rank - 4 : rank;
}

std::vector<Candidate> candidates(const char* wish) {
  std::vector<Candidate> found;
  visit_interfaces([&](const ifaddrs& interface, const Address& a) {
    if ((interface.ifa_flags & IFF_UP) == 0 || is_link_local(a)) return false;
    const std::string port_text = ":0";
    const std::string text = a.text();
    const bool wished = wish != nullptr &&
                        (std::strcmp(interface.ifa_name, wish) == 0 || text == wish + port_text ||
                         text == "[" + std::string(wish) + "]" + port_text);
    const bool loopback = (interface.ifa_flags & IFF_LOOPBACK) != 0;
    found.push_back({rank_of(a, loopback, wished), a, wished && !loopback});
    return false;
  });
  return found;
}

Table read_table() {
  const char* wish = setting_text(kIfaceVariable);
  std::vector<Candidate> found = candidates(wish);
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
  if (wish != nullptr && (found.empty() || found.front().rank >= 0)) {
    APERTURE_WARN("%s=%s is no interface that is up and no address of one: it changes no GID",
                  kIfaceVariable, wish);
  }
  Table table;
  for (const Candidate& c : found) {
    if (table.addresses.size() == kMaxHostAddresses) break;
    if (std::find(table.addresses.begin(), table.addresses.end(), c.address) !=
        table.addresses.end()) {
      continue;
    }
    table.addresses.push_back(c.address);
    if (c.offered) table.offered.push_back(c.address);
  }
  if (table.addresses.empty()) table.addresses.push_back(Address::v4(INADDR_LOOPBACK, 0));
  return table;
}

const Table& table_of_addresses() {
  // never destroyed: asked for until the very end of the process
  static constinit FoundOnce<const Table*> table;
  return *table.get([] { return new Table(read_table()); });
}

}  // namespace

bool is_link_local(const Address& a) noexcept {
  return a.ip[0] == 0xfe && (a.ip[1] & 0xc0) == 0x80;
}

bool is_loopback(const Address& a) noexcept {
  if (a.is_v4()) return a.ip[12] == 127;
  Address six;
  six.ip.back() = 1;
  return a.ip == six.ip;
}

const NodeGuid& node_guid() noexcept {
  static constinit FoundOnce<NodeGuid> guid;
  return guid.get(make_guid);
}

const std::vector<Address>& host_addresses() {
  return table_of_addresses().addresses;
}

bool serves_other_hosts(const Address& ip) noexcept {
  const std::vector<Address>& offered = table_of_addresses().offered;
  return std::any_of(offered.begin(), offered.end(),
                     [&](const Address& a) { return a.ip == ip.ip; });
}

}  // namespace aperture::nic
