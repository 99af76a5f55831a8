// Multicast: each queue pair that has joined a group gets its messages, and nobody else does.
#include <random>

#include "ib/datagram_side.hpp"

namespace aperture::ib::test {
namespace {

// Groups of our own, so that several runs on one host do not hear each other.
Address own_group(std::initializer_list<uint8_t> prefix) {
  static std::random_device random;
  Address a;
  std::copy(prefix.begin(), prefix.end(), a.ip.begin());
  for (size_t i = 13; i < 16; ++i) a.ip[i] = static_cast<uint8_t>(random());
  return a;
}

struct Form {
  const char* name;
  std::initializer_list<uint8_t> prefix;
};
constexpr std::initializer_list<uint8_t> kV4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239};
constexpr std::initializer_list<uint8_t> kIpv6 = {0xff, 0x0e};
constexpr std::initializer_list<uint8_t> kIpoib = {0xff, 0x12, 0x40, 0x1b, 0xff, 0xff};
constexpr std::initializer_list<uint8_t> kPlain = {0xff, 0x01, 0, 0, 2, 0xc9};

class UdGroup : public testing::TestWithParam<Form> {
 protected:
  Address group = own_group(GetParam().prefix);
};
INSTANTIATE_TEST_SUITE_P(Mgids, UdGroup,
                         testing::Values(Form{"ipv4", kV4}, Form{"ipv6", kIpv6},
                                         Form{"ipoib", kIpoib}, Form{"interface_local", kPlain}),
                         [](const auto& form) { return form.param.name; });

TEST_P(UdGroup, all_who_are_attached_get_a_copy_each) {
  UdSide a, b, c, stranger;
  for (UdSide* side : {&b, &c}) {
    ASSERT_TRUE(side->qp->attach_group(group, kLoopback).ok());
    ASSERT_TRUE(side->qp->attach_group(group, Address{}).ok()) << "once more changes nothing";
  }
  for (UdSide* side : {&a, &b, &c, &stranger}) {
    ASSERT_TRUE(side->post_recv(1, 64));
    ASSERT_TRUE(side->post_recv(2, 8192));
  }
  a.fill(0, pattern(8, 5));
  ASSERT_TRUE(a.send_to_group(1, group));
  for (UdSide* side : {&b, &c}) {
    ASSERT_TRUE(side->received(1));
    const Wc wc = UdSide::take(side->recv_cq);
    EXPECT_EQ(wc.src_qpn, a.qp->qpn());
    EXPECT_EQ(wc.byte_len, kGrh + 8);
    EXPECT_EQ(side->bytes(64 + kGrh, 8), pattern(8, 5));
    EXPECT_EQ(std::memcmp(side->memory.data() + 64 + 24, group.ip.data(), 16), 0);
  }
  for (UdSide* side : {&a, &b, &c, &stranger}) {
    side->settle();
    EXPECT_TRUE(side->recv_cq.empty());
  }
}

TEST_P(UdGroup, who_is_detached_hears_no_more) {
  UdSide a, b;
  ASSERT_TRUE(b.post_recv(1, 64));
  EXPECT_EQ(b.qp->detach_group(group).error(), Errc::invalid) << "not attached yet";
  ASSERT_TRUE(b.qp->attach_group(group, kLoopback).ok());
  ASSERT_TRUE(b.qp->detach_group(group).ok());
  EXPECT_EQ(b.qp->detach_group(group).error(), Errc::invalid);
  ASSERT_TRUE(a.send_to_group(1, group));
  b.settle();
  EXPECT_TRUE(b.recv_cq.empty());
  ASSERT_TRUE(b.qp->attach_group(group, kLoopback).ok());
  ASSERT_TRUE(a.send_to_group(2, group));
  EXPECT_TRUE(b.received(1));
}

TEST_P(UdGroup, from_every_address_of_the_host_it_is_reached) {
  std::vector<Address> ips = {kLoopback};
  Address six;
  six.ip[15] = 1;
  if (link::udp::interface_of(six).index != 0) ips.push_back(six);
  UdSide a({.ips = ips}), b({.ips = ips});
  ASSERT_TRUE(b.qp->attach_group(group, Address{}).ok());
  for (const Address& local : ips) {
    SCOPED_TRACE(local.text());
    ASSERT_TRUE(b.post_recv(1, 64));
    ASSERT_TRUE(a.send_to_group(1, group, local));
    ASSERT_TRUE(b.received(1));
    UdSide::take(b.recv_cq);
    b.settle();
    EXPECT_TRUE(b.recv_cq.empty());
  }
}

TEST_P(UdGroup, ones_own_message_comes_back_unless_that_is_blocked) {
  UdSide a, b({.block_self = true});
  for (UdSide* side : {&a, &b}) {
    ASSERT_TRUE(side->post_recv(1, 64));
    ASSERT_TRUE(side->qp->attach_group(group, kLoopback).ok());
  }
  ASSERT_TRUE(a.send_to_group(1, group));
  EXPECT_TRUE(a.received(1));
  EXPECT_TRUE(b.received(1));
  UdSide::take(b.recv_cq);
  ASSERT_TRUE(b.post_recv(2, 64));
  ASSERT_TRUE(b.send_to_group(2, group));
  b.settle();
  EXPECT_TRUE(b.recv_cq.empty());
}

TEST_P(UdGroup, another_qkey_is_dropped_here_too) {
  UdSide a, b({.qkey = 5});
  ASSERT_TRUE(b.post_recv(1, 64));
  ASSERT_TRUE(b.qp->attach_group(group, kLoopback).ok());
  ASSERT_TRUE(a.send_to_group(1, group));
  EXPECT_TRUE(b.until([&] { return b.qp->drops().wrong_qkey == 1; }));
  EXPECT_TRUE(b.recv_cq.empty());
}

TEST(UdGroups, that_share_an_address_stay_apart) {
  // two MGIDs that the hash puts into the same place, and the address of that place itself
  std::map<std::array<uint8_t, 16>, Address> seen;
  Address one, other;
  for (uint32_t i = 0; one.is_any_ip(); ++i) {
    ASSERT_LT(i, 1u << 20);
    Address mgid = Address{};
    mgid.ip = {0xff, 0x12, 0x40, 0x1b};
    std::memcpy(&mgid.ip[12], &i, sizeof i);
    const auto [at, fresh] = seen.emplace(wire::group_on_ipv4(mgid).ip, mgid);
    if (fresh) continue;
    one = at->second;
    other = mgid;
  }
  UdSide a, b, c, d;
  ASSERT_TRUE(b.qp->attach_group(one, kLoopback).ok());
  ASSERT_TRUE(c.qp->attach_group(other, kLoopback).ok());
  ASSERT_TRUE(d.qp->attach_group(wire::group_on_ipv4(one), kLoopback).ok());
  for (UdSide* side : {&b, &c, &d}) ASSERT_TRUE(side->post_recv(1, 64));
  ASSERT_TRUE(a.send_to_group(1, one));
  EXPECT_TRUE(b.received(1));
  for (UdSide* side : {&c, &d}) {
    ASSERT_TRUE(side->until([&] { return side->qp->drops().not_for_us == 1; }));
    EXPECT_TRUE(side->recv_cq.empty());
  }
}

TEST(UdGroups, what_is_no_group_is_refused) {
  UdSide a;
  EXPECT_EQ(a.qp->attach_group(kLoopback, kLoopback).error(), Errc::invalid);
  EXPECT_EQ(a.qp->attach_group(Address{}, kLoopback).error(), Errc::invalid);
  EXPECT_EQ(a.qp->attach_group(Address::v4(0xef010203, 0), Address::v4(0xc6336401, 0)).error(),
            Errc::addr_not_avail)
      << "an address that is not of this host";
}

}  // namespace
}  // namespace aperture::ib::test
