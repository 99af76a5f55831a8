// The side that is asked: who may come to an endpoint of this process, and gets a lane.
//
// Doorways ask here about hellos and hand over the processes that come; their Open, and Connect
// where an application decides, must bring a ticket, speak for the port that they say, and prove
// the endpoint's key. On crossing connects the lower (address, incarnation) goes first and the
// other waits for it, whichever side is asked. Owned by the control thread.
#pragma once

#include "nic/connecting_side.hpp"
#include "nic/connection_requests.hpp"

namespace aperture::nic {

class AcceptingSide final : public DoorwayHost, public PeerAsks {
 public:
  // The parts that it works with; all outlive it.
  struct Parts {
    const Identity& self;
    Listeners& listeners;
    Peers& peers;
    LaneTable& lanes;
    ConnectingSide& connecting;
    ConnectionRequests& requests;
    PortOwners& owners;
  };
  explicit AcceptingSide(const Parts& parts) noexcept : parts_(parts) {}

  void peer_down(const Peer& peer) noexcept;

 private:
  // DoorwayHost
  Holder holder_of(const Address& there, const Address& here) noexcept override;
  wire::Verdict validate(ListeningEnd& listener, const wire::Hello& hello,
                         Holder holder) noexcept override;
  std::shared_ptr<Peer> on_stays(const wire::Hello& hello, uint64_t ticket, ParentOnlyFd tcp,
                                 Holder holder) noexcept override;
  void on_joined(const wire::Hello& hello, const wire::Join& join, ParentOnlyFd socket,
                 const Credentials& credentials) noexcept override;
  void on_ticket_lost(ListenerId listener, const wire::Hello& hello) noexcept override;
  // PeerAsks
  void on_open(Peer& peer, const wire::Open& open, Packet& packet) noexcept override;
  void on_connect(Peer& peer, const wire::Connect& connect, Packet& packet) noexcept override;
  void on_withdraw(Peer& peer, uint32_t attempt) noexcept override;

  struct Asked {                       // what Open or Connect names
    ListeningEnd* listener = nullptr;  // null: why tells
    wire::Why why{};
    bool is_from_its_source = false;
    wire::Statement statement{};
  };
  Asked asked_by_ticket(const Peer& peer, const wire::Open& open) const noexcept;
  Asked asked_at_once(const Peer& peer, const wire::Open& open) const noexcept;
  bool is_first(const Address& source, const wire::Id128& incarnation,
                const Address& destination) const noexcept;
  ListeningEnd* opened_listener(Peer& peer, const wire::Open& open, const Packet& packet,
                                ListenFor what, wire::Statement& statement) noexcept;
  void refuse_key(Peer& peer, const wire::Open& open, ListeningEnd& listener) noexcept;

  const Parts parts_;
};

}  // namespace aperture::nic
