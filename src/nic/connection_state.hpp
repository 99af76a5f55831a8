// The life of a connected endpoint's connection, as a table. fi_cm(3).
//
//   unconnected --connect--> connecting --up--> connected --down, shutdown--> over
//        \___________________________up (accept)____/
//                  connecting --fail--> over
//
// "fi_connect may only be called on an endpoint once in its lifetime", so nothing leads out of
// over. Values; the owner says who may change them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace aperture::nic {

enum class Connection : uint8_t { unconnected, connecting, connected, over };

enum class ConnectionEvent : uint8_t {
  connect,   // the application asks
  up,        // the lane is there
  fail,      // the connect came to nothing
  down,      // the other side has shut down, or is lost
  shutdown,  // we have
};

inline constexpr size_t kConnections = 4;
inline constexpr size_t kConnectionEvents = 5;

// What it becomes; nothing: that event means nothing there.
constexpr std::optional<Connection> after(Connection now, ConnectionEvent event) noexcept {
  using C = Connection;
  using Row = std::array<std::optional<C>, kConnectionEvents>;
  constexpr std::array<Row, kConnections> kTable{{
      //            connect         up            fail     down     shutdown
      Row{{/*unconnected*/ C::connecting, C::connected, {}, {}, {}}},
      Row{{/*connecting */ {}, C::connected, C::over, {}, {}}},
      Row{{/*connected  */ {}, {}, {}, C::over, C::over}},
      Row{{/*over       */ {}, {}, {}, {}, {}}},
  }};
  return kTable[static_cast<size_t>(now)][static_cast<size_t>(event)];
}

}  // namespace aperture::nic
