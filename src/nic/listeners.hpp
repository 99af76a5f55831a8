// The ends of this process, by number: those that others come to, and those that connect; and what
// they share, which is the doorways that others come through and the doorbells that they ring.
//
// A number is given once and never again. Whoever is about to tell an end's owner something looks
// the end up first: it goes when its owner says so. A doorway lives as long as an end is in it, a
// shared one also as long as its port is open. All ends with one doorbell descriptor have one
// number for it, by which a peer knows that it holds that doorbell already. Owned by the control
// thread.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "nic/doorway.hpp"
#include "nic/listening_end.hpp"

namespace aperture::nic {

class Listeners {
 public:
  // What is passed outlives it; limits: as they are when a doorway is made.
  Listeners(ControlThread& control, DoorwayHost& host, const Identity& self,
            const Doorway::Limits& limits) noexcept
      : control_(control), host_(host), self_(self), limits_(limits) {}

  // An end with a doorway of its own, over a socket that listens at `bound`. Errors: no_fds,
  // no_memory.
  Result<ListenerId> add(const ListenSpec& spec, const Address& bound,
                         ParentOnlyFd socket) noexcept;
  // One in the doorway of the port that is open at its address. Errors: addr_not_avail (none is),
  // addr_in_use (another end has that index), no_memory.
  Result<ListenerId> add_at_port(const ListenSpec& spec) noexcept;
  // Another key of the endpoint that has the end spec.beside, in its doorway, if it has one.
  // Errors: no_entry (it is gone), no_memory.
  Result<ListenerId> add_key(const ListenSpec& spec, Address& bound) noexcept;
  // One that nobody is to come to. Errors: no_memory.
  Result<ListenerId> add_connected(const ListenSpec& spec, const Address& local) noexcept {
    return add_end(spec, local, nullptr);
  }
  // Who is at that address, for one without a key; nullptr: nobody.
  ListeningEnd* find_at(const Address& destination) const noexcept;
  // Nothing is under way from it or waits at it any more.
  void remove(ListenerId id) noexcept;
  // nullptr: it is gone.
  ListeningEnd* find(ListenerId id) const noexcept;

  // A shared doorway over these sockets, which listen; kept until close_port(). Errors: no_fds,
  // no_memory.
  Result<PortId> open_port(Doorway::Kind kind, std::vector<ParentOnlyFd> sockets) noexcept;
  void close_port(PortId id) noexcept { ports_.erase(id); }
  // The doorway that handed out that ticket; nullptr: it is gone, or never was.
  std::shared_ptr<Doorway> doorway_of(uint64_t ticket) const noexcept;

  struct Count {
    size_t ends, doorways, handshakes;
  };
  Count count() const noexcept;

 private:
  struct DoorbellNumber {
    uint64_t number = 0;
    size_t ends = 0;
  };

  Result<std::shared_ptr<Doorway>> new_doorway(Doorway::Kind kind,
                                               std::vector<ParentOnlyFd> sockets);
  Result<ListenerId> add_end(const ListenSpec& spec, const Address& bound,
                             std::shared_ptr<Doorway> doorway) noexcept;

  ControlThread& control_;
  DoorwayHost& host_;
  const Identity& self_;
  const Doorway::Limits& limits_;
  ListenerId next_end_ = 1;
  uint64_t next_doorbell_ = 1;
  DoorwayId next_doorway_ = 1;
  std::unordered_map<int, DoorbellNumber> doorbells_;  // by descriptor, while an end uses it
  std::unordered_map<DoorwayId, std::weak_ptr<Doorway>> doorways_;  // all there are
  std::map<PortId, std::shared_ptr<Doorway>> ports_;                // that are shared
  std::map<ListenerId, std::unique_ptr<ListeningEnd>> ends_;
};

}  // namespace aperture::nic
