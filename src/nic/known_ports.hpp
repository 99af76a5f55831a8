// Which ports are known to be a peer's own, a process of this host: those at which it has given us
// a lane for a ticket, and where it was met.
//
// A port of another network namespace cannot be asked for its user: there the process that has told
// its socket is taken for the owner of that port, and of no other. Owned by the control thread.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>

#include "base/address.hpp"

namespace aperture::nic {

class KnownPorts {
 public:
  // It has given us a lane to there for a ticket; the oldest of many makes room.
  void note(const Address& at) noexcept {
    assert(at.port != 0);
    if (!has(at)) ports_[noted_++ % ports_.size()] = port_of(at);
  }
  // It may have closed it since.
  bool has(const Address& at) const noexcept {
    assert(at.port != 0);
    return std::find(ports_.begin(), ports_.end(), port_of(at)) != ports_.end();
  }
  // The owner of the port at that address, in another network namespace, has told its socket.
  void note_met_at(const Address& at) noexcept { met_at_ = port_of(at); }
  bool was_met_at(const Address& at) const noexcept { return met_at_ == port_of(at); }

 private:
  static Address port_of(const Address& at) noexcept { return at.of_port().without_key(); }

  std::array<Address, 32> ports_;
  size_t noted_ = 0;
  Address met_at_;  // without a port: nowhere
};

}  // namespace aperture::nic
