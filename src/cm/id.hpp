// An rdma_cm id without the application: what it is bound to, the state of its connection, and the
// messages that it exchanges with its peer. rdma_cm(7); IBTA volume 1, 12.9 and 12.11.
//
// All of it, construction and destruction too, is the control thread's own. A command is refused
// with bad_state where the table (state.hpp) has nothing for it. Events are told from within
// commands and from callbacks; whoever is told must not destroy the id in there.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/address.hpp"
#include "base/errc.hpp"
#include "cm/connection.hpp"
#include "cm/event.hpp"
#include "cm/ports.hpp"
#include "cm/state.hpp"
#include "nic/control_thread.hpp"

namespace aperture::cm {

class Farewell;
class Listener;

// What an id is for: rdma_create_id(3). In RDMA_PS_IB it may be either.
struct Service {
  PortSpace space;
  bool datagram;  // resolves a service id instead of making a connection

  constexpr Service(
      PortSpace s) noexcept  // NOLINT(google-explicit-constructor): a port space is one
      : Service(s, s == PortSpace::udp || s == PortSpace::ipoib) {}
  constexpr Service(PortSpace s, bool is_datagram) noexcept : space(s), datagram(is_datagram) {}
};

// How long an id waits. Tests wait less.
struct Timeouts {
  uint64_t connect_ns = 20'000'000'000;    // until the answer to a REQ, before an MRA
  uint64_t answer_ns = 120'000'000'000;    // of an application, after an MRA; of the RTU
  uint64_t disconnect_ns = 5'000'000'000;  // of a DREP
  uint64_t timewait_ns = 500'000'000;
  uint64_t request_ns = 5'000'000'000;  // of a REQ on an accepted connection
  // A port where nobody listens is tried again for so long: servers that listen anew between two
  // connections (perftest) are slower than clients that need no fabric to find them.
  uint64_t refused_ns = 1'000'000'000;
  uint64_t sidr_ns = 4'000'000'000;     // of a SIDR REP
  uint64_t ask_again_ns = 250'000'000;  // after who was asked has gone without an answer
};

class Id {
 public:
  using OnEvent = std::function<void(Event&&)>;

  // Errors: no_fds, no_memory.
  static Result<std::unique_ptr<Id>> create(nic::ControlThread& control,
                                            const Service& service) noexcept;
  // The other side is told: a connection ends, a request is rejected.
  ~Id();
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;

  void tell(OnEvent on_event) noexcept { on_event_ = std::move(on_event); }
  Timeouts& timeouts() noexcept { return timeouts_; }

  Status set_reuse(bool reuse) noexcept;
  Status set_six_only(bool six_only) noexcept;
  // Errors: bad_state; addr_in_use, addr_not_avail (also: none of the device's GIDs), no_fds,
  // no_memory...
  Status bind(const Address& at) noexcept;
  // addr_resolved follows at once. Errors: as bind; unreachable, invalid (two families).
  Status resolve_addr(const std::optional<Address>& source, const Address& dest) noexcept;
  Status resolve_route() noexcept;
  // So many requests may wait for their owner's attention. Errors: bad_state, no_memory,
  // addr_in_use...
  Status listen(size_t backlog) noexcept;
  // Errors: bad_state, too_big (private data), no_memory (a datagram id; of a connection that finds
  // none `unreachable` is told, as of one that finds no peer), no_fds...
  Status connect(const Params& params) noexcept;
  Status accept(const Params& params) noexcept;
  // The active side's half of accept: RTU.
  Status establish() noexcept;
  Status reject(uint32_t reason, std::span<const uint8_t> data) noexcept;
  Status disconnect() noexcept;
  // Data has come before the RTU. Errors: bad_state; not_connected never: EISCONN is the caller's.
  Status notify_established() noexcept;

  State state() const noexcept { return state_; }
  bool is_datagram() const noexcept { return service_.datagram; }
  // Neither is set before bind; a wildcard has no device.
  const std::optional<Address>& local() const noexcept { return local_; }
  const std::optional<Address>& remote() const noexcept { return remote_; }
  bool has_device() const noexcept { return local_ && !local_->is_any_ip(); }
  bool has_route() const noexcept { return has_route_; }
  // Of the connection, as queue pairs need it.
  struct Agreed {
    uint32_t remote_qpn = 0;
    uint32_t rq_psn = 0;
    uint32_t sq_psn = 0;
    uint8_t responder_resources = 0;
    uint8_t initiator_depth = 0;
    uint8_t retry_count = 0;
    uint8_t rnr_retry_count = 0;
  };
  const Agreed& agreed() const noexcept { return agreed_; }

 private:
  friend class Listener;

  Id(nic::ControlThread& control, const Service& service) noexcept;

  // A request that came over a connection.
  void become_requested(std::shared_ptr<Connection> connection, const Params& params,
                        Wild<uint32_t> psn, const Address& local, const Address& remote) noexcept;
  void become_asked(std::shared_ptr<Connection> connection, uint64_t request_id,
                    const Address& local, const Address& remote) noexcept;

  Status take_port(const Address& at) noexcept;
  Status prepare_req(const Params& params) noexcept;
  Status prepare_sidr_req(const Params& params) noexcept;
  void try_connect() noexcept;
  Status begin_connection() noexcept;
  void try_again_in(uint64_t ns) noexcept;
  void adopt(std::shared_ptr<Connection> connection) noexcept;
  void on_not_connected(Errc why) noexcept;
  void on_message(wire::CmKind kind, Connection::Bytes bytes) noexcept;
  void agree(const Params& peers, Wild<uint32_t> psn) noexcept;
  void on_rep(const wire::Rep& rep) noexcept;
  void on_rej(const wire::Rej& rej) noexcept;
  void on_dreq() noexcept;
  void on_lost(Errc why) noexcept;
  void on_expired() noexcept;
  void on_sidr_rep(const wire::SidrRep& rep) noexcept;

  bool step(Input input) noexcept;
  void emit(EventKind kind, int status = 0, const Params* params = nullptr) noexcept;
  void answer_question(uint32_t status, const Params& params) noexcept;
  void reject_with(uint32_t reason, std::span<const uint8_t> data) noexcept;
  void part() noexcept;  // of the connection, when what was said has arrived
  void wait_at_most(uint64_t ns) noexcept;
  void enter_timewait() noexcept;

  nic::ControlThread& control_;
  Farewell& farewell_;
  const Service service_;
  State state_ = State::idle;
  Timeouts timeouts_;
  PortOptions options_;
  OnEvent on_event_;
  std::optional<Port> port_;  // once bound
  std::optional<Address> local_;
  std::optional<Address> remote_;
  bool has_route_ = false;
  bool answered_by_cm_ = false;  // an MRA came: it is a connection manager that we talk to
  wire::CmPacket request_;       // REQ or SIDR REQ: what we ask, as often as it takes
  uint64_t request_id_ = 0;      // of a SIDR REQ
  Agreed agreed_;
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<Listener> listener_;
  nic::ControlThread::TimerId timer_ = 0;
  nic::ControlThread::TimerId retry_timer_ = 0;
  uint64_t refused_until_ns_ = 0;
};

}  // namespace aperture::cm
