// The node GUID and the GID table's addresses: what they promise, on whatever host this runs.
#include "nic/host_identity.hpp"

#include <algorithm>

#include "base/forked.hpp"

namespace aperture::nic {
namespace {

bool is_loopback(const Address& a) {
  return a.is_v4() ? a.ip[12] == 127
                   : std::all_of(a.ip.begin(), a.ip.end() - 1, [](uint8_t b) { return b == 0; });
}

int kind_of(const Address& a) {
  return (a.is_v4() ? 0 : 2) + (is_loopback(a) ? 1 : 0);
}

TEST(HostIdentity, guid_is_locally_administered_unicast_and_not_zero) {
  EXPECT_EQ(node_guid()[0] & 0x03, 0x02);
  EXPECT_NE(node_guid(), (NodeGuid{0x02}));
}

TEST(HostIdentity, guid_and_addresses_are_the_same_in_a_child) {
  const NodeGuid guid = node_guid();
  const std::vector<Address> table = host_addresses();
  EXPECT_TRUE(aperture::test::holds_in_child(
      [&] { return guid == node_guid() && table == host_addresses(); }));
}

TEST(HostIdentity, addresses_are_sorted_and_none_is_any_or_link_local_or_twice_there) {
  const std::vector<Address>& table = host_addresses();
  ASSERT_FALSE(table.empty());
  for (size_t i = 0; i < table.size(); ++i) {
    const Address& a = table[i];
    EXPECT_EQ(a.port, 0) << a.text();
    EXPECT_FALSE(a.is_any_ip());
    EXPECT_FALSE(a.ip[0] == 0xfe && (a.ip[1] & 0xc0) == 0x80) << a.text();
    EXPECT_EQ(std::count(table.begin(), table.end(), a), 1) << a.text();
    if (i == 0) continue;
    EXPECT_LE(kind_of(table[i - 1]), kind_of(a)) << a.text();
  }
}

}  // namespace
}  // namespace aperture::nic
