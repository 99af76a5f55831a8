// A connected endpoint: one queue pair, to the peer that it connected to or whose request it
// accepted. fi_cm(3); what the libfabric door wraps as an fid_ep of type FI_EP_MSG.
//
// The calls of nic/endpoint.hpp are made with the engine's lock held, and LaneEvents come with it.
// connect(), accept() and shutdown() are made without it, by one thread at a time: they are those
// of its connection (msg_connection.hpp), which also tells the door what becomes of it.
#pragma once

#include <memory>

#include "nic/endpoint.hpp"
#include "nic/matched_port.hpp"
#include "nic/msg_connection.hpp"
#include "qp/qp.hpp"

namespace aperture::nic {

class MsgEndpoint final : public Endpoint,
                          private LaneEvents,
                          private Engine::Owner,
                          private msg::Matcher::Host {
 public:
  struct Wish {
    ConnectionEvents* events = nullptr;
    RequestId request = 0;  // to be accepted; 0: it will connect
    Address peer;           // of the request
  };
  // One that will connect gets its address here. Lock not held. Errors: those of Contact::listen,
  // no_memory.
  static Result<std::unique_ptr<MsgEndpoint>> create(const EndpointOptions& options,
                                                     const Wish& wish) noexcept;
  MsgEndpoint(const EndpointOptions& options, const Wish& wish);
  ~MsgEndpoint() override;

  // Errors: bad_state (it has been called, or it is there to accept).
  Status connect(const Address& remote, const wire::PrivateData& data) noexcept {
    return connection_.connect(remote, data);
  }
  // Errors: bad_state (likewise), no_entry (nobody waits any more), no_fds, no_memory.
  Status accept(const wire::PrivateData& data) noexcept { return connection_.accept(data); }
  // What was accepted for sending gets about 1 s to reach the ring; the rest completes with
  // Errc::canceled before this returns, and the door is told. If it is over, what the peer had
  // published is executed instead. Nothing of the peer's lands after this. Errors: not_connected.
  Status shutdown() noexcept;
  // Any thread.
  Connection connection() const noexcept { return connection_.state(); }
  const Address& peer() const noexcept { return connection_.peer(); }

  const Address& address() const noexcept override { return connection_.local(); }
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
  void on_lane(std::unique_ptr<link::Lane> lane) noexcept override;
  void on_no_lane(Errc why) noexcept override;
  void on_lane_down(Errc why) noexcept override;
  void wind_up(qp::Qp& qp) noexcept override;
  uint64_t source_of(qp::Qp&) noexcept override { return qp::kNoSource; }
  void set_pressure(bool on) noexcept override;

  void drop(Errc why) noexcept;
  void end_access() noexcept;
  void flush() noexcept;
  bool comes_too_late(const qp::RecvWr& wr) noexcept;
  Status cancel_late(Status posted) noexcept;

  Engine& engine_;
  MsgConnection connection_;
  MatchedPort port_;
  std::unique_ptr<qp::Qp> qp_;  // only_, and after the end what is left of it
  Errc lost_why_ = Errc::peer_lost;
  bool lost_ = false;  // not by our own shutdown(): what was posted has ended with lost_why_
};

}  // namespace aperture::nic
