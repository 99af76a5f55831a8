// Endpoint addresses: conversions there and back, and what is refused.
#include "base/address.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <unordered_set>

#include "base/value_of.hpp"

namespace aperture {
namespace {

using test::value_of;

TEST(Address, v4_goes_there_and_back) {
  const Address a = Address::v4(0x7f000001, 4000);
  EXPECT_TRUE(a.is_v4());
  EXPECT_FALSE(a.is_any_ip());
  EXPECT_EQ(a.text(), "127.0.0.1:4000");
  sockaddr_storage out;
  const socklen_t len = a.to_sockaddr(out);
  EXPECT_EQ(len, sizeof(sockaddr_in));
  EXPECT_EQ(value_of(Address::from_sockaddr(&out, len)), a);
}

TEST(Address, v6_goes_there_and_back) {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(17);
  ASSERT_EQ(::inet_pton(AF_INET6, "fe80::1", &in6.sin6_addr), 1);
  auto a = value_of(Address::from_sockaddr(&in6, sizeof in6));
  EXPECT_FALSE(a.is_v4());
  EXPECT_EQ(a.text(), "[fe80::1]:17");
  sockaddr_storage out;
  EXPECT_EQ(a.to_sockaddr(out), sizeof in6);
  EXPECT_EQ(std::memcmp(&reinterpret_cast<sockaddr_in6&>(out).sin6_addr, &in6.sin6_addr, 16), 0);
}

TEST(Address, mapped_v4_is_the_same_as_v4) {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_port = htons(4000);
  ASSERT_EQ(::inet_pton(AF_INET6, "::ffff:127.0.0.1", &in6.sin6_addr), 1);
  auto a = value_of(Address::from_sockaddr(&in6, sizeof in6));
  EXPECT_EQ(a, Address::v4(0x7f000001, 4000));
  EXPECT_EQ(AddressHash{}(a), AddressHash{}(Address::v4(0x7f000001, 4000)));
}

TEST(Address, wrong_family_or_length_is_refused) {
  sockaddr_storage ss{};
  EXPECT_FALSE(Address::from_sockaddr(nullptr, 16));
  ss.ss_family = AF_UNIX;
  EXPECT_FALSE(Address::from_sockaddr(&ss, sizeof ss));
  ss.ss_family = AF_INET;
  EXPECT_FALSE(Address::from_sockaddr(&ss, sizeof(sockaddr_in) - 1));
  EXPECT_TRUE(Address::from_sockaddr(&ss, sizeof(sockaddr_in)));
  ss.ss_family = AF_INET6;
  EXPECT_FALSE(Address::from_sockaddr(&ss, sizeof(sockaddr_in)));
  EXPECT_FALSE(Address::from_sockaddr(&ss, 1));
}

TEST(Address, wildcard_is_known_in_both_families) {
  EXPECT_TRUE(Address::v4(0, 5).is_any_ip());
  EXPECT_TRUE(Address{}.is_any_ip());
  EXPECT_FALSE(Address::v4(1, 5).is_any_ip());
}

TEST(Address, index_tells_those_that_share_a_port_apart) {
  const Address alone = Address::v4(0x7f000001, 4711);
  Address third = alone;
  third.index = 3;
  EXPECT_NE(third, alone);
  EXPECT_LT(alone, third);
  EXPECT_NE(AddressHash{}(third), AddressHash{}(alone));
  EXPECT_EQ(alone.text(), "127.0.0.1:4711");
  EXPECT_EQ(third.text(), "127.0.0.1:4711/3");
  Address v6;
  v6.ip[15] = 1;
  v6.port = 5;
  v6.index = 255;
  EXPECT_EQ(v6.text(), "[::1]:5/255");
  sockaddr_storage out;
  const socklen_t len = third.to_sockaddr(out);
  EXPECT_EQ(*Address::from_sockaddr(&out, len), alone) << "a sockaddr has no place for it";
}

TEST(Address, hash_spreads_ports_and_hosts) {
  std::unordered_set<size_t> seen;
  for (uint16_t port = 0; port < 1000; ++port) {
    seen.insert(AddressHash{}(Address::v4(0x0a000001, port)) & 0xffff);
    seen.insert(AddressHash{}(Address::v4(0x0a000002, port)) & 0xffff);
  }
  EXPECT_GT(seen.size(), 1900u);
}

}  // namespace
}  // namespace aperture
