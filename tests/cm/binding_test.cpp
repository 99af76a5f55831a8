// What an id is bound to: which address of ours leads to a peer, and what a failure leaves.

#include "cm/binding.hpp"

#include "cm/both_sides.hpp"

namespace aperture::cm::test {
namespace {

const Address kAny = Address::v4(INADDR_ANY, 0);
const Address kLoopback = Address::v4(INADDR_LOOPBACK, 0);
const Address kPeer = Address::v4(INADDR_LOOPBACK, 7471);
const Address kNotOurs = Address::v4(0xc0000201, 0);  // 192.0.2.1, of documentation alone

TEST(CmBinding, a_wildcard_has_no_device_until_it_leads_somewhere) {
  Binding b(PortSpace::tcp);
  ASSERT_TRUE(b.take(kAny));
  EXPECT_FALSE(b.has_device());
  const uint16_t port = b.local()->port;
  EXPECT_NE(port, 0);
  ASSERT_TRUE(b.resolve({}, kPeer));
  EXPECT_TRUE(b.has_device());
  EXPECT_EQ(b.local()->ip, kLoopback.ip);
  EXPECT_EQ(b.local()->port, port);
  EXPECT_EQ(*b.remote(), kPeer);
}

TEST(CmBinding, resolving_takes_a_port_where_there_is_none) {
  Binding b(PortSpace::tcp);
  ASSERT_TRUE(b.resolve({}, kPeer));
  EXPECT_NE(b.local()->port, 0);
  EXPECT_FALSE(b.has_route());
  b.add_route();
  EXPECT_TRUE(b.has_route());
}

TEST(CmBinding, a_peer_at_any_address_is_one_at_ours) {
  Binding b(PortSpace::tcp);
  ASSERT_TRUE(b.take(kLoopback));
  ASSERT_TRUE(b.resolve({}, Address::v4(INADDR_ANY, 7471)));
  EXPECT_EQ(*b.remote(), kPeer);
}

TEST(CmBinding, what_fails_binds_nothing) {
  Binding b(PortSpace::tcp);
  EXPECT_EQ(b.take(kNotOurs).error(), Errc::addr_not_avail);
  EXPECT_EQ(b.resolve(kNotOurs, kPeer).error(), Errc::addr_not_avail);
  Address six;
  six.ip[15] = 1;
  EXPECT_EQ(b.resolve(six, kPeer).error(), Errc::invalid);
  EXPECT_FALSE(b.local() || b.remote());
  EXPECT_TRUE(b.take(kLoopback));
}

TEST(CmBinding, another_host_is_led_to_from_no_address_that_serves_this_one_alone) {
  Binding b(PortSpace::tcp);
  EXPECT_EQ(b.resolve({}, Address::v4(0xcb007109, 7471)).error(), Errc::unreachable);
  EXPECT_FALSE(b.local() || b.remote() || b.leads_elsewhere());
  ASSERT_TRUE(b.take(kLoopback));
  EXPECT_EQ(b.resolve({}, Address::v4(0xcb007109, 7471)).error(), Errc::unreachable);
  ASSERT_TRUE(b.resolve({}, kPeer));
  EXPECT_FALSE(b.leads_elsewhere());
}

TEST(CmBinding, a_port_is_held_for_as_long_as_its_binding_lives) {
  std::optional<Binding> holder(std::in_place, PortSpace::tcp);
  ASSERT_TRUE(holder->take(kLoopback));
  const Address at = *holder->local();
  Binding other(PortSpace::tcp);
  EXPECT_EQ(other.take(at).error(), Errc::addr_in_use);
  holder.reset();
  EXPECT_TRUE(other.take(at));
}

TEST(CmBinding, an_id_that_a_peer_has_asked_for_has_addresses_and_no_port) {
  Binding holder(PortSpace::tcp), child(PortSpace::tcp);
  ASSERT_TRUE(holder.take(kLoopback));
  child.become(*holder.local(), kPeer);
  EXPECT_TRUE(child.has_device());
  EXPECT_EQ(*child.local(), *holder.local());
  EXPECT_EQ(*child.remote(), kPeer);
}

}  // namespace
}  // namespace aperture::cm::test
