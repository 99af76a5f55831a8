// The Contact of this process: ties the parts of first contact together.
//
//   Listeners            our ends, and the doorways to them
//   Peers                the processes there
//   LaneTable            which pair of endpoints has which lane
//   ConnectingSide       connects of ours that are under way
//   AcceptingSide        those of others
//   ConnectionRequests   what an application has to answer
//
// Each part is the control thread's, and so is every function here but the entry points, which are
// for any thread: they hand the parts their work.
#pragma once

#include "nic/accepting_side.hpp"
#include "nic/silence_watch.hpp"

namespace aperture::nic {

class FirstContact final : public Contact, private PeerHost {
 public:
  // Errors: those of Contact::instance().
  static Result<FirstContact*> create() noexcept;

  Result<ListenerId> listen(const ListenSpec& spec, Address& bound) noexcept override;
  void unlisten(ListenerId id) noexcept override;
  Result<PortId> open_port(std::span<const Address> ips, uint16_t& port) noexcept override;
  Result<PortId> open_context_port(const Address& at, Address& bound) noexcept override;
  void close_port(PortId id) noexcept override;
  void connect(ListenerId id, const Address& remote, uint64_t within_ns = 0) noexcept override;
  Status request(ListenerId id, const Address& remote,
                 const wire::PrivateData& data) noexcept override;
  Status accept(RequestId request, const ListenSpec& spec, const wire::PrivateData& data,
                ListenerId& id) noexcept override;
  void refuse(RequestId request, const wire::PrivateData& data) noexcept override;
  void keep_request(RequestId request) noexcept override;
  void set_backlog(ListenerId id, size_t backlog) noexcept override;
  void close_lane(std::unique_ptr<link::Lane> lane) noexcept override;
  protect::KeyTable& keys() noexcept override { return *keys_; }

  // Tests shorten these before the first listen(). Any thread; not while anything is under way.
  Doorway::Limits listener_limits;
  Connector::Limits connector_limits;
  // For tests: how much there is of everything. Any thread.
  struct Census {
    size_t listeners, handshakes, connectors, peers, lanes, resting, requests, doorways;
  };
  Census census() noexcept;

 private:
  FirstContact(ControlThread& control, std::unique_ptr<protect::KeyTable> keys,
               UniqueFd keys_read_only, const Identity& self) noexcept;

  // PeerHost
  void on_lane_closed(PeerLane& lane) noexcept override;
  void on_rung(Peer& peer) noexcept override;
  void on_peer_down(Peer& peer, Errc why) noexcept override;
  void watch(link::Lane& lane) noexcept override { peers_.watch(lane); }
  void on_detached() noexcept override;

  void give_back_keys() noexcept;

  ControlThread& control_;
  const std::unique_ptr<protect::KeyTable> keys_;
  UniqueFd keys_read_only_;
  const Identity self_;

  PortOwners owners_;
  // The sides are made before those who call them.
  ConnectingSide connecting_;
  AcceptingSide accepting_;
  Listeners listeners_;
  Shares shares_;
  SilenceWatch silence_;
  Peers peers_;
  LaneTable lanes_;
  ConnectionRequests requests_;
};

}  // namespace aperture::nic
