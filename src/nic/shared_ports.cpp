// Doorways, and the ports among them that queue pairs share. See first_contact.hpp.
#include <algorithm>

#include "nic/first_contact.hpp"

namespace aperture::nic {

Result<PortId> FirstContact::open_port(std::span<const Address> ips, uint16_t& port) noexcept {
  if (in_forked_child()) return Errc::not_supported;
  const bool any = std::any_of(ips.begin(), ips.end(), [](const auto& a) { return a.is_any_ip(); });
  if (ips.empty() || any) return Errc::invalid;  // who connects is told apart by where he came to
  uint16_t number = 0;
  auto sockets = listen_tcp_on_all(ips, number);
  if (!sockets) return sockets.error();
  PortId id = 0;
  Status status;
  control_.run([&] {
    id = next_doorway_;
    auto doorway = new_doorway(Doorway::Kind::shared, *std::move(sockets));
    status = doorway.error();
    if (doorway) ports_[id] = *std::move(doorway);
  });
  if (!status) return status.error();
  port = number;
  return id;
}

void FirstContact::close_port(PortId id) noexcept {
  control_.run([&] { ports_.erase(id); });
}

Result<std::shared_ptr<Doorway>> FirstContact::new_doorway(
    Doorway::Kind kind, std::vector<ParentOnlyFd> sockets) noexcept {
  DoorwayHost& host = *this;
  const DoorwayId id = next_doorway_++;
  auto doorway = std::make_shared<Doorway>(control_, host, self_, id, kind, std::move(sockets),
                                           listener_limits);
  if (Status s = doorway->start(); !s) return s.error();
  std::erase_if(doorways_, [](const auto& entry) { return entry.second.expired(); });
  doorways_[id] = doorway;
  return doorway;
}

std::shared_ptr<Doorway> FirstContact::doorway_of(uint64_t ticket) noexcept {
  const auto it = doorways_.find(Doorway::doorway_of(ticket));
  return it == doorways_.end() ? nullptr : it->second.lock();
}

std::shared_ptr<Doorway> FirstContact::port_at(const Address& address) noexcept {
  for (const auto& [id, doorway] : ports_) {
    if (doorway->is_at(address)) return doorway;
  }
  return nullptr;
}

Status FirstContact::listen_at_port(const ListenSpec& spec, ListenerId& id) noexcept {
  if (spec.what != ListenFor::lanes) return Errc::invalid;
  std::shared_ptr<Doorway> doorway = port_at(spec.local);
  if (doorway == nullptr) return Errc::addr_not_avail;
  const ListenerId number = next_listener_++;
  if (Status s = add_listener(spec, number, spec.local, std::move(doorway)); !s) return s;
  id = number;
  return {};
}

}  // namespace aperture::nic
