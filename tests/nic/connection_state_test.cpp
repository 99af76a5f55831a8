// The table of a connection's life: every state with every event, legal or not.
#include "nic/connection_state.hpp"

#include <gtest/gtest.h>

#include <map>
#include <utility>

namespace aperture::nic {
namespace {

using C = Connection;
using E = ConnectionEvent;

TEST(ConnectionState, every_pair_of_state_and_event) {
  const std::map<std::pair<C, E>, C> legal = {
      {{C::unconnected, E::connect}, C::connecting},
      {{C::unconnected, E::up}, C::connected},
      {{C::connecting, E::up}, C::connected},
      {{C::connecting, E::fail}, C::over},
      {{C::connected, E::down}, C::over},
      {{C::connected, E::shutdown}, C::over},
  };
  for (size_t c = 0; c < kConnections; ++c) {
    for (size_t e = 0; e < kConnectionEvents; ++e) {
      const auto now = static_cast<C>(c);
      const auto event = static_cast<E>(e);
      const auto it = legal.find({now, event});
      const auto next = after(now, event);
      EXPECT_EQ(next.has_value(), it != legal.end()) << c << ' ' << e;
      if (next && it != legal.end()) {
        EXPECT_EQ(*next, it->second) << c << ' ' << e;
      }
    }
  }
}

TEST(ConnectionState, nothing_leads_out_of_the_end) {
  for (size_t e = 0; e < kConnectionEvents; ++e) {
    EXPECT_FALSE(after(C::over, static_cast<E>(e)));
  }
}

}  // namespace
}  // namespace aperture::nic
