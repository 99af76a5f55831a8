// Taking a port, and finding the address of ours that leads to a peer: see binding.hpp.
#include "cm/binding.hpp"

#include <cassert>

#include "base/log.hpp"
#include "nic/host_identity.hpp"

namespace aperture::cm {

namespace {

bool is_multicast(const Address& a) noexcept {
  return a.is_v4() ? (a.ip[12] & 0xf0) == 0xe0 : a.ip[0] == 0xff;
}

Address any_of(bool four) noexcept {
  return four ? Address::v4(INADDR_ANY, 0) : Address{};
}

Address loopback_of(bool four) noexcept {
  if (four) return Address::v4(INADDR_LOOPBACK, 0);
  Address six;
  six.ip[15] = 1;
  return six;
}

Status require_gid(const Address& a) noexcept {
  if (is_gid(a)) return {};
  // libfabric tries every address of the host in every process that looks for a provider
  if (nic::is_link_local(a)) {
    APERTURE_DEBUG("rdma_cm: %s is link-local, and no GID of aperture0", a.print().c_str());
    return Errc::addr_not_avail;
  }
  return refuse(Errc::addr_not_avail,
                "rdma_cm: %s is none of this device's addresses: use one that ibv_devinfo -v lists",
                a.print().c_str());
}

Result<Address> pick_source(const Address& dest) noexcept {
  auto routed = source_for(dest);
  if (routed.ok()) return routed;
  for (const Address& a : nic::host_addresses()) {
    // no route for groups: the first interface will do
    if (is_multicast(dest) && a.is_v4() == dest.is_v4()) return a;
  }
  return refuse(Errc::unreachable, "rdma_cm: no route to %s", dest.print().c_str());
}

// Who is asked from an address that serves this host alone could not answer by a queue pair.
Status require_offered(const Address& from, const Address& to) noexcept {
  if (nic::serves_other_hosts(from)) return {};
  return refuse(
      Errc::unreachable,
      "rdma_cm: %s is on another host, or in another network namespace, and the way there "
      "leaves by %s, which serves this host alone: set FI_APERTURE_IFACE to that address "
      "or to its interface, on both hosts",
      to.print().c_str(), from.print().c_str());
}

}  // namespace

Status Binding::take(const Address& at) noexcept {
  assert(!port_ && !local_);
  if (!at.is_any_ip()) {
    if (const Status s = require_gid(at); !s) return s;
  }
  auto port = Port::take(space_, at, options_);
  if (!port) return port.error();
  local_ = port->bound();
  port_ = *std::move(port);
  assert(local_->port != 0 && local_->ip == at.ip);
  return {};
}

Status Binding::resolve(const std::optional<Address>& source, const Address& dest) noexcept {
  assert(!remote_ && !has_route_);
  Address to = dest;
  if (to.is_any_ip()) {
    to.ip = has_device() ? local_->ip : loopback_of(dest.is_v4()).ip;
  }
  Address from = local_ ? *local_ : source ? *source : any_of(dest.is_v4());
  if (from.is_v4() != to.is_v4()) return Errc::invalid;
  if (from.is_any_ip()) {
    auto picked = pick_source(to);
    if (!picked) return picked.error();
    from.ip = picked->ip;
  }
  if (const Status s = require_gid(from); !s) return s;
  const bool leads_elsewhere = !is_multicast(to) && !is_of_this_host(to);
  if (leads_elsewhere) {
    if (const Status s = require_offered(from, to); !s) return s;
  }
  if (!local_) {
    if (const Status s = take(from); !s) return s;
  }
  local_->ip = from.ip;
  remote_ = to;
  leads_elsewhere_ = leads_elsewhere;
  assert(port_ && has_device());
  return {};
}

void Binding::add_route() noexcept {
  assert(local_ && remote_);
  assert(!has_route_);
  has_route_ = true;
}

void Binding::become(const Address& local, const Address& remote) noexcept {
  assert(!port_ && !local_);
  local_ = local;
  remote_ = remote;
  assert(has_device());
}

Result<std::vector<NamedSocket>> Binding::listen() noexcept {
  assert(port_ && !remote_);
  return port_->listen();
}

Result<ParentOnlyFd> Binding::connect() noexcept {
  assert(port_ && remote_ && !leads_elsewhere_);
  return port_->connect(*local_, *remote_);
}

}  // namespace aperture::cm
