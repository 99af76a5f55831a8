// The ends of this process, their doorways and doorbells: see listeners.hpp.
#include "nic/listeners.hpp"

#include <algorithm>
#include <cassert>

#include "base/no_throw.hpp"

namespace aperture::nic {

// --- ends ----------------------------------------------------------------------------------------

Result<ListenerId> Listeners::add(const ListenSpec& spec, const Address& bound,
                                  ParentOnlyFd socket) noexcept {
  return no_throw([&]() -> Result<ListenerId> {
    std::vector<ParentOnlyFd> sockets;
    sockets.push_back(std::move(socket));
    auto doorway = new_doorway(Doorway::Kind::of_one, std::move(sockets));
    return doorway ? add_end(spec, bound, *std::move(doorway)) : doorway.error();
  });
}

Result<ListenerId> Listeners::add_at_port(const ListenSpec& spec) noexcept {
  const auto at = std::find_if(ports_.begin(), ports_.end(), [&](const auto& port) {
    return port.second->is_at(spec.local) && port.second->is_for(spec.local);
  });
  return at != ports_.end() ? add_end(spec, spec.local, at->second) : Errc::addr_not_avail;
}

Result<ListenerId> Listeners::add_key(const ListenSpec& spec, Address& bound) noexcept {
  const ListeningEnd* const first = find(spec.beside);
  if (first == nullptr) return Errc::no_entry;
  bound = first->end.address;
  return add_end(spec, bound, first->doorway);
}

Result<ListenerId> Listeners::add_end(const ListenSpec& spec, const Address& bound,
                                      std::shared_ptr<Doorway> doorway) noexcept {
  const ListenerId id = next_end_++;
  assert(!ends_.contains(id));
  const Status added = no_throw([&]() -> Status {
    auto made = std::make_unique<ListeningEnd>();
    ListeningEnd& listener = *made;
    listener.spec = spec;
    listener.end = {id, bound, spec.domain, spec.doorbell_fd, 0, spec.auth_key, spec.mover};
    listener.doorway = std::move(doorway);
    listener.backlog = spec.backlog;
    ends_.emplace(id, std::move(made));
    if (spec.doorbell_fd >= 0) {
      DoorbellNumber& bell = doorbells_[spec.doorbell_fd];
      if (bell.ends++ == 0) bell.number = next_doorbell_++;
      listener.end.engine = bell.number;
    }
    return listener.doorway != nullptr ? listener.doorway->add_end(listener) : Status();
  });
  if (added.ok()) return id;
  remove(id);
  return added.error();
}

void Listeners::remove(ListenerId id) noexcept {
  const auto it = ends_.find(id);
  if (it == ends_.end()) return;
  const ListeningEnd& listener = *it->second;
  assert(listener.waiting == 0);
  if (listener.doorway != nullptr) listener.doorway->remove_end(listener);
  if (listener.end.engine != 0) {
    const auto bell = doorbells_.find(listener.end.doorbell_fd);
    assert(bell != doorbells_.end() && bell->second.ends != 0);
    if (--bell->second.ends == 0) doorbells_.erase(bell);
  }
  ends_.erase(it);
}

ListeningEnd* Listeners::find(ListenerId id) const noexcept {
  const auto it = ends_.find(id);
  return it == ends_.end() ? nullptr : it->second.get();
}

ListeningEnd* Listeners::find_at(const Address& destination) const noexcept {
  for (const auto& [id, weak] : doorways_) {
    const std::shared_ptr<Doorway> doorway = weak.lock();
    ListeningEnd* const end = doorway != nullptr ? doorway->end_at(destination) : nullptr;
    if (end != nullptr) return end;
  }
  return nullptr;
}

// --- doorways ------------------------------------------------------------------------------------

// By exception std::bad_alloc.
Result<std::shared_ptr<Doorway>> Listeners::new_doorway(Doorway::Kind kind,
                                                        std::vector<ParentOnlyFd> sockets) {
  assert(!sockets.empty());
  const DoorwayId id = next_doorway_++;
  auto doorway =
      std::make_shared<Doorway>(control_, host_, self_, id, kind, std::move(sockets), limits_);
  if (Status s = doorway->start(); !s) return s.error();
  std::erase_if(doorways_, [](const auto& entry) { return entry.second.expired(); });
  doorways_[id] = doorway;
  return doorway;
}

Result<PortId> Listeners::open_port(Doorway::Kind kind,
                                    std::vector<ParentOnlyFd> sockets) noexcept {
  return no_throw([&]() -> Result<PortId> {
    const PortId id = next_doorway_;
    assert(!ports_.contains(id));
    auto doorway = new_doorway(kind, std::move(sockets));
    if (!doorway) return doorway.error();
    ports_.emplace(id, *std::move(doorway));
    return id;
  });
}

std::shared_ptr<Doorway> Listeners::doorway_of(uint64_t ticket) const noexcept {
  const auto it = doorways_.find(Doorway::doorway_of(ticket));
  return it == doorways_.end() ? nullptr : it->second.lock();
}

Listeners::Count Listeners::count() const noexcept {
  Count c{ends_.size(), 0, 0};
  for (const auto& [id, weak] : doorways_) {
    const std::shared_ptr<Doorway> doorway = weak.lock();
    if (doorway == nullptr) continue;
    ++c.doorways;
    c.handshakes += doorway->handshakes();
  }
  return c;
}

}  // namespace aperture::nic
