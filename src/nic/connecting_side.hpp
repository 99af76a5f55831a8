// The side that asks: the connects of this process that are under way, each from its first try to
// its lane or its failure.
//
// One pair of endpoints has one connector; the answers of peers find it by the number of its
// attempt, which is never used again. A connector that ends is gone from here before anybody is
// told.
//
// Queue pairs share ports, and a program connects hundreds of them at once: connects to one port
// take turns. Before it is known which process has the port, one finds that out over TCP; then some
// ask that process at once, and the next when it has answered. Where nobody answers one in time,
// all that wait for their turn fail with it. Who has to wait for anything else gives up its turn.
// Owned by the control thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "nic/connector.hpp"
#include "nic/lane_table.hpp"
#include "nic/port_owner.hpp"

namespace aperture::nic {

class ConnectingSide final : public PeerAnswers, private ConnectorHost {
 public:
  // What is passed outlives it; limits: as they are when a connect begins.
  ConnectingSide(ControlThread& control, const Identity& self, const Connector::Limits& limits,
                 Listeners& listeners, Peers& peers, LaneTable& lanes, PortOwners& owners) noexcept
      : control_(control),
        self_(self),
        limits_(limits),
        listeners_(listeners),
        peers_(peers),
        lanes_(lanes),
        owners_(owners) {}

  // Contact::connect() and, with what the application says, Contact::request().
  void begin(ListenerId id, const Address& remote, const wire::PrivateData* request,
             uint64_t within_ns) noexcept;
  // That end is about to go: its connects end in silence, and requests are withdrawn.
  void withdraw_all(ListenerId id) noexcept;

  // nullptr: none is under way.
  Connector* find(const EndPair& pair) const noexcept;
  // Its turn is over, nobody is told; nullptr: likewise.
  std::unique_ptr<Connector> take(const EndPair& pair) noexcept;
  // It waited for a connect of the other side that came to nothing.
  void stop_waiting(const EndPair& pair) noexcept;
  void peer_down(const Peer& peer, Errc told) noexcept;
  size_t size() const noexcept { return connectors_.size(); }

 private:
  // ConnectorHost
  void on_offer(Connector& connector, const wire::Answer& offer) noexcept override;
  void on_connector_waits(Connector& connector) noexcept override;
  void on_connector_failed(Connector& connector, Errc why) noexcept override;
  // PeerAnswers
  void on_peer_joined(Peer& peer) noexcept override;
  void on_accept(Peer& peer, const wire::Accept& accept, const wire::PrivateData* data,
                 Packet& packet) noexcept override;
  void on_reject(Peer& peer, uint32_t attempt, wire::Why why) noexcept override;
  void on_refuse(Peer& peer, const wire::Refuse& refuse) noexcept override;

  std::shared_ptr<HostPeer> who_offers(const Connector& connector,
                                       const wire::Answer& offer) noexcept;
  bool is_of_who_answered(const HostPeer& peer, const Connector& connector,
                          const wire::Answer& offer) noexcept;
  Status join(Connector& connector, const wire::Answer& offer);
  Status stay(Connector& connector, const wire::Answer& offer);
  void open(Connector& connector, Peer& peer) noexcept;
  Connector* of_attempt(uint32_t attempt, const Peer& peer) const noexcept;
  void take_turn(const EndPair& pair, Connector& connector) noexcept;
  void end_turn(Connector& connector) noexcept;
  std::deque<EndPair> queue_of(const Connector& connector) noexcept;
  void call_next(const Address& port) noexcept;

  ControlThread& control_;
  const Identity& self_;
  const Connector::Limits& limits_;
  Listeners& listeners_;
  Peers& peers_;
  LaneTable& lanes_;
  PortOwners& owners_;
  uint32_t next_attempt_ = 1;
  std::map<EndPair, std::unique_ptr<Connector>> connectors_;
  std::unordered_map<uint32_t, Connector*> attempts_;  // the same, by attempt
  struct Turns {
    size_t taken = 0;
    std::deque<EndPair> queue;  // some may be gone
  };
  std::map<Address, Turns> turns_;  // by port
};

}  // namespace aperture::nic
