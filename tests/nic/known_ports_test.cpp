// Which ports a process of this host is known to own: what was noted, and nothing beside it.
#include "nic/known_ports.hpp"

#include <gtest/gtest.h>

namespace aperture::nic {
namespace {

Address at(uint16_t port) {
  Address address;
  address.port = port;
  return address;
}

TEST(KnownPorts, a_port_is_known_once_it_was_noted) {
  KnownPorts ports;
  EXPECT_FALSE(ports.has(at(7)));
  ports.note(at(7));
  EXPECT_TRUE(ports.has(at(7)));
  EXPECT_FALSE(ports.has(at(8)));
}

TEST(KnownPorts, all_endpoints_of_a_port_are_known_with_one) {
  KnownPorts ports;
  Address one = at(7);
  one.key = 3;
  ports.note(one);
  EXPECT_TRUE(ports.has(at(7)));
}

TEST(KnownPorts, the_oldest_makes_room_and_what_is_known_takes_none) {
  KnownPorts ports;
  for (uint16_t port = 1; port <= 32; ++port) ports.note(at(port));
  for (int again = 0; again < 32; ++again) ports.note(at(32));
  EXPECT_TRUE(ports.has(at(1)));
  ports.note(at(33));
  EXPECT_FALSE(ports.has(at(1)));
  EXPECT_TRUE(ports.has(at(2)));
  EXPECT_TRUE(ports.has(at(33)));
}

TEST(KnownPorts, where_it_was_met_is_no_port_of_this_network_namespace) {
  KnownPorts ports;
  EXPECT_FALSE(ports.was_met_at(at(7)));
  ports.note_met_at(at(7));
  EXPECT_TRUE(ports.was_met_at(at(7)));
  EXPECT_FALSE(ports.was_met_at(at(8)));
  EXPECT_FALSE(ports.has(at(7)));
}

}  // namespace
}  // namespace aperture::nic
