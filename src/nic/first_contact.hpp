// The Contact of this process: which endpoint gets which lane.
//
// Doorways hear hellos, connectors send them, peers carry the lanes; this ties them together and
// keeps the rule that one pair of endpoints has one lane: on crossing connects the lower (address,
// incarnation) goes first and the other waits for it; a lane that arrives where one is up replaces
// it. A request for a connection is held, lane and all, until the application answers, its
// connector withdraws, or either process ends. Everything but the entry points is the control
// thread's.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nic/connector.hpp"
#include "nic/contact.hpp"
#include "nic/control_thread.hpp"
#include "nic/doorway.hpp"
#include "nic/identity.hpp"
#include "nic/listener.hpp"
#include "nic/peer.hpp"

namespace aperture::nic {

class FirstContact final : public Contact,
                           private DoorwayHost,
                           private ConnectorHost,
                           private PeerHost {
 public:
  // Errors: those of Contact::instance().
  static Result<FirstContact*> create() noexcept;

  Result<ListenerId> listen(const ListenSpec& spec, Address& bound) noexcept override;
  void unlisten(ListenerId id) noexcept override;
  Result<PortId> open_port(std::span<const Address> ips, uint16_t& port) noexcept override;
  void close_port(PortId id) noexcept override;
  void connect(ListenerId id, const Address& remote, uint64_t within_ns = 0) noexcept override;
  void request(ListenerId id, const Address& remote,
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
  using Pair = std::pair<ListenerId, Address>;  // an endpoint of ours, and one elsewhere
  struct HeldRequest {
    std::shared_ptr<PeerLane> record;  // its peer is not down: such requests are dropped
    ListenerId listener = 0;           // that it came to; 0: it was kept beyond it
    Address local;
    uint32_t attempt = 0;
  };
  struct DoorbellNumber {
    uint64_t number = 0;
    size_t listeners = 0;
  };

  FirstContact(ControlThread& control, std::unique_ptr<protect::KeyTable> keys,
               UniqueFd keys_read_only, const Identity& self) noexcept;

  // DoorwayHost
  wire::Verdict judge(Listener& listener, const wire::Hello& hello) noexcept override;
  void on_joined(const wire::Hello& hello, const wire::Join& join, ParentOnlyFd socket,
                 const Credentials& credentials) noexcept override;
  void on_ticket_lost(ListenerId listener, const wire::Hello& hello) noexcept override;
  // ConnectorHost
  void on_offer(Connector& connector, const wire::Answer& offer) noexcept override;
  void on_connector_failed(Connector& connector, Errc why) noexcept override;
  // PeerHost
  void on_peer_joined(Peer& peer) noexcept override;
  void on_open(Peer& peer, const wire::Open& open, Packet& packet) noexcept override;
  void on_accept(Peer& peer, const wire::Accept& accept, Packet& packet) noexcept override;
  void on_reject(Peer& peer, uint32_t attempt, wire::Why why) noexcept override;
  void on_connect(Peer& peer, const wire::Connect& connect, Packet& packet) noexcept override;
  void on_connected(Peer& peer, const wire::Connected& connected, Packet& packet) noexcept override;
  void on_refuse(Peer& peer, const wire::Refuse& refuse) noexcept override;
  void on_withdraw(Peer& peer, uint32_t attempt) noexcept override;
  void on_lane_closed(PeerLane& lane) noexcept override;
  void on_rung(Peer& peer) noexcept override;
  void on_peer_down(Peer& peer, Errc why) noexcept override;

  Listener* opened_listener(Peer& peer, const wire::Open& open, const Packet& packet,
                            ListenFor what, wire::Statement& statement) noexcept;
  void refuse_key(Peer& peer, const wire::Open& open, Listener& listener) noexcept;
  bool speaks_for(const Peer& peer, const Address& source) const noexcept;
  Result<std::shared_ptr<Doorway>> new_doorway(Doorway::Kind kind,
                                               std::vector<ParentOnlyFd> sockets) noexcept;
  std::shared_ptr<Doorway> doorway_of(uint64_t ticket) noexcept;
  std::shared_ptr<Doorway> port_at(const Address& address) noexcept;
  Status listen_at_port(const ListenSpec& spec, ListenerId& id) noexcept;
  Status add_listener(const ListenSpec& spec, ListenerId id, const Address& bound,
                      std::shared_ptr<Doorway> doorway) noexcept;
  void remove_listener(ListenerId id) noexcept;
  void begin_connect(ListenerId id, const Address& remote, const wire::PrivateData* request,
                     uint64_t within_ns) noexcept;
  Status accept_now(RequestId request, const ListenSpec& spec, const wire::PrivateData& data,
                    ListenerId& id) noexcept;
  void refuse_now(RequestId request, const wire::PrivateData& data) noexcept;
  bool take_request(RequestId request, HeldRequest& held) noexcept;
  void drop_requests_of(const Peer& peer) noexcept;
  void join(Connector& connector, const wire::Answer& offer) noexcept;
  void open(Connector& connector, Peer& peer) noexcept;
  Connector* connector_of(uint32_t attempt) noexcept;
  std::unique_ptr<Connector> take_connector(const Pair& pair) noexcept;
  std::shared_ptr<Peer> peer_of(const wire::Id128& incarnation) noexcept;
  void adopt(std::shared_ptr<Peer> peer) noexcept;

  void lane_up(const std::shared_ptr<PeerLane>& record, std::unique_ptr<link::Lane> lane,
               const wire::PrivateData* data = nullptr) noexcept;
  void lane_down(PeerLane& record, Errc why) noexcept;
  void close_now(std::unique_ptr<link::Lane> lane) noexcept;
  void forget_current(const PeerLane& record) noexcept;

  void keep_watch() noexcept;
  void watch_over_pending() noexcept;
  void rest(const std::shared_ptr<link::shm::Segment>& segment) noexcept;
  void detach_resting() noexcept;

  ControlThread& control_;
  const std::unique_ptr<protect::KeyTable> keys_;
  const UniqueFd keys_read_only_;
  const Identity self_;
  const PeerContext peer_context_;

  ListenerId next_listener_ = 1;
  uint32_t next_attempt_ = 1;
  uint64_t next_doorbell_ = 1;
  std::unordered_map<int, DoorbellNumber> doorbells_;  // by descriptor, while a listener uses it
  DoorwayId next_doorway_ = 1;
  std::unordered_map<DoorwayId, std::weak_ptr<Doorway>> doorways_;  // all there are
  std::map<PortId, std::shared_ptr<Doorway>> ports_;                // that are shared
  std::map<ListenerId, std::unique_ptr<Listener>> listeners_;
  std::map<Pair, std::unique_ptr<Connector>> connectors_;
  std::unordered_map<uint32_t, Connector*> attempts_;  // the same, by attempt
  std::vector<std::shared_ptr<Peer>> peers_;
  std::map<Pair, std::shared_ptr<PeerLane>> current_;  // the lane that is up for a pair
  std::unordered_map<link::Lane*, std::shared_ptr<PeerLane>> by_lane_;
  RequestId next_request_ = 1;
  std::map<RequestId, HeldRequest> held_;  // not answered yet

  ControlThread::TimerId watch_timer_ = 0;
  uint64_t last_pending_ns_ = 0;  // when anything was last pending
  // of dead peers: kept until the key table is sure that nothing lands through their slots any more
  std::vector<std::shared_ptr<link::shm::Segment>> resting_;
  ControlThread::TimerId rest_timer_ = 0;
};

}  // namespace aperture::nic
