// The requests for connections that came to this process and have no answer yet.
//
// A request is held, lane and all, until the application answers, its connector withdraws, either
// process ends, or the listener goes that it came to. Each is at most once answered, and counted in
// its listener's `waiting` until then; one that was kept beyond its listener counts nowhere. The
// peer of a request that is held here is not down. Owned by the control thread.
#pragma once

#include <map>
#include <memory>

#include "nic/lane_table.hpp"

namespace aperture::nic {

class ConnectionRequests {
 public:
  // Both outlive it.
  ConnectionRequests(Listeners& listeners, LaneTable& lanes) noexcept
      : listeners_(listeners), lanes_(lanes) {}

  // Holds what came with Connect and tells the listener, or rejects it.
  void hold(Peer& peer, const wire::Connect& connect, const wire::Statement& statement,
            Packet& packet, ListeningEnd& listener) noexcept;
  // As of Contact. The id of the new end. Errors: no_entry, access_denied, no_fds, no_memory.
  Result<ListenerId> accept(RequestId id, const ListenSpec& spec,
                            const wire::PrivateData& data) noexcept;
  void refuse(RequestId id, const wire::PrivateData& data) noexcept;
  void keep(RequestId id) noexcept;

  // The listener is about to go: nobody will answer them.
  void refuse_all(const ListeningEnd& listener) noexcept;
  // Its connector has withdrawn it; if it was answered already, the answer is on its way.
  void withdrawn(const Peer& peer, uint32_t attempt) noexcept;
  void peer_down(const Peer& peer) noexcept;
  size_t size() const noexcept { return held_.size(); }

 private:
  struct Held {
    std::shared_ptr<PeerLane> record;
    ListenerId listener = 0;  // that it came to; 0: it was kept beyond it
    Address local;
    uint32_t attempt = 0;
  };

  bool take(RequestId id, Held& held) noexcept;
  void stop_counting(const Held& held) noexcept;
  void tell_gone(RequestId id, ListenerId listener) noexcept;

  Listeners& listeners_;
  LaneTable& lanes_;
  RequestId next_ = 1;
  std::map<RequestId, Held> held_;
};

}  // namespace aperture::nic
