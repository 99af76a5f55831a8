// What an id is bound to, and where it leads: its port, its own address, its peer's, the route
// between them. rdma_bind_addr(3), rdma_resolve_addr(3).
//
// The control thread's own. Invariants: a port is taken at most once, and `local` is set from then
// on; an id that a peer has asked for has both addresses and no port of its own; there is no peer
// and no route without an address of our own. When what may be called is its id's to know.
#pragma once

#include <optional>
#include <vector>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "cm/ports.hpp"

namespace aperture::cm {

class Binding {
 public:
  explicit Binding(PortSpace space) noexcept : space_(space) {}

  // Of a port that is still to be taken.
  PortOptions& options() noexcept { return options_; }
  // A wildcard too. Errors: addr_in_use, addr_not_avail (also: none of the device's GIDs), no_fds,
  // no_memory...
  Status take(const Address& at) noexcept;
  // The peer's address and the one of ours that leads there; takes a port if there is none yet.
  // Errors: as take; unreachable (no route there, or none for which other hosts are served),
  // invalid (two families).
  Status resolve(const std::optional<Address>& source, const Address& dest) noexcept;
  void add_route() noexcept;
  // Of an id that a peer has asked for.
  void become(const Address& local, const Address& remote) noexcept;

  // Neither is set before an address is bound; a wildcard has no device.
  const std::optional<Address>& local() const noexcept { return local_; }
  const std::optional<Address>& remote() const noexcept { return remote_; }
  bool has_device() const noexcept { return local_ && !local_->is_any_ip(); }
  bool has_route() const noexcept { return has_route_; }
  PortSpace space() const noexcept { return space_; }
  // The peer is to be reached by its host's porter (dial.hpp), and not by connect().
  bool leads_elsewhere() const noexcept { return leads_elsewhere_; }

  // As Port has them.
  Result<std::vector<NamedSocket>> listen() noexcept;
  Result<ParentOnlyFd> connect() noexcept;

 private:
  const PortSpace space_;
  PortOptions options_;
  std::optional<Port> port_;
  std::optional<Address> local_;
  std::optional<Address> remote_;
  bool has_route_ = false;
  bool leads_elsewhere_ = false;
};

}  // namespace aperture::cm
