// A connected endpoint: one queue pair, to the peer that it connected to or whose request it
// accepted. fi_cm(3); what the libfabric door wraps as an fid_ep of type FI_EP_MSG.
//
// The calls of nic/endpoint.hpp are made with the engine's lock held. connect(), accept() and
// shutdown() are made without it, by one thread at a time. ContactEvents come on the control
// thread, which tells the door at once, so that an application that only waits for events gets
// them, and posts the rest to the engine. A send that finds the lane not handed over yet is told
// `again`; the poll that follows hands it over.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "msg/matcher.hpp"
#include "nic/connection_state.hpp"
#include "nic/endpoint.hpp"
#include "nic/shared_receive.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

// What becomes of a connection. Called on the control thread, or by whoever drives the engine.
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  // `data` is what the other side accepted with; empty at the side that accepted.
  virtual void on_connected(const wire::PrivateData& data) noexcept = 0;
  // The connect came to nothing. `data`: what the application there said; nullptr if it was not it.
  virtual void on_refused(Errc why, const wire::PrivateData* data) noexcept = 0;
  // Once at most: the other side has shut down or is lost.
  virtual void on_shut_down(Errc why) noexcept = 0;
};

class MsgEndpoint final : public Endpoint,
                          private ContactEvents,
                          private Engine::Owner,
                          private SharedReceive::Member,
                          private msg::Matcher::Host {
 public:
  struct Wish {
    ConnectionEvents* events = nullptr;
    SharedReceive* shared = nullptr;  // null: receives of its own
    RequestId request = 0;            // to be accepted; 0: it will connect
    Address peer;                     // of the request
  };
  // One that will connect gets its address here. Lock not held. Errors: those of Contact::listen,
  // no_memory.
  static Result<std::unique_ptr<MsgEndpoint>> create(const EndpointOptions& options,
                                                     const Wish& wish) noexcept;
  MsgEndpoint(const EndpointOptions& options, const Wish& wish);
  ~MsgEndpoint() override;

  // Errors: bad_state (it has been called, or it is there to accept).
  Status connect(const Address& remote, const wire::PrivateData& data) noexcept;
  // Errors: bad_state (likewise), no_entry (nobody waits any more), no_fds, no_memory.
  Status accept(const wire::PrivateData& data) noexcept;
  // What was accepted for sending gets about 1 s to reach the ring; the rest completes with
  // Errc::canceled before this returns. Errors: not_connected. Nothing to do if it is over.
  Status shutdown() noexcept;
  // Any thread.
  Connection connection() const noexcept {
    // SYNC POINT: connection: the peer's address is there once it is connected
    return connection_.load(std::memory_order_acquire);
  }
  const Address& peer() const noexcept { return peer_; }

  const Address& address() const noexcept override { return address_; }
  Status send(const qp::SendWr& wr) noexcept override;
  Status atomic(const qp::AtomicWr& wr) noexcept override;
  Status recv(const qp::RecvWr& wr) noexcept override;
  Status recv_multi(const qp::RecvWr& wr, uint64_t least_room) noexcept override;
  Status write(const qp::RmaWr& wr) noexcept override;
  Status read(const qp::RmaWr& wr) noexcept override;
  Status probe(const msg::Probe& probe) noexcept override;
  Status cancel(void* context) noexcept override;
  void forget(uint64_t) noexcept override {}
  bool has_pending() const noexcept override;

 private:
  void on_lane_up(const Address& remote, std::unique_ptr<link::Lane> lane) noexcept override;
  void on_connect_failed(const Address& remote, Errc why) noexcept override;
  void on_lane_down(link::Lane* lane, Errc why) noexcept override;
  void on_connected(const Address& remote, std::unique_ptr<link::Lane> lane,
                    const wire::PrivateData& data) noexcept override;
  void on_refused(const wire::PrivateData& data) noexcept override;
  void wind_up(qp::Qp& qp) noexcept override;
  qp::Port& port() noexcept override { return port_; }
  void set_pressure_of(bool on) noexcept override;
  uint64_t source_of(qp::Qp&) noexcept override { return qp::kNoSource; }
  void set_pressure(bool on) noexcept override { set_pressure_of(on); }

  Status listen() noexcept;
  ListenSpec spec_of(ListenFor what) noexcept;
  bool advance(ConnectionEvent event) noexcept;
  [[gnu::cold]] Status not_now() const noexcept;
  Status adopt(std::unique_ptr<link::Lane> lane) noexcept;
  void fail(Errc why, const wire::PrivateData* data) noexcept;
  void drop(Errc why) noexcept;
  void flush(uint64_t deadline_ns) noexcept;

  Engine& engine_;
  ConnectionEvents& events_;
  SharedReceive* const shared_;
  RequestId request_;  // 0 once answered; who opened us refuses it if it never is
  const bool accepts_;
  Address address_;
  const std::shared_ptr<const Secret> auth_key_;
  Address peer_;
  ListenerId listener_ = 0;  // 0: none yet
  std::atomic<Connection> connection_{Connection::unconnected};
  qp::Port port_;
  std::optional<msg::Matcher> own_;  // without a shared receive context
  msg::Matcher* matcher_ = nullptr;
  std::unique_ptr<qp::Qp> qp_;  // only_, and after the end what is left of it
  Errc lost_why_ = Errc::peer_lost;
  bool closed_ = false;                   // by our own shutdown()
  std::atomic<bool> lane_coming_{false};  // handed to the engine, which has not taken it yet
  std::shared_ptr<bool> alive_;           // false once we are gone, for work posted to the engine
};

}  // namespace aperture::nic
