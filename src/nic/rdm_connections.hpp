// The connections of a reliable datagram endpoint: a queue pair to each address that it has sent to
// or was spoken to from, how their lanes come, and how they go.
//
//   connect()           -->  connecting  --  lane up    -->  up  -->  lost or broken  -->  gone
//   the peer comes      --------------------------------->  up
//
// A queue pair lives from the first operation to an address (or the peer's first contact) until its
// lane is lost; the next operation makes a new one. Nobody knows of one that is gone: it is out of
// by_index(), and the port has been told.
//
// Guarded by the engine's lock, and called with it, but for listen() and stop(), which wait for the
// control thread and are called without it, by one thread. ContactEvents run on the control thread
// and only post to the engine.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "nic/lane_holder.hpp"
#include "nic/matched_port.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

class RdmConnections final : private Engine::Owner {
 public:
  using QueuePairs = std::unordered_map<Address, std::unique_ptr<qp::Qp>, AddressHash>;

  // The port outlives it. By exception std::bad_alloc.
  RdmConnections(const EndpointOptions& options, MatchedPort& port);
  ~RdmConnections() override;

  // Peers may come from now on, unless the options say that nobody may. Errors: those of
  // Contact::listen.
  Status listen() noexcept;
  bool is_listening() const noexcept { return !ends_.empty() && ends_.front().listener != 0; }
  // Nobody comes any more, and no peer is inside our memory once it has returned.
  void stop() noexcept;
  // The operations of all complete with `why`, and their lanes go back. After stop().
  void drop_all(Errc why) noexcept;

  const Address& address() const noexcept { return address_; }
  // The slow path of an operation: the queue pair to what the address table calls so, which begins
  // to connect if there was none. Errors: no_entry, no_memory, and others where it is our own
  // address.
  Result<qp::Qp*> connect(uint64_t name) noexcept;
  // Queue pairs that were asked for, by address index; nullptr is to be looked up by connect(),
  // after which this has to be asked for anew.
  std::span<qp::Qp* const> by_index() const noexcept { return by_index_; }
  // The connection stays, since the peer may go on sending.
  void forget(uint64_t index) noexcept;
  const QueuePairs& all() const noexcept { return by_remote_; }

 private:
  // Lanes that came while an older queue pair to the same address was not over: what its peer had
  // published is not all executed, or the peer is still inside. In the order in which they came.
  struct NextLife {
    Address remote;
    LaneHolder holder;
    Errc lost;  // ok: it is up
  };

  // What first contact knows of us: an end for each authorization key, at one address.
  struct End final : ContactEvents {
    End(RdmConnections& connections, const EndpointOptions::Key& its_key)
        : all(connections), key(its_key) {}
    void on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept override;
    void on_connect_failed(const Address& remote, Errc why) noexcept override;
    void on_lane_down(link::Lane* lane, Errc why) noexcept override;

    RdmConnections& all;
    const EndpointOptions::Key key;
    ListenerId listener = 0;  // 0: none yet
  };

  void wind_up(qp::Qp& qp) noexcept override;
  End* end_for(const Address& remote) noexcept;

  Result<qp::Qp*> connect_to(const Address& remote) noexcept;
  Result<qp::Qp*> qp_to(const Address& remote) noexcept;
  void adopt(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept;
  std::list<NextLife>::iterator next_life(const Address& remote) noexcept;
  void adopt_later(qp::Qp& old_life, std::unique_ptr<link::Lane> lane) noexcept;
  void fail_connect(const Address& remote, Errc why) noexcept;
  void lose(link::Lane* lane, Errc why) noexcept;
  void drop(qp::Qp& qp, Errc why) noexcept;

  Engine& engine_;
  AddressTable& addresses_;
  MatchedPort& port_;
  Address address_;
  const bool at_open_port_;
  const bool connects_only_;
  std::deque<End> ends_;
  QueuePairs by_remote_;
  std::list<NextLife> next_lives_;
  std::vector<qp::Qp*> by_index_;  // a cache over by_remote_
  std::shared_ptr<bool> alive_;    // false once stopped, for work posted to the engine
};

}  // namespace aperture::nic
